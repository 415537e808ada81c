"""A program that ends without close(): its instance ends in order first, while all that it needs still works."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import os, threading
from concurrent.futures import ThreadPoolExecutor
from everflow.logs import install
from everflow.runtime.client_state import ClientState
from everflow.runtime.unclosed import close_at_exit

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
"""


@pytest.mark.parametrize(
    ("then", "close", "printed", "warned"),
    [
        ("raise ValueError('of the program')", "", ["closed"], True),
        ("", "", ["closed"], True),
        ("", "raise KeyboardInterrupt", ["closed", "hurried"], True),
        ("instance.state = ClientState.NOT_RUNNING", "", [], False),
        ("pid = os.fork()\nif pid == 0: threading._shutdown(); os._exit(0)\nos.waitpid(pid, 0)", "", ["closed"], True),
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
    assert "The program ends and has not closed its instance: it is closed now" in "".join(told) or not warned
    assert [line for line in lines if line not in told][-1:] == (["ValueError: of the program"] if "raise" in then else [])
