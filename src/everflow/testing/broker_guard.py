"""Runs one child, and ends it when the process that started this one has ended.

A program of its own (``python broker_guard.py FOLDER COMMAND...``), standard library only,
single-threaded.
It watches its standard input: the lines TERM, KILL, STOP and CONT are signals for the child, and
end of file means that the parent is gone, by whatever death: the child is killed, and FOLDER
(unless ``-``) deleted. Because a forked sibling may hold the pipe open, a changed parent pid counts
as end of file too. Exit code: the child's, or 128 + signal.
"""

from __future__ import annotations

import ctypes
import os
import select
import shutil
import signal
import subprocess
import sys

_TICK_S = 0.05
_PR_SET_PDEATHSIG = 1
_SIGNALS = {
    "TERM": signal.SIGTERM,
    "KILL": signal.SIGKILL,
    "STOP": signal.SIGSTOP,
    "CONT": signal.SIGCONT,
}


def main(arguments: list[str]) -> int:
    folder, command = arguments[0], arguments[1:]
    parent = os.getppid()
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL, preexec_fn=_die_with_parent)
    commands = b""
    while child.poll() is None:
        readable, _, _ = select.select([0], [], [], _TICK_S)
        data = os.read(0, 4096) if readable else None
        if data == b"" or os.getppid() != parent:
            child.kill()
            child.wait()
            if folder != "-":
                shutil.rmtree(folder, ignore_errors=True)
            return 0
        *lines, commands = (commands + (data or b"")).split(b"\n")
        for line in lines:
            child.send_signal(_SIGNALS[line.decode()])
    return child.returncode if child.returncode >= 0 else 128 - child.returncode


def _die_with_parent() -> None:
    """Runs between fork and exec. Not on macOS, where end of file on the pipe has to do."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
