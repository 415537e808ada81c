"""What py4j says of a call that was cut off is no line of the terminal."""

from __future__ import annotations

import subprocess
import sys

import pytest

CUT_OFF = """
import logging
from py4j.java_gateway import GatewayClient
from py4j.protocol import Py4JNetworkError
from everflow import logs
from everflow.spark.session import hush_py4j

class Connection:
    socket = None
    def send_command(self, command):
        raise {error}
    def close(self, reset):
        pass

class Client(GatewayClient):
    def _get_connection(self):
        return Connection()

logs.install()
{hushed}
try:
    Client().send_command("", retry=False)
except KeyboardInterrupt:
    pass
print(len(logging.getLogger().handlers))
"""


@pytest.mark.parametrize("error", ["KeyboardInterrupt", "Py4JNetworkError('reset')"])
def test_a_call_that_is_cut_off_says_nothing_and_configures_no_logging(error: str) -> None:
    said = _run(CUT_OFF.format(error=error, hushed="hush_py4j()"))
    assert (said.stdout, said.stderr) == ("0\n", "")


def test_py4j_itself_would() -> None:
    said = _run(CUT_OFF.format(error="KeyboardInterrupt", hushed=""))
    assert said.stdout == "1\n"
    assert "while sending command" in said.stderr


def _run(program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60
    )
