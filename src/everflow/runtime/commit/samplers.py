"""The driver's side of samples: which workers wait to be asked, and what they answer (note 059)."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from everflow.errors import EverflowError, RetriableError

LATE_S = 20.0
"""A worker that lets nobody else run for so long (C code) has no answer."""


@dataclass(frozen=True, eq=False)
class WaitingWorker:
    """A worker that waits for questions at the other end of a connection."""

    pid: int
    connection: socket.socket

    def send(self, question: bytes) -> None:
        """Raises OSError where it is gone."""
        self.connection.sendall(question)

    def hang_up(self) -> None:
        """It waits here no longer."""
        with suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)


class Samplers:
    """Of one instance. Any thread may call; `sample` blocks. It is the page's
    `WorkerDesk`."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._slots: dict[int, str] = {}
        self._waiting: dict[int, WaitingWorker] = {}
        self._number = 0
        self._answers: dict[int, Mapping[str, Any]] = {}

    # --- what the gate hears ---------------------------------------------------------------------

    def serves(self, pid: int, slot: str) -> None:
        """A worker says which hop of which thread it runs at present."""
        with self._changed:
            if self._slots.get(pid) != slot:
                others = {p: s for p, s in self._slots.items() if s != slot}
                self._slots = {**others, pid: slot}

    def waits(self, worker: WaitingWorker) -> None:
        """A worker waits for questions."""
        with self._changed:
            self._waiting[worker.pid] = worker

    def told(self, number: int, answer: Mapping[str, Any]) -> None:
        """A worker has answered."""
        with self._changed:
            if number == self._number:  # who asked earlier has given up
                self._answers[number] = answer
                self._changed.notify_all()

    def gone(self, worker: WaitingWorker) -> None:
        """It waits no longer."""
        with self._changed:
            if self._waiting.get(worker.pid) is worker:
                del self._waiting[worker.pid]
                self._slots.pop(worker.pid, None)
                self._changed.notify_all()

    def close(self) -> None:
        """Nobody is asked any more: Spark may use the workers for others."""
        with self._changed:
            waiting = list(self._waiting.values())
        for worker in waiting:
            worker.hang_up()

    # --- what is asked ---------------------------------------------------------------------------

    def workers(self) -> dict[str, int]:
        """Slot (``t0-1``: the second hop of stream thread 0) -> process that can be asked."""
        with self._changed:
            return {slot: pid for pid, slot in self._slots.items() if pid in self._waiting}

    def sample(self, worker: str, seconds: float) -> Mapping[str, Any]:
        """What the worker of a slot runs, for so long from now on (`StackCounts.told`). One caller
        at a time. EverflowError where it does not exist; RetriableError where it ended meanwhile,
        or does not answer."""
        pid = self.workers().get(worker)
        with self._changed:
            waiting = None if pid is None else self._waiting.get(pid)
            if waiting is None:
                raise EverflowError(
                    f"no worker {worker} can be asked: it may just have ended. There are: "
                    f"{', '.join(sorted(self.workers())) or 'none'}"
                )
            self._number += 1
            number = self._number
        question = {"number": number, "seconds": seconds}
        with suppress(OSError):  # it is gone, which its handler at the gate tells
            waiting.send(json.dumps(question).encode() + b"\n")
        with self._changed:
            self._changed.wait_for(
                lambda: number in self._answers or self._waiting.get(waiting.pid) is not waiting,
                seconds + LATE_S,
            )
            answer = self._answers.pop(number, None)
        if answer is None:
            raise RetriableError(
                f"worker {worker} (process {pid}) has ended meanwhile, or runs code that lets no "
                f"other thread run for {LATE_S:.0f} s"
            )
        return answer
