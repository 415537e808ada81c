"""What this process has held at the most since a moment: memory that no file backs.

The kernel keeps the high-water mark, of which the pages of files (stores above all, and shared
memory) are taken off: exact to the pages that were mapped since the mark was reached. Where there
is no Linux, nothing is known.
"""

from __future__ import annotations

import re
from pathlib import Path

from everflow.memory.batch_memory import Taken

WORTH_LOOKING_BYTES = 1 << 20
"""Below so many bytes of records a batch tells nothing, and looking costs 0.1 ms."""
_FIELD = re.compile(rb"^(VmHWM|RssAnon|RssFile|RssShmem):\s+(\d+) kB", re.MULTILINE)
_RESET_MARK = "5"


class PeakMemory:
    """Of one process, by its main thread. ``folder``: its own in ``/proc``."""

    def __init__(self, folder: Path = Path("/proc/self")) -> None:
        self._folder = folder
        self._idle: int | None = None
        self._before = self._peak = 0
        self._watched = False

    def settle(self) -> None:
        """The process holds no records now."""
        held = self._held()
        if held is not None:
            self._idle = held if self._idle is None else min(self._idle, held)

    def begin(self, raw_bytes: int) -> None:
        """A batch of so many bytes was read."""
        self._watched = False
        if raw_bytes < WORTH_LOOKING_BYTES or self._idle is None:
            return
        held = self._held()
        if held is not None:
            self._before = self._peak = held
            self._watched = self._reset()

    def look(self) -> Taken | None:
        """What was held since `begin`, at the most; None where that is not known. Called before
        what maps files, and behind it."""
        if not self._watched or self._idle is None:
            return None
        found = self._fields()
        files = found.get(b"RssFile", 0) + found.get(b"RssShmem", 0)
        marked = found.get(b"VmHWM", 0) - files
        self._peak = max(self._peak, marked, found.get(b"RssAnon", 0))
        self._reset()
        return Taken(self._idle, self._before, self._peak)

    def _held(self) -> int | None:
        return self._fields().get(b"RssAnon")

    def _fields(self) -> dict[bytes, int]:
        try:
            text = (self._folder / "status").read_bytes()
        except OSError:
            return {}
        return {name: int(kib) << 10 for name, kib in _FIELD.findall(text)}

    def _reset(self) -> bool:
        try:
            (self._folder / "clear_refs").write_text(_RESET_MARK)
        except OSError:
            return False
        return True


_of_process: dict[int, PeakMemory] = {}


def of_this_process(pid: int) -> PeakMemory:
    """The one of the process, whose number is ``pid``: a fork has another."""
    if pid not in _of_process:
        _of_process.clear()
        _of_process[pid] = PeakMemory()
    return _of_process[pid]
