"""A command or a program of everflow in a process group of its own, as under a terminal, and what
must not be left of it."""

from __future__ import annotations

import os
import pty
import re
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from everflow.testing import wait_until

_SCREEN_CODES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
START_S = 300.0
END_S = 30.0
NEVER_SHOWN = (
    "Traceback",
    "Exception ignored",
    "Py4J",
    "py4j",
    "KafkaTimeoutError",
    "org.apache",
    "incubator",
    "NativeCodeLoader",
    "log4j",
    "%3|",
    "kafka.",
)
"""What would be a traceback, a Java stack or a client's noise."""


class StopProcess:
    """``arguments`` of Python, run in ``folder``. Its temporary folder is its own, and short:
    sockets lie in it."""

    def __init__(
        self, arguments: Sequence[str], folder: Path, temporary: str, *, terminal: bool
    ) -> None:
        self.temporary = Path(temporary)
        self._printed = folder / f"printed-{os.path.basename(temporary)}"
        self._family: dict[int, psutil.Process] = {}
        self._controller = -1
        self._copying = threading.Thread(target=self._copy_screen, daemon=True)
        self._closing = threading.Event()
        environment = {
            **os.environ,
            "PYTHONUNBUFFERED": "1",
            "TMPDIR": temporary,
            "SPARK_LOCAL_DIRS": temporary,
        }
        command = [sys.executable, *arguments]
        if terminal:
            self._child = self._under_terminal(command, folder, environment)
        else:
            with self._printed.open("wb") as out:
                self._child = subprocess.Popen(
                    command,
                    cwd=folder,
                    stdout=out,
                    stderr=subprocess.STDOUT,
                    env=environment,
                    preexec_fn=_in_the_foreground,
                )

    def _under_terminal(
        self, command: list[str], folder: Path, environment: Mapping[str, str]
    ) -> subprocess.Popen[bytes]:
        self._controller, screen = pty.openpty()
        take = (
            f"import fcntl, os, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); "
            f"os.execv({command[0]!r}, {command!r})"
        )
        child = subprocess.Popen(
            [sys.executable, "-c", take],
            cwd=folder,
            stdin=screen,
            stdout=screen,
            stderr=screen,
            env={**environment, "COLUMNS": "400"},
            preexec_fn=_in_the_foreground,
        )
        os.close(screen)
        self._copying.start()
        return child

    def _copy_screen(self) -> None:
        with self._printed.open("ab", buffering=0) as out, suppress(OSError):
            while not self._closing.is_set() and (data := os.read(self._controller, 65_536)):
                out.write(data)

    @property
    def printed(self) -> str:
        """Standard output and error so far."""
        text = self._printed.read_text(errors="replace") if self._printed.exists() else ""
        return _SCREEN_CODES.sub("", text.replace("\r", "\n"))

    def until(self, what: str | Callable[[], bool], timeout_s: float = START_S) -> None:
        """Wait for a text, or a condition; it must not end meanwhile."""

        def come() -> bool:
            assert self._child.poll() is None, f"it has ended:\n{self.printed}"
            self.family()
            return what in self.printed if isinstance(what, str) else what()

        wait_until(come, timeout_s, str(what), lambda: [self.printed])

    def family(self) -> list[psutil.Process]:
        """All processes below it, also those seen earlier."""
        with suppress(psutil.NoSuchProcess):
            for process in psutil.Process(self._child.pid).children(recursive=True):
                self._family.setdefault(process.pid, process)
        return list(self._family.values())

    def signal(self, number: int) -> None:
        """To the whole process group, as a terminal or a supervisor does."""
        self.family()
        os.killpg(self._child.pid, number)

    def type(self, keys: bytes) -> None:
        self.family()
        os.write(self._controller, keys)

    def hang_up(self) -> None:
        """Close its terminal; whoever reads it lets go at the next output, which a live progress
        line is."""
        self.family()
        self._closing.set()
        self._copying.join(END_S)
        os.close(self._controller)
        self._controller = -1

    def kill(self) -> None:
        self.family()
        self._child.kill()
        self._child.wait()

    def freeze(self) -> None:
        """Stop the process alone; its connections stay open and nobody answers for it."""
        self._child.send_signal(signal.SIGSTOP)

    def ended(self, timeout_s: float = END_S) -> int:
        wait_until(
            lambda: self._child.poll() is not None, timeout_s, "its end", lambda: [self.printed]
        )
        return int(self._child.returncode)

    def left(self) -> list[str]:
        """Processes, and files in its temporary folder."""
        _, alive = psutil.wait_procs(
            self.family(), timeout=1
        )  # the launcher of a JVM ends by itself
        running = [str(found) for found in alive if not _is_zombie(found)]
        return running + [path.name for path in self.temporary.iterdir()]

    def close(self) -> None:
        self.family()
        self._child.kill()
        self._child.wait()
        for process in self._family.values():
            with suppress(psutil.NoSuchProcess):
                process.kill()
        if self._controller >= 0:
            os.close(self._controller)


def _is_zombie(found: psutil.Process) -> bool:
    """It has ended; who adopted it has not looked yet."""
    try:
        return bool(found.status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


def _in_the_foreground() -> None:
    """A session of its own, with signals as a shell leaves them to a command in the foreground,
    however these tests were run."""
    os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


@contextmanager
def process(
    arguments: Sequence[str], folder: Path, *, terminal: bool = False, temporary: str | None = None
) -> Iterator[StopProcess]:
    """A started process; killed at the end with all it started. ``temporary``: its temporary
    folder, else one of its own."""
    with tempfile.TemporaryDirectory(prefix="efs-", ignore_cleanup_errors=True) as own:
        found = StopProcess(arguments, folder, temporary or own, terminal=terminal)
        try:
            yield found
        finally:
            found.close()


def everflow(*arguments: str) -> list[str]:
    """Arguments of Python for the command."""
    return ["-c", "from everflow.cli import main; main()", *arguments]
