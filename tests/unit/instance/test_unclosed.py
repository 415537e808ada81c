"""A program that ends without close(): its instance ends in order first."""

import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from jupyter_client.manager import KernelManager

from everflow.testing import wait_until

PROGRAM = """
import os, threading
from concurrent.futures import ThreadPoolExecutor
from everflow.logs import install
from everflow.instance.client_state import ClientState
from everflow.instance.kafka_streams import close_at_exit

class Instance:
    state = ClientState.RUNNING
    pool = ThreadPoolExecutor(1)

    def close(self):
        thread = threading.Thread(target=lambda: self.pool.submit(print, "closed", flush=True).result())
        thread.start()
        thread.join()
        {close}

    def _hurry_up(self, timeout_s):
        print("hurried", flush=True)

install()
instance = Instance()
close_at_exit(instance)
{then}
"""  # noqa: E501


@pytest.mark.parametrize(
    ("then", "close", "printed", "warned"),
    [
        ("raise ValueError('of the program')", "", ["closed"], True),
        ("", "", ["closed"], True),
        ("", "raise KeyboardInterrupt", ["closed", "hurried"], True),
        ("instance.state = ClientState.NOT_RUNNING", "", [], False),
        (
            "pid = os.fork()\nif pid == 0: threading._shutdown(); os._exit(0)\nos.waitpid(pid, 0)",
            "",
            ["closed"],
            True,
        ),
    ],
)
def test_what_runs_at_the_end_of_a_program_is_closed_while_executors_work(
    then: str, close: str, printed: list[str], warned: bool
) -> None:
    command = [sys.executable, "-c", PROGRAM.format(then=then, close=close)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout.splitlines() == printed, done.stderr
    lines = done.stderr.splitlines()
    told = [line for line in lines if line.endswith("write `with KafkaStreams(...) as streams:`)")]
    assert len(told) == warned
    assert "its instance: it is closed now" in "".join(told) or not warned
    assert [line for line in lines if line not in told][-1:] == (
        ["ValueError: of the program"] if "raise" in then else []
    )


CELL = """
import subprocess, sys
from everflow.instance.client_state import ClientState
from everflow.instance.kafka_streams import close_at_exit

class Instance:
    state = ClientState.RUNNING
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)  # as PySpark starts a JVM

    def close(self):
        self.state = ClientState.NOT_RUNNING
        with open("closed", "a") as file:
            print(self.child.pid, self.child.poll(), file=file)

instance = Instance()
close_at_exit(instance)
"""  # noqa: E501


def test_a_kernel_that_is_shut_down_closes_what_runs_first(tmp_path: Path) -> None:
    manager = KernelManager(kernel_name="python3")
    manager.start_kernel(cwd=str(tmp_path))
    client = manager.client()
    client.start_channels()
    try:
        client.wait_for_ready(timeout=60)
        reply = client.execute_interactive(CELL, timeout=60)
        assert reply["content"]["status"] == "ok", reply["content"]
        client.shutdown()
        told = tmp_path / "closed"
        wait_until(lambda: told.exists() and told.read_text().endswith("\n"), 60, "the close")
        child, ended = told.read_text().split()
        assert ended == "None", "it had ended before the instance was closed"
        # Its parent, which does not wait for it, takes half a minute more to end.
        wait_until(lambda: _has_ended(int(child)), 60, "the child's end")
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
    assert len(told.read_text().splitlines()) == 1, "closed twice"


def _has_ended(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True
