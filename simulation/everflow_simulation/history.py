"""Notes what happened: (virtual time, member, event). Printed on failure, compared for I8."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple


class Entry(NamedTuple):
    """One thing that happened; ``who`` is an instance, ``coordinator``, ``log`` or ``fault``."""

    at_ms: float
    who: str
    what: str

    def __str__(self) -> str:
        return f"{self.at_ms / 1000:10.3f} s  {self.who:<14} {self.what}"


@dataclass
class History:
    """The last ``keep`` entries, and a digest over all of them."""

    now: Callable[[], float]
    keep: int = 200_000
    count: int = 0
    entries: deque[Entry] = field(init=False)

    def __post_init__(self) -> None:
        self.entries = deque(maxlen=self.keep)
        self._digest = hashlib.sha256()

    def add(self, who: str, what: str) -> None:
        """Note something that happened now."""
        entry = Entry(self.now(), who, what)
        self.entries.append(entry)
        self.count += 1
        self._digest.update(f"{entry.at_ms!r}|{who}|{what}\n".encode())

    def digest(self) -> str:
        """Equal for equal histories, forgotten entries included."""
        return self._digest.hexdigest()

    def text(self, last: int | None = None) -> str:
        """The entries as lines; only the last ones if asked."""
        shown = list(self.entries) if last is None else list(self.entries)[-last:]
        left_out = self.count - len(shown)
        head = [f"... {left_out} earlier entries left out"] if left_out else []
        return "\n".join([*head, *map(str, shown)])

    def write(self, path: Path) -> None:
        """All kept entries into a file."""
        path.write_text(self.text() + "\n")
