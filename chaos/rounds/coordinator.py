"""Sees a broker whose transaction coordinator does not send its markers, and restarts it.

Kafka 4.2, started again after a kill under load: one answer to a marker is an error that its
coordinator does not know ("Uncaught error in request completion"), and it never sends that marker
again. The transaction stays prepared, each fence of its id is told CONCURRENT_TRANSACTIONS, and no
client can do anything about it. It is the broker's, so it must not end a run of ours; and it must
not hide one of our faults, so nothing but that state is taken for it (note 048).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import kafka.errors as client_errors
from kafka import KafkaAdminClient

from everflow.testing.broker import EmbeddedBroker

DECIDED = ("PrepareCommit", "PrepareAbort", "PrepareEpochFence")
"""The outcome is in the coordinator's log: what is left is its markers, and nobody else's."""
LOOK_EVERY_S = 2.0
STUCK_S = 30.0
"""A coordinator that works sends them within milliseconds; one that has just started, within
seconds."""
REQUEST_MS = 5_000


class Decided(NamedTuple):
    """A transaction whose outcome is decided and whose markers are not written yet."""

    transactional_id: str
    producer_id: int
    epoch: int
    began_ms: int


class CoordinatorStuckError(AssertionError):
    """A restart did not help: it is not the state that is known."""


@dataclass
class Stuck:
    """Which transactions have been decided for too long: pure. Times are monotonic seconds."""

    _since: dict[Decided, float] = field(default_factory=dict)
    _helped: set[Decided] = field(default_factory=set)

    def seen(self, decided: Collection[Decided], now_s: float) -> list[Decided]:
        """Those of a look that were in every look since `STUCK_S` ago. CoordinatorStuckError for
        one for which the broker was restarted already."""
        self._since = {one: self._since.get(one, now_s) for one in decided}
        stuck = sorted(one for one, since in self._since.items() if now_s - since >= STUCK_S)
        again = self._helped.intersection(stuck)
        if again:
            raise CoordinatorStuckError(
                f"decided, and not completed by a broker that was restarted for it: {min(again)}"
            )
        return stuck

    def restarted(self, stuck: Collection[Decided]) -> None:
        """The broker was, for these."""
        self._helped.update(stuck)
        self._since.clear()

    def helped(self, decided: Collection[Decided]) -> bool:
        """Whether none of these is one for which the broker was restarted."""
        return self._helped.isdisjoint(decided)


class CoordinatorWatch:
    """Of one broker; `look` while something is waited for that should have come. Owned by one
    thread."""

    def __init__(
        self,
        broker: EmbeddedBroker,
        counted: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``counted``: told of each restart, in words."""
        self._broker, self._counted, self._clock = broker, counted, clock
        self._stuck = Stuck()
        self._next_s = 0.0

    def look(self) -> None:
        """At most every `LOOK_EVERY_S`. Restarts the broker where it is stuck."""
        now_s = self._clock()
        if now_s < self._next_s or not self._broker.running:
            return
        self._next_s = now_s + LOOK_EVERY_S
        decided = decided_at(self._broker.bootstrap_servers)
        if decided is None:
            return
        stuck = self._stuck.seen(decided, self._clock())
        if stuck:
            told = ", ".join(one.transactional_id for one in stuck)
            self._counted(f"decided for {STUCK_S:.0f} s without markers: {told}")
            self._broker.restart()
            self._stuck.restarted(stuck)

    def helped(self) -> bool:
        """At the end: whether what it was restarted for is completed."""
        return self._stuck.helped(decided_at(self._broker.bootstrap_servers) or ())


def left_open(servers: str, now_ms: float) -> list[str]:
    """What is to be said of transactions that nobody has ended for `STUCK_S`: no batch takes so
    long, so whoever began one is gone, and it holds up whoever reads behind it. Empty where the
    coordinators do not answer, too."""
    return [
        f"the transaction of {one.transactional_id} is open for {open_ms / 1000:.0f} s: nobody has "
        "fenced whoever began it"
        for one in _in_state(servers, ("Ongoing",)) or ()
        if (open_ms := now_ms - one.began_ms) >= STUCK_S * 1000
    ]


def decided_at(servers: str) -> list[Decided] | None:
    """What the coordinators have decided and not completed; None where they do not answer."""
    return _in_state(servers, DECIDED)


def _in_state(servers: str, states: Sequence[str]) -> list[Decided] | None:
    try:
        admin = KafkaAdminClient(
            bootstrap_servers=servers.split(","),
            request_timeout_ms=REQUEST_MS,
            bootstrap_timeout_ms=REQUEST_MS,
            client_id="chaos-coordinator",
        )
    except client_errors.KafkaError:
        return None
    try:
        found = admin.list_transactions(state_filters=list(states))
        names = sorted({str(one.transactional_id) for listed in found.values() for one in listed})
        described: dict[str, Any] = admin.describe_transactions(names) if names else {}
    except client_errors.KafkaError:
        return None
    finally:
        admin.close()
    return [
        Decided(name, one.producer_id, one.producer_epoch, one.transaction_start_time_ms)
        for name, one in described.items()
        if one.state.value in states
    ]
