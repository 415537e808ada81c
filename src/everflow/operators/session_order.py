"""The live sessions of one key in order of time (pure).

In blocks: a key may have 100,000 of them, and one list would move all that lie behind a place for
each that comes there.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from operator import itemgetter

MOST = 1_000
"""Sessions of a block."""
_last = itemgetter(-1)


class SessionOrder:
    """Numbers of sessions by their ends. They neither overlap nor touch, so their starts have the
    same order. A place is a block and a place in it; a change makes the places behind it invalid.
    """

    __slots__ = ("ends", "sessions")

    def __init__(self) -> None:
        self.ends: list[list[int]] = [[]]
        self.sessions: list[list[int]] = [[]]

    def first_from(self, end: int) -> tuple[int, int]:
        """The place of the first session that ends at ``end`` or later."""
        blocks = self.ends
        if len(blocks) == 1:
            return 0, bisect_left(blocks[0], end)
        block = bisect_left(blocks, end, key=_last)
        if block == len(blocks):
            return block - 1, len(blocks[-1])
        return block, bisect_left(blocks[block], end)

    def following(self, block: int, at: int) -> Iterator[int]:
        """The sessions from a place on."""
        yield from self.sessions[block][at:]
        for further in self.sessions[block + 1 :]:
            yield from further

    def insert(self, block: int, at: int, session: int, end: int) -> None:
        ends, sessions = self.ends[block], self.sessions[block]
        ends.insert(at, end)
        sessions.insert(at, session)
        if len(ends) > MOST:
            half = len(ends) // 2
            self.ends[block : block + 1] = [ends[:half], ends[half:]]
            self.sessions[block : block + 1] = [sessions[:half], sessions[half:]]

    def append(self, session: int, end: int) -> None:
        self.insert(len(self.ends) - 1, len(self.ends[-1]), session, end)

    def replace(self, block: int, at: int, count: int, session: int, end: int) -> None:
        """One session instead of ``count`` of them from a place on."""
        self.ends[block][at], self.sessions[block][at] = end, session
        self._delete(block, at + 1, count - 1)

    def remove(self, session: int, end: int) -> None:
        """Take out a session that is there and ends at ``end``; others may end then, too."""
        block, at = self.first_from(end)
        for found in self.following(block, at):
            if at == len(self.ends[block]):
                block, at = block + 1, 0
            if found == session:
                self._delete(block, at, 1)
                return
            at += 1

    def _delete(self, block: int, at: int, count: int) -> None:
        while count:
            ends, sessions = self.ends[block], self.sessions[block]
            here = min(count, len(ends) - at)
            del ends[at : at + here], sessions[at : at + here]
            count -= here
            if ends or len(self.ends) == 1:
                block += 1
            else:
                del self.ends[block], self.sessions[block]
            at = 0

    def __iter__(self) -> Iterator[int]:
        return self.following(0, 0)
