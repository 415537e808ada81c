"""Virtual time, fibers and the simulated log, and a coordinator that forgets (note 064)."""

import threading
from random import Random

import pytest

from everflow.assignment.cluster_state import AssignmentRules
from everflow.errors import RetriableError
from everflow.instance.tasks.recovery import CommittedLowerBounds
from everflow.records import CommittedOffset, TopicPartition
from everflow.worker.crash_points import OFFSETS_SENT
from everflow_simulation.checks import InvariantError
from everflow_simulation.group_coordinator import GroupCoordinator
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
    """A task that moved to another stream thread: two transactional ids, one input. The broker goes
    by the order of sending."""
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
