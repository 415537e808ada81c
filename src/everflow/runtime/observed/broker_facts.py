"""What only the brokers know of an instance's transactions, asked while somebody looks (note 054).

A look asks nobody (note 049): a thread of its own asks now and then, and without an answer the last
one holds, and says how old it is.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Collection, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from everflow.clock import Clock
from everflow.kafka.admin import ClusterAdmin
from everflow.kafka.writing.transaction import TransactionState, TransactionStates
from everflow.observe.observation import ObservedWriter, StableLag
from everflow.records import TopicPartition

log = logging.getLogger("everflow")

ASK_S = 5.0
WATCHED_MS = 70_000.0
"""Who has looked within this time looks again: once a minute is Prometheus' own interval."""


class BrokerPorts(Protocol):
    """Its methods block, raise EverflowError, and belong to one thread."""

    def written(self, asked: Collection[TopicPartition]) -> Mapping[TopicPartition, int]:
        """Where logs end."""

    def stable(self, asked: Collection[TopicPartition]) -> Mapping[TopicPartition, int]:
        """Up to where readers of committed records see them."""

    def states(self, ids: Collection[str]) -> Mapping[str, TransactionState]:
        """Of transactional ids."""

    def close(self) -> None:
        """Connections that are not used for a while."""


class Standing(NamedTuple):
    """The last stable offset of a partition, so many records before its end, and since when it has
    stood there (monotonic ms)."""

    stable: int
    records: int
    since_ms: float


def standing(
    before: Mapping[TopicPartition, Standing],
    written: Mapping[TopicPartition, int],
    stable: Mapping[TopicPartition, int],
    now_ms: float,
) -> dict[TopicPartition, Standing]:
    """Of the partitions of which both are known. ``written`` was asked for first: what came in
    between counts as stable, not as held back. Pure."""
    found = {}
    for tp in written.keys() & stable.keys():
        records = max(0, written[tp] - stable[tp])
        old = before.get(tp)
        stands = old is not None and records and old.records and old.stable == stable[tp]
        since_ms = old.since_ms if old is not None and stands else now_ms
        found[tp] = Standing(stable[tp], records, since_ms)
    return found


@dataclass(kw_only=True)
class BrokerFacts:
    """It asks about ``inputs`` and ``ids``, transactional id -> stream thread, as they are then.
    `run` is a thread of its own; the others may be called from any."""

    ports: BrokerPorts
    inputs: Callable[[], Collection[TopicPartition]]
    ids: Callable[[], Mapping[str, int]]
    clock: Clock
    _standing: Mapping[TopicPartition, Standing] = field(default_factory=dict)
    _states: Mapping[str, TransactionState] = field(default_factory=dict)
    _asked_ms: float = 0.0
    """When the states were told, of the wall clock, as a transaction's begin is."""
    _told_ms: float | None = None
    _watched_ms: float = -math.inf

    def watched(self) -> None:
        """Somebody looks."""
        self._watched_ms = self.clock.monotonic_ms()

    def told_s(self, now_ms: float) -> float | None:
        """How old the answers are; None: there is none."""
        return None if self._told_ms is None else max(0.0, now_ms - self._told_ms) / 1000

    def held_back(self) -> dict[tuple[str, int], StableLag]:
        """By topic and partition; for how long when it was asked for."""
        until_ms = self._told_ms or 0.0
        return {
            (tp.topic, tp.partition): StableLag(
                one.records, one.stable, (until_ms - one.since_ms) / 1000 if one.records else 0.0
            )
            for tp, one in self._standing.items()
        }

    def writers(self) -> list[ObservedWriter]:
        """In the order of the threads. For how long a transaction was open when it was asked for:
        nobody knows whether it is still."""
        found = []
        for name, thread in sorted(self.ids().items(), key=lambda item: item[1]):
            told = self._states.get(name)
            if told is None:
                found.append(ObservedWriter(thread=thread, transactional_id=name))
                continue
            open_ms = 0 if told.since_ms is None else self._asked_ms - told.since_ms
            found.append(
                ObservedWriter(
                    thread=thread,
                    transactional_id=name,
                    state=told.state,
                    open_s=max(0, open_ms) / 1000,
                )
            )
        return found

    def run(self, stop: threading.Event) -> None:
        """Ask now and then, while somebody looks, until ``stop``."""
        with closing(self.ports):
            while not stop.wait(ASK_S):
                if self.clock.monotonic_ms() - self._watched_ms > WATCHED_MS:
                    self.ports.close()
                    continue
                try:
                    self.ask()
                except Exception:  # the brokers are away, or the instance ends
                    log.debug("The brokers were not asked for transactions", exc_info=True)

    def ask(self) -> None:
        """Once, now. Raises EverflowError."""
        inputs, ids = self.inputs(), self.ids()
        written = self.ports.written(inputs) if inputs else {}
        stable = self.ports.stable(list(written)) if written else {}
        now_ms = self.clock.monotonic_ms()
        self._standing = standing(self._standing, written, stable, now_ms)
        # Before the rest: brokers older than 3.0 do not tell it.
        self._told_ms = now_ms
        states = self.ports.states(list(ids)) if ids else {}
        self._asked_ms, self._states = self.clock.now_ms(), states


class ClusterBrokers:
    """`BrokerPorts` of a cluster."""

    def __init__(self, admin: ClusterAdmin, producer: Mapping[str, Any]) -> None:
        """``producer``: its settings."""
        self._admin = admin
        self._states = TransactionStates(producer)

    def written(self, asked: Collection[TopicPartition]) -> Mapping[TopicPartition, int]:
        """See `BrokerPorts`."""
        return self._admin.known_ends(asked, "read_uncommitted")

    def stable(self, asked: Collection[TopicPartition]) -> Mapping[TopicPartition, int]:
        """See `BrokerPorts`."""
        return self._admin.known_ends(asked, "read_committed")

    def states(self, ids: Collection[str]) -> Mapping[str, TransactionState]:
        """See `BrokerPorts`."""
        return self._states.of(ids)

    def close(self) -> None:
        """See `BrokerPorts`."""
        self._states.close()
