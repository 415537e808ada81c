"""Room for connections: whoever holds one and asks nothing gives way to who comes.

Where one client could take all of them, it would keep out probes and whoever wants to know
(note 054): Kubernetes restarts what does not answer its probe.
"""

from __future__ import annotations

from typing import Protocol

MOST_CONNECTIONS = 512
SPARE = 64
"""Beyond them, for probes, where all of those are being answered."""


class Connection(Protocol):
    """What a room knows of a connection. ``address``: of the client's host."""

    @property
    def address(self) -> str: ...

    def waits_since(self) -> float | None:
        """Since when it is the client's turn to send or to read, on one clock for all of a room;
        None: it is being answered."""

    def give_way(self) -> None:
        """Close it, at once; `Room.left` may be called within it or later."""


class Room:
    """The connections of one server; on its event loop alone."""

    def __init__(self, most: int = MOST_CONNECTIONS, spare: int = SPARE) -> None:
        self._most, self._spare = most, spare
        self._of: dict[str, set[Connection]] = {}
        self._number = 0

    @property
    def full(self) -> bool:
        """More are here than there is room for, and all of them were being answered."""
        return self._number > self._most

    def came(self, one: Connection) -> bool:
        """Whether it may stay. Where there is no room the one that has waited for its client the
        longest is closed, of the address that has the most."""
        if self._number >= self._most:
            self._make_room()
        if self._number >= self._most + self._spare:
            return False
        self._of.setdefault(one.address, set()).add(one)
        self._number += 1
        return True

    def left(self, one: Connection) -> None:
        """It is closed; one that is not here is none of ours."""
        there = self._of.get(one.address, set())
        if one in there:
            there.remove(one)
            self._number -= 1
            if not there:
                del self._of[one.address]

    def _make_room(self) -> None:
        for there in sorted(self._of.values(), key=len, reverse=True):
            waiting = [(since, one) for one in there if (since := one.waits_since()) is not None]
            if waiting:
                _, one = min(waiting, key=lambda pair: pair[0])
                self.left(one)
                one.give_way()
                return
