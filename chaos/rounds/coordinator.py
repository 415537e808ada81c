"""Sees a broker whose coordinators do wrong by themselves, and restarts it.

Kafka 4.2, started again after a kill under load: one answer to a marker is an error that its
coordinator does not know ("Uncaught error in request completion"), and it never sends that marker
again. The transaction stays prepared, each fence of its id is told CONCURRENT_TRANSACTIONS, and no
client can do anything about it.

And its group coordinator, started again after a kill, may load the group's offsets in part and tell
old ones until it loads them again (note 064). The instances have to notice by themselves, and wait;
whether they did is in the results.

Both are the broker's, so they must not end a run of ours; and they must not hide one of our faults,
so nothing but these states is taken for them (note 048).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, TypeVar

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


class Forgotten(NamedTuple):
    """A partition of which the coordinator tells less than it once did, and the most it told."""

    topic: str
    partition: int
    committed: int


class CoordinatorStuckError(AssertionError):
    """A restart did not help: it is not the state that is known."""


State = TypeVar("State", bound=Hashable)


@dataclass
class Told:
    """The most that a coordinator has told of each partition of a group: pure."""

    _most: dict[tuple[str, int], int] = field(default_factory=dict)

    def forgotten(self, offsets: Mapping[tuple[str, int], int]) -> list[Forgotten]:
        """Those of which a look tells less than an earlier one did."""
        lower = [
            Forgotten(*tp, most) for tp, most in self._most.items() if offsets.get(tp, 0) < most
        ]
        self._most.update({tp: max(at, self._most.get(tp, 0)) for tp, at in offsets.items()})
        return sorted(lower)


@dataclass
class Stuck(Generic[State]):
    """Which states of a coordinator last for too long: pure. Times are monotonic seconds."""

    _since: dict[State, float] = field(default_factory=dict)
    _helped: set[State] = field(default_factory=set)

    def seen(self, decided: Collection[State], now_s: float) -> list[State]:
        """Those of a look that were in every look since `STUCK_S` ago. CoordinatorStuckError for
        one for which the broker was restarted already."""
        self._since = {one: self._since.get(one, now_s) for one in decided}
        lasting = [one for one, since in self._since.items() if now_s - since >= STUCK_S]
        stuck = sorted(lasting, key=str)
        again = self._helped.intersection(stuck)
        if again:
            raise CoordinatorStuckError(
                f"the same in a broker that was restarted for it: {min(again, key=str)}"
            )
        return stuck

    def restarted(self, stuck: Collection[State]) -> None:
        """The broker was, for these."""
        self._helped.update(stuck)
        self._since.clear()

    def helped(self, decided: Collection[State]) -> bool:
        """Whether none of these is one for which the broker was restarted."""
        return self._helped.isdisjoint(decided)


class CoordinatorWatch:
    """Of one broker and the application's group; `look` while something is waited for that should
    have come. Owned by one thread."""

    def __init__(
        self,
        broker: EmbeddedBroker,
        group: str,
        counted: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``counted``: told of each restart, in words."""
        self._broker, self._group, self._counted, self._clock = broker, group, counted, clock
        self._stuck: Stuck[Decided] = Stuck()
        self._told = Told()
        self._forgotten: Stuck[Forgotten] = Stuck()
        self._next_s = 0.0

    def look(self) -> None:
        """At most every `LOOK_EVERY_S`. Restarts the broker where it is stuck."""
        now_s = self._clock()
        if now_s < self._next_s or not self._broker.running:
            return
        self._next_s = now_s + LOOK_EVERY_S
        servers = self._broker.bootstrap_servers
        if (decided := decided_at(servers)) is not None:
            stuck = self._stuck.seen(decided, self._clock())
            told = ", ".join(one.transactional_id for one in stuck)
            self._restart(
                stuck, self._stuck, f"decided for {STUCK_S:.0f} s without markers: {told}"
            )
        if (offsets := committed_at(servers, self._group)) is not None:
            lost = self._forgotten.seen(self._told.forgotten(offsets), self._clock())
            told = ", ".join(f"{one.topic}-{one.partition} ({one.committed})" for one in lost)
            self._restart(lost, self._forgotten, f"forgotten committed offsets: {told}")

    def note(self) -> None:
        """All is well: what is told now is told from now on, or more."""
        offsets = committed_at(self._broker.bootstrap_servers, self._group)
        self._told.forgotten(offsets or {})

    def _restart(self, lasting: list[State], of: Stuck[State], told: str) -> None:
        if lasting:
            self._counted(told)
            self._broker.restart()
            of.restarted(lasting)

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


def committed_at(servers: str, group: str) -> dict[tuple[str, int], int] | None:
    """What the coordinator of a group tells of its offsets; None where it does not answer."""
    try:
        with _admin(servers) as admin:
            found = admin.list_group_offsets({group: None})[group]
    except client_errors.KafkaError:
        return None
    return {(tp.topic, tp.partition): int(one.offset) for tp, one in found.items()}


@contextmanager
def _admin(servers: str) -> Iterator[Any]:
    admin = KafkaAdminClient(
        bootstrap_servers=servers.split(","),
        request_timeout_ms=REQUEST_MS,
        bootstrap_timeout_ms=REQUEST_MS,
        client_id="chaos-coordinator",
    )
    try:
        yield admin
    finally:
        admin.close()


def _in_state(servers: str, states: Sequence[str]) -> list[Decided] | None:
    try:
        with _admin(servers) as admin:
            found = admin.list_transactions(state_filters=list(states))
            listed = [str(one.transactional_id) for several in found.values() for one in several]
            names = sorted(set(listed))
            described: dict[str, Any] = admin.describe_transactions(names) if names else {}
    except client_errors.KafkaError:
        return None
    return [
        Decided(name, one.producer_id, one.producer_epoch, one.transaction_start_time_ms)
        for name, one in described.items()
        if one.state.value in states
    ]
