"""The commit gate's rules: failure scenarios 6, 7, 8, 10 and 34, as values and over the socket."""

import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path

import pytest

from everflow import sockets
from everflow.errors import FatalError, SetupError
from everflow.instance.commit_gate import (
    CommitGate,
    DeferredOffsets,
    GateBackend,
    GateBook,
    Offset,
    OpenBatch,
    decide,
)
from everflow.instance.tasks.recovery import CommittedLowerBounds
from everflow.protocol.messages import AT_LEAST_ONCE, EXACTLY_ONCE_V2, WorkerClients
from everflow.records import CommittedOffset, MemberMetadata, TaskId, TopicPartition
from everflow.worker.serve import GateClient
from unit.manual_clock import ManualClock

TASK, OTHER = TaskId(0, 0), TaskId(0, 1)
MEMBER = MemberMetadata(4, "member-1", None)
BATCH = OpenBatch("i.0.0", 0, EXACTLY_ONCE_V2, {TASK: 3})


def test_yes_for_an_open_batch_of_a_member_that_owns_its_tasks() -> None:
    assert decide("i.0.0", BATCH, False, MEMBER, {TASK: 3, OTHER: 1}).ok


@pytest.mark.parametrize(
    ("batch", "answered", "member", "epochs", "word"),
    [
        (None, False, MEMBER, {TASK: 3}, "unknown-batch"),
        (BATCH, True, MEMBER, {TASK: 3}, "already-answered"),
        (BATCH, False, MemberMetadata(-1, "", None), {TASK: 3}, "not-a-member"),
        (BATCH, False, MemberMetadata(4, "", None), {TASK: 3}, "not-a-member"),
        (BATCH, False, MemberMetadata(-1, "member-1", None), {TASK: 3}, "not-a-member"),
        (BATCH, False, MEMBER, {}, "ownership-changed"),
        (BATCH, False, MEMBER, {TASK: 4}, "ownership-changed"),  # lost and back: scenario 8
    ],
)
def test_no_otherwise(
    batch: OpenBatch | None,
    answered: bool,
    member: MemberMetadata,
    epochs: dict[TaskId, int],
    word: str,
) -> None:
    decision = decide("i.0.0", batch, answered, member, epochs)
    assert not decision.ok
    assert decision.reason.startswith(word)


def test_a_task_that_was_lost_and_came_back_needs_recovery_before_a_batch() -> None:
    book = GateBook()
    book.own([TASK])
    epoch = book.epoch(TASK)
    book.disown_all()
    book.own([TASK])
    assert book.broken(TASK, epoch)
    assert not book.begin("i.0.0", 0, EXACTLY_ONCE_V2, {TASK: epoch})
    assert book.begin("i.0.0", 0, EXACTLY_ONCE_V2, {TASK: book.epoch(TASK)})


def test_a_revoked_task_commits_in_the_generation_that_revoked_it_and_in_no_later_one() -> None:
    """Evicted in its last batch, who holds nothing else hears of no loss and joins at once."""
    book = GateBook()
    book.own([TASK])
    epoch = book.epoch(TASK)
    book.revoke([TASK], MEMBER)
    for number, member in enumerate(
        (MEMBER, MemberMetadata(6, "member-2", None), MemberMetadata(5, "member-1", None))
    ):
        assert book.begin(f"i.{number}.0", 0, EXACTLY_ONCE_V2, {TASK: epoch})
        decision, _ = book.ask(f"i.{number}.0", member)
        assert decision.ok == (member is MEMBER)
    book.release([TASK])
    assert book.broken(TASK, epoch)


def test_a_revoked_task_that_comes_back_before_its_release_is_a_new_ownership_and_stays() -> None:
    book = GateBook()
    book.own([TASK])
    epoch = book.epoch(TASK)
    book.revoke([TASK], MEMBER)
    book.own([TASK])
    assert book.broken(TASK, epoch), "another member may have run it in between"
    book.release([TASK])
    assert book.owned() == {TASK}
    book.revoke([TASK], MEMBER)
    book.release([TASK])
    assert book.owned() == frozenset()


def test_owning_again_keeps_the_ownership_of_tasks_that_stay() -> None:
    book = GateBook()
    book.own([TASK])
    epoch = book.epoch(TASK)
    book.own([TASK, OTHER])
    assert book.epoch(TASK) == epoch


def test_an_older_attempt_is_refused_and_pids_are_those_of_the_batch_in_flight() -> None:
    book = GateBook()
    book.own([TASK])
    epochs = {TASK: book.epoch(TASK)}
    assert book.begin("i.0.0", 7, EXACTLY_ONCE_V2, epochs)
    assert book.hello("i.0.0", "t7-0", 111)
    book.end("i.0.0")
    assert not book.hello("i.0.0", "t7-0", 111)
    assert book.begin("i.0.1", 7, EXACTLY_ONCE_V2, epochs)
    assert book.hello("i.0.1", "t7-0", 222)
    assert not book.ask("i.0.0", MEMBER)[0].ok
    assert book.ask("i.0.1", MEMBER)[0].ok
    assert book.take_pids(7) == (222,)
    assert book.take_pids(7) == ()


def test_a_thread_that_was_left_behind_begins_nothing_and_its_batch_is_refused() -> None:
    book = GateBook()
    book.own([TASK])
    epochs = {TASK: book.epoch(TASK)}
    assert book.begin("i-1-0", 0, EXACTLY_ONCE_V2, epochs)
    assert book.begin("j-1-0", 1, EXACTLY_ONCE_V2, epochs)
    book.abandon(0)
    assert not book.hello("i-1-0", "t0-0", 77)
    assert not book.ask("i-1-0", MEMBER)[0].ok
    assert not book.begin("i-2-0", 0, EXACTLY_ONCE_V2, epochs)
    assert book.hello("j-1-0", "t1-0", 78)
    assert book.ask("j-1-0", MEMBER)[0].ok


def test_a_worker_that_serves_another_instance_of_this_process_by_now_is_not_taken() -> None:
    closing, staying = GateBook(), GateBook()
    for book, batch in ((closing, "a.0.0"), (staying, "b.0.0")):
        assert book.begin(batch, 0, EXACTLY_ONCE_V2, {})
    assert closing.hello("a.0.0", "t0-0", 501)
    assert closing.hello("a.0.0", "t0-1", 502)
    assert staying.hello("b.0.0", "t0-0", 501)
    assert closing.take_pids(0) == (502,)
    assert staying.take_pids(0) == (501,)


class Group:
    def __init__(self) -> None:
        self.metadata = MEMBER
        self.commits: list[Sequence[Offset]] = []
        self.takes = True

    def commit(self, offsets: Sequence[Offset]) -> bool:
        self.commits.append(offsets)
        return self.takes


@pytest.fixture
def group() -> Group:
    return Group()


@pytest.fixture
def gate(group: Group) -> Iterator[tuple[GateBook, str]]:
    book = GateBook()
    book.own([TASK])
    server = CommitGate(book=book, backend=backend_of(group))
    yield book, server.start()
    server.close()


def backend_of(group: Group) -> GateBackend:
    return GateBackend(
        lambda: group.metadata, lambda m: f"{m.generation}/{m.member_id}".encode(), group.commit
    )


def test_the_socket_is_private_and_goes_with_the_gate(group: Group) -> None:
    gate = CommitGate(book=GateBook(), backend=backend_of(group))
    path = Path(gate.start())
    gate.require_reachable()
    assert path.parent.stat().st_mode & 0o777 == 0o700
    gate.close()
    gate.close()
    assert not path.parent.exists()


def test_a_socket_that_was_deleted_is_an_error_not_aborted_batches_for_ever(group: Group) -> None:
    gate = CommitGate(book=GateBook(), backend=backend_of(group))
    try:
        path = Path(gate.start())
        path.unlink()
        with pytest.raises(FatalError, match=r"gate\.sock.*deleted.*TMPDIR"):
            gate.require_reachable()
    finally:
        gate.close()


def test_no_socket_is_said(group: Group, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "none"))
    monkeypatch.setattr(sockets, "_SHORT_BASE", str(tmp_path / "none"))
    gate = CommitGate(book=GateBook(), backend=backend_of(group))
    with pytest.raises(SetupError, match="Set TMPDIR"):
        gate.start()
    gate.close()


def test_the_answer_has_that_moment_s_metadata(gate: tuple[GateBook, str], group: Group) -> None:
    book, path = gate
    assert len(path) < 100
    book.begin("i.0.0", 0, EXACTLY_ONCE_V2, {TASK: book.epoch(TASK)})
    with closing(GateClient(path)) as client:
        assert client.hello("i.0.0", "t0-0", 4321)
        group.metadata = MemberMetadata(
            5, "member-1", None
        )  # a rebalance completed during the batch: scenario 6
        answer = client.commit("i.0.0", [("in", 0, 12, "ef1|i.0.0|{}")])
        assert answer.ok
        assert answer.group_metadata == b"5/member-1"
        assert not client.commit("i.0.0", []).ok
    assert book.take_pids(0) == (4321,)


def test_a_worker_is_told_its_clients_settings_over_the_socket_unseen(group: Group) -> None:
    clients = WorkerClients({"sasl.password": "hunter2"}, {"linger.ms": 5})
    backend = GateBackend(lambda: group.metadata, lambda _: b"", group.commit, clients)
    gate = CommitGate(book=GateBook(), backend=backend)
    try:
        with closing(GateClient(gate.start())) as client:
            assert client.clients() == clients
    finally:
        gate.close()
    assert "hunter2" not in f"{clients!r} {backend!r}"


def test_at_least_once_commits_through_the_member(gate: tuple[GateBook, str], group: Group) -> None:
    book, path = gate
    group.takes = False  # the group is rebalancing: scenario 26
    book.begin("i.1.0", 0, AT_LEAST_ONCE, {TASK: book.epoch(TASK)})
    with closing(GateClient(path)) as client:
        answer = client.commit("i.1.0", [("in", 0, 12, "m")])
    assert answer.ok
    assert answer.deferred
    assert group.commits == [[Offset("in", 0, 12, "m")]]


def test_only_a_second_attempt_holds_the_next_generation_back() -> None:
    """Two micro-batches of pause at most: the group may refuse one, not the one after it."""
    book = GateBook()
    book.own([TASK])
    epochs = {TASK: book.epoch(TASK)}
    for batch_id in ("i.0.0", "i.0.1"):
        assert book.begin(batch_id, 0, EXACTLY_ONCE_V2, epochs)
        assert book.finishing == (batch_id == "i.0.1")
        book.end(batch_id)
        assert not book.finishing
    assert not book.begin("i.0.2", 0, EXACTLY_ONCE_V2, {TASK: 99})
    assert not book.finishing, "it was not begun"


def test_a_driver_that_is_gone_means_abort(tmp_path: Path) -> None:
    with closing(GateClient(str(tmp_path / "nobody.sock"))) as client:
        with pytest.raises(ConnectionError, match="driver gone"):
            client.clients()
        answer = client.commit("i.0.0", [])
    assert not answer.ok
    assert answer.reason.startswith("driver gone")


A, B = TopicPartition("in", 0), TopicPartition("in", 1)
Asked = Mapping[TopicPartition, tuple[int, str]]


def test_what_was_refused_goes_with_the_next_commit_unless_it_was_forgotten() -> None:
    asked: list[Asked] = []
    answers = iter([False, True])

    def commit(offsets: Asked) -> bool:
        asked.append(offsets)
        return next(answers)

    told: list[dict[TopicPartition, int]] = []
    deferred = DeferredOffsets(commit, lambda offsets: told.append(dict(offsets)))
    assert not deferred.commit([Offset("in", 0, 5, "m"), Offset("in", 1, 7, "m")])
    assert deferred.held() == {A, B}
    deferred.forget([A])
    assert deferred.commit([Offset("in", 1, 9, "m")])
    assert asked[1] == {B: (9, "m")}
    assert told == [{B: 9}], "what waits is not committed"
    assert deferred.held() == frozenset()


def test_forgetting_does_not_wait_for_a_commit_and_counts_for_it() -> None:
    """The loss of partitions is told on the thread that the commit under way needs to end."""

    def commit(offsets: Asked) -> bool:
        group_client = threading.Thread(target=lambda: deferred.forget([A]), daemon=True)
        group_client.start()
        group_client.join(5)
        assert not group_client.is_alive()
        return False

    deferred = DeferredOffsets(commit, lambda offsets: None)
    deferred.commit([Offset("in", 0, 5, "m"), Offset("in", 1, 7, "m")])
    assert deferred.held() == {B}


def test_a_task_that_was_recovered_while_its_offsets_waited_goes_back_rightly() -> None:
    """It was told 100, its 150 goes with another thread's commit, and it commits 120 behind that:
    another recovery is told no less than is true (note 064)."""
    lower_bounds, answers = CommittedLowerBounds(ManualClock()), iter([False, True, True])
    deferred = DeferredOffsets(lambda offsets: next(answers), lower_bounds.replaced)
    assert not deferred.commit([Offset("in", 0, 150, "m")])
    lower_bounds.raised({A: 100})
    assert deferred.commit([Offset("in", 1, 9, "m")])
    assert lower_bounds.went_back({A: CommittedOffset(149, "")}, [A])
    assert deferred.commit([Offset("in", 0, 120, "m")])
    assert lower_bounds.went_back({A: CommittedOffset(120, "")}, [A]) == {}
    assert lower_bounds.went_back({A: CommittedOffset(119, "")}, [A])
