"""Prepares Columns in the JVM when a worker first asks for them (note 016).

An Arrow twin seldom needs what it stands for: planning and compiling that at every start would cost
two seconds, for nothing in most programs. So a worker that needs it asks at a door of the driver.
"""

from __future__ import annotations

import logging
import socket
import struct
import threading
from collections.abc import Callable

from everflow.sockets import socket_folder_of_process

log = logging.getLogger("everflow.spark")

_NUMBER = struct.Struct(">i")
_NUMBERS = struct.Struct(">ii")
_FAILED = -1
_lock = threading.Lock()
_door: _Door | None = None

Prepare = Callable[[], tuple[str, int]]
"""Prepares, and gives the socket of the service and the number there."""


class _Door:
    """One per process. Question: int32 ticket. Answer: int32 number, int32 length and the socket's
    path; or -1, int32 length and why it cannot be had. All integers are big-endian."""

    def __init__(self) -> None:
        self.path = str(socket_folder_of_process() / "d")
        self._lock = threading.Lock()
        self._wanted: list[Prepare] = []
        self._prepared: dict[int, tuple[str, int]] = {}
        self._listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listening.bind(self.path)
        self._listening.listen()
        threading.Thread(target=self._serve, name="everflow-columns-door", daemon=True).start()

    def add(self, prepare: Prepare) -> int:
        with self._lock:
            self._wanted.append(prepare)
            return len(self._wanted) - 1

    def _serve(self) -> None:
        while True:
            asking, _ = self._listening.accept()
            with asking:
                try:
                    self._answer(asking)
                except (OSError, struct.error) as error:
                    log.debug("a worker has hung up at the door: %s", error)

    def _answer(self, asking: socket.socket) -> None:
        (ticket,) = _NUMBER.unpack(asking.recv(_NUMBER.size, socket.MSG_WAITALL))
        try:
            text, number = self._redeemed(ticket)
        except Exception as error:
            log.warning("Columns could not be prepared", exc_info=True)
            text, number = f"{type(error).__name__}: {error}", _FAILED
        said = text.encode()
        asking.sendall(_NUMBERS.pack(number, len(said)) + said)

    def _redeemed(self, ticket: int) -> tuple[str, int]:
        if ticket not in self._prepared:
            with self._lock:
                prepare = self._wanted[ticket]
            log.info("Arrow leaves Columns to Spark for the first time: preparing them")
            self._prepared[ticket] = prepare()
        return self._prepared[ticket]


def prepared_later(prepare: Prepare) -> tuple[str, int]:
    """The door's path, and the ticket for which a worker gets there what ``prepare`` gives. It is
    called once at most, by the door's thread. Any thread; lasts as long as the process."""
    global _door
    with _lock:
        _door = _door or _Door()
        return _door.path, _door.add(prepare)
