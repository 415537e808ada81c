"""Starts, hears and ends the process of `everflow_demo.instance`; leaves nothing of it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from everflow.errors import FatalError
from everflow.instance.describe import TaskStatus
from everflow.records import TaskId
from everflow_demo.instance import STOP, decode

_END_S = 20.0
_TAIL_LINES = 15


class InstanceProcess:
    """An instance in a process of its own, from `__enter__` on. Used by one thread.

    Its end is that of its standard output: Spark's JVM and everything else that it started share
    it.
    """

    def __init__(self, settings: Mapping[str, Any], folder: Path) -> None:
        self.state = ""
        self.tasks: dict[TaskId, TaskStatus] = {}
        """As it said last."""
        self._settings = settings
        self._folder = folder
        self._told_to_stop = False
        self._process: subprocess.Popen[str] | None = None
        self._reader = threading.Thread(target=self._listen, name="demo-instance", daemon=True)

    def __enter__(self) -> InstanceProcess:
        self._folder.mkdir(parents=True)
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "everflow_demo.instance", json.dumps(dict(self._settings))],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                # What it keeps outside of its state is deleted with this folder, even if it is
                # killed.
                env={
                    **os.environ,
                    "TMPDIR": str(self._folder),
                    "SPARK_LOCAL_DIRS": str(self._folder),
                },
                # Ctrl-C is for the demo, which then ends this process in its turn
                start_new_session=True,
            )
        self._reader.start()
        return self

    def __exit__(self, *_: object) -> None:
        process = self._process
        if process is None:
            return
        with suppress(OSError):
            assert process.stdin is not None
            process.stdin.close()
        self._reader.join(_END_S)
        if self._reader.is_alive():
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            self._reader.join(_END_S)
        process.wait(_END_S)

    def stop(self) -> None:
        """Tell it to hand over, leave and end; returns at once, `ended` says when."""
        assert self._process is not None
        assert self._process.stdin is not None
        self._told_to_stop = True
        with suppress(OSError):
            self._process.stdin.write(STOP + "\n")
            self._process.stdin.flush()

    @property
    def ended(self) -> bool:
        """Whether it has ended as it was told. Raises FatalError if it failed, or ended by
        itself."""
        assert self._process is not None
        if self._reader.is_alive():
            return False
        code = self._process.wait(_END_S)
        if code == 0 and self._told_to_stop:
            return True
        tail = self._log.read_text(errors="replace").splitlines()[-_TAIL_LINES:]
        raise FatalError("\n".join([f"an instance of the demo ended with exit code {code}", *tail]))

    @property
    def _log(self) -> Path:
        return self._folder / "instance.log"

    def _listen(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        for line in self._process.stdout:
            found = decode(line)
            if found is not None:
                self.state, self.tasks = found
