"""The order of recovery (D5) and what it refuses: failure scenarios 1, 2, 4 and 15."""

import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from everflow import serdes
from everflow.errors import FatalError, OffsetsExpiredError, OffsetsWentBackError, RetriableError
from everflow.instance.restore.restoration import RestoreJob, prepare_store, restore
from everflow.instance.restore.restore_plan import ChangelogState
from everflow.instance.tasks.recovery import (
    ON_DISK,
    PURGED,
    SETTLED_MS,
    CommittedLowerBounds,
    Recovery,
)
from everflow.instance.tasks.task import ActiveTask, TaskStore
from everflow.protocol.messages import format_metadata
from everflow.records import CommittedOffset, Int64, TaskId, TopicPartition
from everflow.retry import StoppedError
from everflow.state.lmdb_store import LmdbStore
from everflow.state.store import StoreSpec
from everflow.state.task_directory import StateDirectory
from everflow.topology.graph import Graph
from everflow.topology.idle_sources import program_times
from unit.manual_clock import ManualClock

COUNTS = StoreSpec(name="s", kind="key_value", key_serde=serdes.string(), value_serde=serdes.long())
IN, LOG = TopicPartition("in", 0), TopicPartition("app-s-changelog", 0)


class Chunk(NamedTuple):
    keys: Sequence[bytes | None]
    values: Sequence[bytes | None]
    timestamps: Int64
    next_position: int
    records: int


class FakePorts:
    """Notes every call. ``pending`` rounds of stable ends lie before the log end."""

    def __init__(
        self, committed: Mapping[TopicPartition, CommittedOffset], pending: int = 0
    ) -> None:
        self.calls: list[str] = []
        self._committed, self.pending = committed, pending
        self.starts = {IN: 0, LOG: 0}
        self.ends = {IN: 100, LOG: 50}
        self.stable: dict[TopicPartition, int] = {}
        self.targets: dict[TopicPartition, int] = {}
        self.since: dict[int, int] = {}
        """Time (ms) -> the first offset of a record that is not older."""
        self.faults = 0
        self.purged_partitions: list[TopicPartition] = []
        self.leaderless: set[TopicPartition] = set()
        self.last = dict(committed)
        """What was committed last, whatever is pending."""

    def fence(self, transactional_ids: Collection[str]) -> None:
        self.calls.append(f"fence {','.join(transactional_ids)}")

    def committed(
        self, partitions: Sequence[TopicPartition], *, stable: bool = True
    ) -> Mapping[TopicPartition, CommittedOffset]:
        if not stable:
            return {tp: c for tp, c in self.last.items() if tp in partitions}
        if self.faults:
            self.faults -= 1
            raise RetriableError("broker away")
        self.calls.append("committed")
        return {tp: c for tp, c in self._committed.items() if tp in partitions}

    def purged(self) -> Sequence[TopicPartition]:
        return self.purged_partitions

    def log_ends(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]:
        self.calls.append("log-ends")
        return {tp: self.ends[tp] for tp in partitions}

    def stable_ends(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]:
        self.calls.append("stable-ends")
        if self.pending:
            self.pending -= 1
            return {tp: self.ends[tp] - 1 for tp in partitions}
        return {tp: self.stable.get(tp, self.ends[tp]) for tp in partitions}

    def log_starts(
        self, partitions: Sequence[TopicPartition], *, known: bool = False
    ) -> Mapping[TopicPartition, int]:
        if known:
            found = {tp: self.starts[tp] for tp in partitions if tp not in self.leaderless}
            if not found:
                raise RetriableError("no leader", partitions)
            return found
        self.calls.append("log-starts")
        if leaderless := self.leaderless.intersection(partitions):
            raise RetriableError("no leader", leaderless)
        return {tp: self.starts[tp] for tp in partitions}

    def offsets_since(
        self, partitions: Sequence[TopicPartition], time_ms: int
    ) -> Mapping[TopicPartition, int]:
        self.calls.append(f"since {time_ms}")
        return {tp: self.since.get(time_ms, -1) for tp in partitions}

    def restore(
        self, task: ActiveTask, incarnation: str, targets: Mapping[TopicPartition, int]
    ) -> tuple[TaskStore, ...]:
        self.calls.append(f"restore {task.id} {incarnation}")
        self.targets = dict(targets)
        return task.stores


def task() -> ActiveTask:
    return ActiveTask(id=TaskId(0, 0), inputs=(IN,), stores=(TaskStore("s", Path("unused"), LOG),))


def recovery(
    ports: FakePorts,
    policy: str = "earliest",
    timeout_ms: float = 1_000,
    lower_bounds: CommittedLowerBounds | None = None,
) -> Recovery:
    return Recovery(
        ports=ports,
        application_id="app",
        offset_reset={"in": policy},
        lower_bounds=lower_bounds or CommittedLowerBounds(ManualClock()),
        clock=ManualClock(),
        timeout_ms=timeout_ms,
        stop=threading.Event(),
        new_incarnation=lambda: "inc2",
        times=program_times(Graph(()), {}, ""),
    )


COMMITTED = {IN: CommittedOffset(30, format_metadata("inc1.4.0", {"AGG": 77}))}


def test_the_order_and_what_the_task_has_afterwards() -> None:
    ports, active = FakePorts(COMMITTED, pending=2), task()
    active.last_batch = "inc1.4.0"
    started, _ = recovery(ports).recover([active], ["app-0"])
    order = [call for i, call in enumerate(ports.calls) if i == 0 or call != ports.calls[i - 1]]
    assert order == [
        "fence app-0",
        "committed",
        "log-ends",
        "stable-ends",
        "log-starts",
        "restore 0_0 inc2",
    ]
    assert ports.calls.count("stable-ends") >= 3  # waited for the open transaction
    assert ports.targets == {LOG: 50}
    assert started == {}
    assert active.positions == {IN: 30}
    assert active.stream_times == {"AGG": 77}
    assert (active.incarnation, active.last_batch) == ("inc2", "")
    assert active.ends == {IN: 99}, "as of the first look, while a transaction was open"


class StorePorts(FakePorts):
    """Restores a store on the disk from a changelog of 50 records, record ``n`` sets key ``n % 7``
    to ``n``."""

    def __init__(self, directory: StateDirectory) -> None:
        super().__init__(COMMITTED)
        self.directory, self.reads = directory, list[tuple[int, int]]()

    def read(
        self, tp: TopicPartition, start: int, end: int, *, every: bool = False
    ) -> Iterator[Chunk]:
        self.reads.append((start, end))
        numbers = range(start, end)
        yield Chunk(
            [b"%d" % (n % 7) for n in numbers],
            [b"%d" % n for n in numbers],
            np.arange(start, end),
            end,
            len(numbers),
        )

    def restore(
        self, task: ActiveTask, incarnation: str, targets: Mapping[TopicPartition, int]
    ) -> tuple[TaskStore, ...]:
        state = ChangelogState(start=0, end=targets[LOG], cluster_id="c", topic_id="t")
        made = prepare_store(
            self.directory, task.id, COUNTS, state, incarnation=incarnation, now_ms=0
        )
        assert made.plan is not None
        restore(
            RestoreJob(
                task=task.id,
                store_name="s",
                store=made.store,
                changelog=LOG,
                plan=made.plan,
                incarnation=incarnation,
            ),
            self,
            clock=ManualClock(),
        )
        return (TaskStore("s", made.store.path, LOG),)

    def numbers(self) -> dict[bytes, bytes]:
        with LmdbStore.open(self.directory.store_path(TaskId(0, 0), "s")).snapshot() as view:
            return {key: value[8:] for key, value in view.range(None, None)}


def test_the_store_decides_what_is_replayed_not_the_input_s_offsets(tmp_path: Path) -> None:
    """Scenario 2: another instance changed the store while its input's offsets stood still."""
    directory = StateDirectory.open(tmp_path, "app", boot_id="x")
    ports, active = StorePorts(directory), task()
    ports.ends[LOG] = 40
    recovery(ports).recover([active], [])
    assert active.positions == {IN: 30}
    ports.ends[LOG] = 50
    again = task()
    recovery(ports).recover([again], [])
    assert again.positions == active.positions, "as they were when the store was at 40"
    assert ports.reads == [(0, 40), (40, 50)]
    assert ports.numbers() == {b"%d" % (n % 7): b"%d" % n for n in range(50)}
    assert LmdbStore.open(again.stores[0].path).position == 50
    directory.close()


def test_what_is_not_needed_to_wait_for_is_asked_for_once() -> None:
    """A task that is handed over stands still meanwhile."""
    ports = FakePorts(COMMITTED)
    recovery(ports).recover([task()], [])
    assert ports.calls == ["committed", "log-ends", "stable-ends", "log-starts", "restore 0_0 inc2"]


def test_a_transaction_that_stays_open_ends_the_attempt_and_restores_nothing() -> None:
    ports = FakePorts(COMMITTED, pending=10**9)
    with pytest.raises(RetriableError, match="still open") as error:
        recovery(ports).recover([task()], [])
    assert error.value.partitions == {LOG}
    assert not any(call.startswith("restore") for call in ports.calls)


def test_passing_faults_are_retried_under_the_deadline() -> None:
    ports, active = FakePorts(COMMITTED), task()
    ports.faults = 3
    recovery(ports, timeout_ms=10_000).recover([active], [])
    assert active.positions == {IN: 30}


def test_stop_ends_the_wait() -> None:
    ports = FakePorts(COMMITTED, pending=10**9)
    made = recovery(ports)
    made.stop.set()
    with pytest.raises(StoppedError):
        made.recover([task()], [])


@pytest.mark.parametrize(("policy", "offset"), [("earliest", 5), ("latest", 100)])
def test_without_offsets_and_records_the_policy_decides(policy: str, offset: int) -> None:
    ports, active = FakePorts({}), task()
    ports.starts[IN] = 5
    ports.ends[LOG] = 0
    started, _ = recovery(ports, policy).recover([active], [])
    assert started == {IN: offset}
    assert active.positions == {IN: offset}


@pytest.mark.parametrize(
    ("found", "offset"),
    [(-1, 100), (40, 40), (2, 5), (10**9, 100)],
    ids=["nothing since", "a record", "below the log's start", "beyond the stable end"],
)
def test_by_duration_it_begins_at_the_first_record_since_then(found: int, offset: int) -> None:
    ports, active = FakePorts({}), task()
    ports.starts[IN], ports.ends[LOG] = 5, 0
    made = recovery(ports, "by_duration:PT1M")
    ports.since = {max(0, made.clock.now_ms() - 60_000): found}
    made.recover([active], [])
    assert active.positions == {IN: offset}


@pytest.mark.parametrize("policy", ["latest", "none", "by_duration:PT1M"])
@pytest.mark.parametrize("whole", [True, False])
def test_a_partition_that_came_later_is_read_from_its_first_record(
    policy: str, whole: bool
) -> None:
    """Beside the one that the task has read, or by itself, while the task runs (note 067)."""
    later = TopicPartition("in", 4)
    ports, active = FakePorts(COMMITTED), task()
    ports.starts[later], ports.ends[later] = 7, 9
    active.inputs = (IN, later) if whole else (later,)
    active.stores = active.stores if whole else ()
    started, _ = recovery(ports, policy).recover([active], [])
    assert started == {later: 7}
    assert active.positions == {later: 7, **({IN: 30} if whole else {})}


def test_without_offsets_but_with_a_filled_changelog_it_refuses() -> None:
    with pytest.raises(OffsetsExpiredError, match="everflow reset MODULE:NAME"):
        recovery(FakePorts({})).recover([task()], [])


def test_offsets_of_another_task_show_that_the_group_is_still_there() -> None:
    """What the brokers have just said is told; nothing else is said to be the reason."""
    with pytest.raises(OffsetsExpiredError) as nothing:
        recovery(FakePorts({})).recover([task()], [])
    assert "do not report" in str(nothing.value)
    second = ActiveTask(id=TaskId(0, 3), inputs=(OTHER,), stores=())
    ports = FakePorts({OTHER: CommittedOffset(0, "")})
    ports.starts[OTHER] = ports.ends[OTHER] = 0
    with pytest.raises(OffsetsExpiredError, match=r"offsets.*other-3") as error:
        recovery(ports).recover([task(), second], [])
    assert "expired" not in str(error.value)


def test_an_offset_beyond_the_log_is_an_error_and_one_below_goes_through_the_policy() -> None:
    beyond = FakePorts({IN: CommittedOffset(101, "")})
    with pytest.raises(FatalError, match="re-created"):
        recovery(beyond).recover([task()], [])
    below, active = FakePorts(COMMITTED), task()
    below.starts[IN] = 40
    recovery(below).recover([active], [])
    assert active.positions == {IN: 40}
    with pytest.raises(FatalError, match=r"auto\.offset\.reset"):
        recovery(below, "none").recover([task()], [])


def test_at_least_once_may_have_committed_beyond_an_open_transaction_of_its_input() -> None:
    ports, active = FakePorts({IN: CommittedOffset(90, "")}), task()
    ports.stable[IN] = 80
    recovery(ports).recover([active], [])
    assert active.positions == {IN: 90}


def test_a_topic_that_is_also_a_changelog_is_replayed_to_where_it_was_read() -> None:
    """And its records without offsets are input that nobody has read, not offsets that are gone."""

    def table() -> ActiveTask:
        return ActiveTask(
            id=TaskId(0, 0), inputs=(IN,), stores=(TaskStore("s", Path("unused"), IN),)
        )

    ports = FakePorts(COMMITTED)
    recovery(ports).recover([table()], [])
    assert ports.targets == {IN: 30}
    ports = FakePorts({})
    started, _ = recovery(ports).recover([table()], [])
    assert ports.targets == {IN: 0}
    assert started == {IN: ports.starts[IN]}


OTHER = TopicPartition("other", 3)
REKEYED = TopicPartition("app-by-shop-repartition", 1)


def test_offsets_below_what_this_instance_has_committed_are_not_believed() -> None:
    lower_bounds = CommittedLowerBounds(ManualClock())
    lower_bounds.raised({IN: 31})
    ports, active = FakePorts(COMMITTED), task()
    with pytest.raises(OffsetsWentBackError, match=r"in-0.*offset 30.*31"):
        recovery(ports, lower_bounds=lower_bounds).recover([active], [])
    assert not any(call.startswith("restore") for call in ports.calls)
    assert active.positions == {}


def test_they_are_waited_for_until_the_coordinator_tells_the_truth() -> None:
    lower_bounds = CommittedLowerBounds(ManualClock())
    lower_bounds.raised({IN: 40})
    ports, active = FakePorts(COMMITTED), task()
    made = recovery(ports, timeout_ms=10_000, lower_bounds=lower_bounds)
    told = iter([30, 30, 42])
    ports.committed = lambda *_, **__: {IN: CommittedOffset(next(told), "")}  # type: ignore[method-assign]
    made.recover([active], [])
    assert active.positions == {IN: 42}
    assert lower_bounds.went_back({IN: CommittedOffset(41, "")}, [IN]), (
        "what it was told is a bound, too"
    )


def test_an_offset_that_is_gone_is_not_believed_either_once_it_was_committed_here() -> None:
    lower_bounds = CommittedLowerBounds(ManualClock())
    lower_bounds.raised({IN: 30})
    with pytest.raises(OffsetsWentBackError, match=r"committed.*30"):
        recovery(FakePorts({}), lower_bounds=lower_bounds).recover([task()], [])


def test_an_offset_that_is_gone_since_an_earlier_life_has_expired() -> None:
    """Between two lives the group may have been empty for long."""
    lower_bounds = CommittedLowerBounds(ManualClock())
    lower_bounds.raised({IN: 30}, ON_DISK)
    with pytest.raises(OffsetsExpiredError):
        recovery(FakePorts({}), lower_bounds=lower_bounds).recover([task()], [])
    below = FakePorts({IN: CommittedOffset(29, "")})
    with pytest.raises(OffsetsWentBackError, match="folder"):
        recovery(below, lower_bounds=lower_bounds).recover([task()], [])


@pytest.mark.parametrize("told", [29, 30])
def test_one_partition_that_went_back_makes_the_coordinator_untrue_in_all(told: int) -> None:
    """Others may be as wrong, and nobody here knows."""
    lower_bounds = CommittedLowerBounds(ManualClock())
    lower_bounds.raised({OTHER: 30}, ON_DISK)
    ports = FakePorts({**COMMITTED, OTHER: CommittedOffset(told, "")})
    made = recovery(ports, lower_bounds=lower_bounds)
    if told < 30:
        with pytest.raises(OffsetsWentBackError, match="other-3"):
            made.recover([task()], [])
    else:
        made.recover([task()], [])


def test_what_still_waits_for_its_marker_elsewhere_did_not_go_back() -> None:
    """Until its marker has landed, the coordinator tells what was committed before. Who asked for
    stable offsets of other tasks would wait for ever where they commit without a rest."""
    clock = ManualClock()
    lower_bounds = CommittedLowerBounds(clock)
    lower_bounds.raised({OTHER: 30})
    ports = FakePorts({**COMMITTED, OTHER: CommittedOffset(20, "")})
    recovery(ports, lower_bounds=lower_bounds).recover([task()], [])
    clock.advance(SETTLED_MS)  # by then it has
    with pytest.raises(OffsetsWentBackError, match="other-3"):
        recovery(ports, lower_bounds=lower_bounds).recover([task()], [])


def test_what_has_settled_does_not_go_down_when_an_earlier_offset_settles() -> None:
    clock = ManualClock()
    lower_bounds = CommittedLowerBounds(clock)
    lower_bounds.raised({OTHER: 10})
    lower_bounds.raised({OTHER: 30}, PURGED)
    assert lower_bounds.settled()[OTHER].offset == 30
    clock.advance(SETTLED_MS)
    assert lower_bounds.settled()[OTHER].offset == 30


def test_another_task_s_offset_that_is_gone_makes_the_coordinator_untrue_too() -> None:
    """It knows nothing of a group behind what it loaded: a taken task would start afresh."""
    clock = ManualClock()
    lower_bounds = CommittedLowerBounds(clock)
    lower_bounds.raised({OTHER: 30})
    clock.advance(SETTLED_MS)
    with pytest.raises(OffsetsWentBackError, match=r"other-3.*committed.*30"):
        recovery(FakePorts({}), lower_bounds=lower_bounds).recover([task()], [])


def test_an_offset_of_another_task_that_is_gone_since_an_earlier_life_holds_nobody_up() -> None:
    lower_bounds = CommittedLowerBounds(ManualClock())
    lower_bounds.raised({OTHER: 30}, ON_DISK)
    active = task()
    recovery(FakePorts(COMMITTED), lower_bounds=lower_bounds).recover([active], [])
    assert active.positions == {IN: 30}


def test_records_of_a_repartition_topic_are_deleted_only_behind_committed_offsets() -> None:
    """So an instance that has just started knows, too, whosever tasks they are."""
    ports = FakePorts({**COMMITTED, REKEYED: CommittedOffset(7_638, "")})
    ports.purged_partitions, ports.starts[REKEYED] = [REKEYED], 9_393
    with pytest.raises(OffsetsWentBackError, match=r"7638.*9393.*deleted"):
        recovery(ports).recover([task()], [])
    ports.last[REKEYED] = CommittedOffset(9_393, "")
    recovery(ports).recover([task()], [])


@pytest.mark.parametrize("others", [(), (OTHER,)])
def test_others_leaderless_repartition_holds_up_nobody(others: tuple[TopicPartition, ...]) -> None:
    ports, active = FakePorts(COMMITTED), task()
    ports.starts[OTHER] = 0
    ports.purged_partitions, ports.leaderless = [IN, REKEYED, *others], {REKEYED}
    recovery(ports).recover([active], [])
    assert active.positions == {IN: 30}


def test_the_start_of_its_own_repartition_topic_is_waited_for() -> None:
    ports = FakePorts(COMMITTED)
    ports.purged_partitions, ports.leaderless = [IN], {IN}
    with pytest.raises(RetriableError, match="no leader"):
        recovery(ports).recover([task()], [])
    assert "committed" not in ports.calls
