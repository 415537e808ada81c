"""Turns standard error of the JVM and the workers into lines of `everflow.logs.SPARK_OUTPUT`.

They inherit the descriptor of the process that starts them, and nothing in Spark's settings covers
what the JVM says before its logging is set up. So the JVM is launched with a pipe.
"""

from __future__ import annotations

import logging
import os
import threading
from collections import deque

from everflow.logs import SPARK_OUTPUT

log = logging.getLogger(SPARK_OUTPUT)
TAIL_LINES = 15
_READ_BYTES = 65_536


class JvmOutput:
    """One pipe: give ``write_end`` to the process that is launched, then `launched`. A thread reads
    until nobody can write."""

    def __init__(self) -> None:
        self._read_end, self.write_end = os.pipe()
        self._tail: deque[str] = deque(maxlen=TAIL_LINES)
        self._thread = threading.Thread(
            target=self._read, name="everflow-spark-output", daemon=True
        )
        self._open = True
        self._thread.start()

    def launched(self) -> None:
        """This process writes nothing itself. Idempotent."""
        if self._open:
            self._open = False
            os.close(self.write_end)

    def tail(self, wait_s: float = 1.0) -> list[str]:
        """The last lines of a process that has ended."""
        self._thread.join(wait_s)
        return list(self._tail)

    def _read(self) -> None:
        # Not through a file object: its lock, held while waiting, would be missed when the
        # interpreter ends.
        rest = b""
        while data := os.read(self._read_end, _READ_BYTES):
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                self._say(line)
        if rest:
            self._say(rest)
        os.close(self._read_end)

    def _say(self, line: bytes) -> None:
        text = line.decode(errors="replace").rstrip()
        if text:
            self._tail.append(text)
            log.debug("%s", text)
