"""How much memory LMDB may hold for the stores that a worker writes to.

A transaction has a copy of each page that it changes in memory, at most one for each changed key,
and LMDB keeps that room for the next transaction until the store is closed. So a worker would come
to hold as much as all its stores together have on disk, where keys come in no order.
"""

from __future__ import annotations

PAGE_BYTES = 4096


class HeldPages:
    """Of one process; by the stores' folders. Not thread-safe."""

    def __init__(self) -> None:
        self._held: dict[str, int] = {}
        self._sum = 0

    def wrote(self, path: str, changes: int, file_bytes: int, most_bytes: int) -> list[str]:
        """Notes a transaction. Returns the stores that have to be closed, the fullest first, so
        that no more than ``most_bytes`` are held."""
        more = min(changes * PAGE_BYTES, file_bytes) - self._held.get(path, 0)
        if more <= 0:
            return []
        self._held[path] = self._held.get(path, 0) + more
        self._sum += more
        full: list[str] = []
        while self._sum > most_bytes:
            full.append(max(self._held, key=self._held.__getitem__))
            self._sum -= self._held.pop(full[-1])
        return full
