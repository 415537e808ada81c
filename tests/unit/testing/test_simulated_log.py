"""Virtual time, fibers, the simulated log, and a coordinator that is the broker's (note 064)."""

import threading
from random import Random

import pytest

from everflow.assignment.cluster_state import AssignmentRules
from everflow.errors import RetriableError
from everflow.instance.tasks.recovery import CommittedLowerBounds
from everflow.records import CommittedOffset, TopicPartition
from everflow.worker.crash_points import OFFSETS_SENT
from everflow_simulation.checks import InvariantError
from everflow_simulation.group_coordinator import (
    Code,
    GroupCoordinator,
    GroupState,
    JoinReply,
    JoinRequest,
    SyncReply,
)
from everflow_simulation.history import History
from everflow_simulation.log import FencedError, Fold, SimulatedLog, fold_of
from everflow_simulation.scheduler import Process, Scheduler, SimulatedClock, SimulationError
from everflow_simulation.settings import SimulatedSubTopology, SimulationSettings
from everflow_simulation.simulation import Simulation

INPUT, CHANGELOG = TopicPartition("input", 0), TopicPartition("changelog", 0)
NOBODY = (-1, "", None)


class Cluster:
    def __init__(self) -> None:
        self.scheduler = Scheduler()
        history = History(lambda: self.scheduler.now_ms)
        self.log = SimulatedLog(
            scheduler=self.scheduler,
            history=history,
            group=GroupCoordinator(scheduler=self.scheduler, history=history),
            random=Random(1),
        )

    def write(self, epoch: int, records: int = 5) -> None:
        self.log.begin("id", epoch, "w", 10_000.0)
        self.log.write("id", epoch, CHANGELOG, records, {INPUT: fold_of(0, records)}, "b1")
        self.log.send_offsets(
            "id", epoch, {INPUT: CommittedOffset(records, "m")}, {INPUT: (0, records)}, NOBODY
        )


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


def test_a_fold_tells_lost_and_doubled_records() -> None:
    assert fold_of(0, 10) == Fold().plus(0, 4).plus(4, 10)
    assert Fold().plus(0, 4).plus(5, 10).plus(0, 1) != fold_of(0, 10)
    assert fold_of(0, 5) == Fold(5, 0 + 1 + 2 + 3 + 4, 0 + 1 + 4 + 9 + 16)


def test_readers_see_a_transaction_when_its_markers_have_landed(cluster: Cluster) -> None:
    epoch = cluster.log.init_transactions("id")
    cluster.write(epoch)
    assert cluster.log.ends([CHANGELOG]) == {CHANGELOG: 5}
    assert cluster.log.stable_ends([CHANGELOG]) == {CHANGELOG: 0}
    cluster.log.commit("id", epoch)
    with pytest.raises(RetriableError, match="pending"):
        cluster.log.stable_committed([INPUT])
    with pytest.raises(RetriableError, match="CONCURRENT"):
        cluster.log.begin("id", epoch, "w", 10_000.0)
    cluster.scheduler.run_until(100.0)
    assert cluster.log.stable_ends([CHANGELOG]) == {CHANGELOG: 6}
    assert cluster.log.stable_committed([INPUT]) == {INPUT: CommittedOffset(5, "m")}
    assert cluster.log.read(CHANGELOG, 0, 6) == ({INPUT: fold_of(0, 5)}, "b1")
    assert cluster.log.read(CHANGELOG, 0, 4) == (None, ""), "read in part only"
    assert cluster.log.read(CHANGELOG, 5, 6) == (None, "")


def test_a_marker_that_lands_late_does_not_bring_an_older_offset_back(cluster: Cluster) -> None:
    """Two transactional ids, one input: the broker goes by the order of sending."""
    log = cluster.log
    for name, end, marker_ms in (("t0", 5, 500.0), ("t1", 9, 10.0)):
        epoch = log.init_transactions(name)
        log.begin(name, epoch, "w", 10_000.0)
        log.send_offsets(
            name, epoch, {INPUT: CommittedOffset(end, name)}, {INPUT: (0, end)}, NOBODY
        )
        log.marker_delay_ms = (marker_ms, marker_ms)
        log.commit(name, epoch)
    cluster.scheduler.run_until(100.0)
    with pytest.raises(RetriableError, match="pending"):
        log.stable_committed([INPUT])
    cluster.scheduler.run_until(600.0)
    assert log.stable_committed([INPUT]) == {INPUT: CommittedOffset(9, "t1")}


def test_fencing_ends_what_is_open_and_a_time_out_does_too(cluster: Cluster) -> None:
    first = cluster.log.init_transactions("id")
    cluster.write(first)
    second = cluster.log.init_transactions("id")
    with pytest.raises(FencedError):
        cluster.log.commit("id", first)
    cluster.scheduler.run_until(100.0)
    assert cluster.log.stable_committed([INPUT]) == {}
    assert cluster.log.read(CHANGELOG, 0, 6) == (None, "")
    cluster.write(second)
    cluster.scheduler.run_until(10_200.0)
    with pytest.raises(FencedError):
        cluster.log.commit("id", second)
    assert cluster.log.stable_ends([CHANGELOG]) == cluster.log.ends([CHANGELOG])


def test_blocking_code_waits_in_virtual_time_and_wakes_by_its_event() -> None:
    scheduler, process = Scheduler(), Process("p")
    clock = SimulatedClock(scheduler, process)
    event = threading.Event()
    seen: list[tuple[str, float]] = []

    def code() -> None:
        clock.wait(threading.Event(), 1_000.0)
        seen.append(("waited", clock.monotonic_ms()))
        clock.wait(event, 60_000.0)
        seen.append(("woken", clock.monotonic_ms()))

    scheduler.spawn(process, "code", code)
    scheduler.at(5_000.0, event.set, process)
    scheduler.run_until(10_000.0)
    assert seen == [("waited", 1_000.0), ("woken", 5_000.0)]
    with pytest.raises(SimulationError, match="no fiber"):
        clock.wait(threading.Event(), 1.0)


def test_a_paused_process_does_everything_later_and_a_killed_one_nothing() -> None:
    scheduler, paused, dead = Scheduler(), Process("paused"), Process("dead")
    seen: list[tuple[str, float]] = []
    for process in (paused, dead):
        clock = SimulatedClock(scheduler, process)

        def code(process: Process = process, clock: SimulatedClock = clock) -> None:
            try:
                clock.wait(threading.Event(), 100.0)
                seen.append((process.name, scheduler.now_ms))
            finally:
                seen.append((f"{process.name} ends", scheduler.now_ms))

        scheduler.spawn(process, process.name, code)
    scheduler.at(50.0, lambda: setattr(paused, "paused_until_ms", 900.0))
    scheduler.at(60.0, lambda: scheduler.kill(dead))
    scheduler.run_until(2_000.0)
    assert seen == [("dead ends", 60.0), ("paused", 900.0), ("paused ends", 900.0)]


def test_an_error_on_a_fiber_reaches_whoever_runs_the_simulation() -> None:
    scheduler, process = Scheduler(), Process("p")

    def code() -> None:
        int("x")

    scheduler.spawn(process, "code", code)
    with pytest.raises(ValueError, match="invalid literal"):
        scheduler.run_until(1.0)


SETTINGS = SimulationSettings(
    subtopologies=(SimulatedSubTopology(8), SimulatedSubTopology(4, stateful=False)),
    rules=AssignmentRules(num_standbys=0),
)
FORGETS_MS = 40_000


def brokers_that_come_back_forgetful(seed: int) -> None:
    """All whose batch failed recover, and an instance that was killed comes back."""
    with Simulation(SETTINGS, seed=seed) as group:
        group.add(3)
        group.settle(60_000)
        group.backlog(200_000)
        group.run_for(10_000)
        group.settle(120_000)
        group.lose_brokers(3_000)
        group.forget_offsets(FORGETS_MS)
        group.crash_worker("i1", 0, OFFSETS_SENT)
        group.kill("i2")
        group.run_for(4_000)
        group.restart("i2")
        group.crash_worker("i3", 0, OFFSETS_SENT)
        group.run_for(FORGETS_MS)
        group.settle(200_000)
        group.require_progress(20_000)


@pytest.mark.parametrize("seed", range(5))
def test_offsets_that_a_coordinator_has_forgotten_are_not_believed(seed: int) -> None:
    brokers_that_come_back_forgetful(seed)


def test_who_believes_the_coordinator_counts_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CommittedLowerBounds, "went_back", lambda *_: {})
    monkeypatch.setattr(CommittedLowerBounds, "others_went_back", lambda *_: {})
    with pytest.raises(InvariantError) as error:
        brokers_that_come_back_forgetful(0)
    assert error.value.name == "I3"


SESSION, REBALANCE = 10_000.0, 30_000.0


class Group:
    """A coordinator and the answers it gave."""

    def __init__(self) -> None:
        self.scheduler = Scheduler()
        self.coordinator = GroupCoordinator(
            scheduler=self.scheduler, history=History(lambda: self.scheduler.now_ms)
        )
        self.joined: dict[str, list[JoinReply]] = {}
        self.synced: dict[str, list[SyncReply]] = {}

    def join(
        self, who: str, member_id: str = "", static: bool = False, metadata: bytes = b"1"
    ) -> str:
        request = JoinRequest(
            member_id=member_id,
            instance_id=who if static else None,
            session_timeout_ms=SESSION,
            rebalance_timeout_ms=REBALANCE,
            metadata=metadata,
            client=who,
        )
        answers = self.joined.setdefault(who, [])
        self.coordinator.join(request, answers.append)
        if answers and answers[-1].code is Code.MEMBER_ID_REQUIRED and member_id == "":
            return self.join(who, answers[-1].member_id, static, metadata)
        return answers[-1].member_id if answers else member_id

    def last(self, who: str) -> JoinReply:
        return self.joined[who][-1]

    def sync(self, who: str, given: dict[str, bytes] | None = None, static: bool = False) -> None:
        reply = self.last(who)
        instance_id = who if static else None
        listed = self.synced.setdefault(who, [])
        self.coordinator.sync(
            reply.member_id, instance_id, reply.generation, given or {}, listed.append
        )

    def beat(self, who: str, static: bool = False) -> Code:
        reply = self.last(who)
        return self.coordinator.heartbeat(
            reply.member_id, who if static else None, reply.generation
        )

    def stable(self, *who: str, static: bool = False) -> None:
        """These new members in one generation, each with its own name as assignment."""
        for one in who:
            self.join(one, static=static)
        first = who[0]
        if len(who) > 1:  # the first is alone in generation 1 and has to come again
            self.join(first, self.last(first).member_id, static, metadata=b"again")
        assert {self.last(one).generation for one in who} == {self.coordinator.generation}
        leaders = {one for one in who if self.last(one).member_id == self.coordinator.leader}
        for one in [*(one for one in who if one not in leaders), *leaders]:
            self.sync(one, {self.last(other).member_id: other.encode() for other in who}, static)
        assert self.coordinator.state is GroupState.STABLE


@pytest.fixture
def group() -> Group:
    return Group()


def test_a_new_member_is_given_an_id_and_then_waits_for_the_others(group: Group) -> None:
    group.join("a")
    assert [reply.code for reply in group.joined["a"]] == [Code.MEMBER_ID_REQUIRED, Code.NONE]
    group.sync("a", {group.last("a").member_id: b"all"})
    group.join("b")
    assert group.coordinator.state is GroupState.PREPARING
    assert group.beat("a") is Code.REBALANCE_IN_PROGRESS
    group.join("a", group.last("a").member_id, metadata=b"2")
    assert group.last("a").generation == group.last("b").generation == 2
    assert len(group.last("a").members) == 2
    assert group.last("b").members == {}


def test_everyone_gets_the_leaders_assignment(group: Group) -> None:
    group.stable("a", "b")
    assert group.synced["a"][-1] == SyncReply(Code.NONE, b"a")
    assert group.synced["b"][-1] == SyncReply(Code.NONE, b"b")


def test_a_follower_that_rejoins_unchanged_changes_nothing(group: Group) -> None:
    group.stable("a", "b")
    follower = next(who for who in "ab" if group.last(who).member_id != group.coordinator.leader)
    before = group.coordinator.generation
    metadata = group.coordinator.members[group.last(follower).member_id].metadata
    group.join(follower, group.last(follower).member_id, metadata=metadata)
    assert group.last(follower).generation == before
    assert group.coordinator.state is GroupState.STABLE
    group.join(follower, group.last(follower).member_id, metadata=b"something new")
    assert group.coordinator.state is GroupState.PREPARING


def test_a_member_that_does_not_rejoin_in_time_is_out(group: Group) -> None:
    group.stable("a", "b")
    gone = group.last("a").member_id
    group.join("c")
    group.join("b", group.last("b").member_id, metadata=b"2")

    def beat() -> None:  # it lives, but does not join
        group.beat("a")

    for second in range(1, 31):
        group.scheduler.at(second * 1000.0, beat)
    group.scheduler.run_until(REBALANCE + 1)
    assert gone not in group.coordinator.members
    assert group.beat("a") is Code.UNKNOWN_MEMBER_ID
    assert group.last("b").generation == group.last("c").generation


def test_a_silent_member_leaves_with_its_session(group: Group) -> None:
    group.stable("a", "b")

    def beat() -> None:
        group.beat("a")

    for second in range(1, 10):
        group.scheduler.at(second * 1000.0, beat)
    group.scheduler.run_until(SESSION - 1)
    assert len(group.coordinator.members) == 2
    group.scheduler.run_until(SESSION + 1)
    assert set(group.coordinator.members) == {group.last("a").member_id}
    assert group.coordinator.state is GroupState.PREPARING


def test_a_static_member_comes_back_and_its_former_life_is_fenced(group: Group) -> None:
    group.stable("a", "b", static=True)
    before, old_id = group.coordinator.generation, group.last("a").member_id
    group.join("a", static=True, metadata=b"other bytes")
    assert group.last("a").generation == before
    assert group.last("a").member_id != old_id
    assert group.last("a").leader != group.last("a").member_id, "who comes back never assigns"
    group.sync("a", static=True)
    assert group.synced["a"][-1] == SyncReply(Code.NONE, b"a")
    assert group.coordinator.heartbeat(old_id, "a", before) is Code.FENCED_INSTANCE_ID
    assert (
        group.coordinator.offset_commit(old_id, "a", before, transactional=True)
        is Code.FENCED_INSTANCE_ID
    )
    assert group.coordinator.rebalances == 1


def test_offsets_are_fenced_by_generation_and_member_but_not_without_them(group: Group) -> None:
    group.stable("a", "b")
    me, now = group.last("a").member_id, group.coordinator.generation
    commit = group.coordinator.offset_commit
    assert commit(me, None, now, transactional=True) is Code.NONE
    assert commit(me, None, now - 1, transactional=True) is Code.ILLEGAL_GENERATION
    assert commit("nobody", None, now, transactional=True) is Code.UNKNOWN_MEMBER_ID
    assert commit("", None, -1, transactional=True) is Code.NONE, "scenario 7: why there is a gate"
    assert commit("", None, -1, transactional=False) is Code.UNKNOWN_MEMBER_ID
    group.join("a", me, metadata=b"2")
    assert commit(me, None, now, transactional=True) is Code.NONE, (
        "while the group prepares, the old generation commits"
    )
    group.join("b", group.last("b").member_id, metadata=b"2")
    assert group.coordinator.state is GroupState.COMPLETING
    assert commit(me, None, now, transactional=True) is Code.ILLEGAL_GENERATION
    assert commit(me, None, now + 1, transactional=True) is Code.NONE
    assert commit(me, None, now + 1, transactional=False) is Code.REBALANCE_IN_PROGRESS


def test_a_fail_over_forgets_what_no_completed_generation_holds(group: Group) -> None:
    group.stable("a", "b")
    now = group.coordinator.generation
    group.join("a", group.last("a").member_id, metadata=b"2")
    waiting = len(group.joined["a"])
    group.coordinator.fail_over(500.0)
    assert group.joined["a"][waiting].code is Code.NOT_COORDINATOR
    assert group.beat("b") is Code.NOT_COORDINATOR
    group.scheduler.run_until(501.0)
    assert group.coordinator.state is GroupState.STABLE
    assert group.coordinator.generation == now
    assert group.beat("b") is Code.NONE
