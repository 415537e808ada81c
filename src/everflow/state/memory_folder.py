"""Where stores in memory lie: a folder of a file system in memory, for one state folder.

    <state.memory.dir>/everflow-<user id>/<digest of the state folder>/<task>/<store>-<n>/

It belongs to whoever holds the state folder's lock. It is emptied when that one begins, as what a
killed process left is not to be found again, and when it ends (design note 039).
"""

from __future__ import annotations

import hashlib
import os
import shutil
from dataclasses import dataclass, field
from pathlib import Path

from everflow.errors import ConfigError

MEMORY_DIR = "/dev/shm"
"""The file system in memory that every Linux has."""
_PREFIX = "everflow-"
_CURE = (
    "set state.memory.dir to a folder of a file system in memory that this user may write to, or "
    "leave in_memory=True out"
)


@dataclass(frozen=True)
class MemoryFolder:
    """``root``: ``state.memory.dir``; ``stores``: the names of the stores that lie in memory."""

    root: Path
    stores: frozenset[str] = field(default_factory=frozenset)

    def place(self, state_folder: Path) -> Path:
        """The folder of one state folder's stores."""
        digest = hashlib.sha256(os.fsencode(state_folder)).hexdigest()[:16]
        return self.root / f"{_PREFIX}{os.getuid()}" / digest

    def emptied(self, state_folder: Path) -> Path:
        """The folder, with nothing in it; whoever calls it holds the state folder. ConfigError
        where there can be no such folder."""
        place = self.place(state_folder)
        shutil.rmtree(place, ignore_errors=True)
        if not self.stores:
            return place
        named = ", ".join(sorted(self.stores))
        if not self.root.is_dir():
            raise ConfigError(
                f"state.memory.dir: there is no folder {self.root}, and stores of this program are "
                f"to lie in memory ({named}); {_CURE}."
            )
        try:
            place.parent.mkdir(mode=0o700, exist_ok=True)
            if place.parent.stat().st_uid != os.getuid():
                raise PermissionError(f"{place.parent} belongs to another user")
            place.mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            raise ConfigError(
                f"state.memory.dir: {self.root} cannot hold the stores in memory ({named}): "
                f"{error}; {_CURE}."
            ) from error
        return place


NOTHING_IN_MEMORY = MemoryFolder(Path(MEMORY_DIR))
"""Of a program without such stores."""


def lies_in_memory(path: Path) -> bool:
    """Whether a store's folder is that of a store in memory."""
    return f"{_PREFIX}{os.getuid()}" in path.parts
