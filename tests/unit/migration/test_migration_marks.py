"""The marks beside offsets, who sees them, and when a group stands still."""

import pytest

from everflow.assignment.user_data import AnswerError, AssignmentData, UserData, encode
from everflow.clock import Clock
from everflow.errors import ApplicationMigratedError, RetriableError
from everflow.instance.tasks.recovery import require_not_migrated
from everflow.instance.topics.switch_watch import SwitchWatch
from everflow.kafka.admin import MemberDescription
from everflow.migration.holding import SeenMember, others, seen_members, stand_still
from everflow.protocol.messages import (
    COPIED,
    FILLED,
    GONE,
    Mark,
    format_metadata,
    mark_in,
    parse_metadata,
)
from everflow.records import CommittedOffset, TaskId, TopicPartition
from unit.manual_clock import ManualClock

TASK_0, TASK_1 = TaskId(0, 0), TaskId(0, 1)
IN = TopicPartition("in", 0)


@pytest.mark.parametrize(
    "mark", [Mark(FILLED, "shop.1-a_b", "abc"), Mark(GONE, "shop-2"), Mark(COPIED, "shop")]
)
def test_a_mark_is_read_as_it_was_written_with_the_times_beside_it(mark: Mark) -> None:
    text = format_metadata(mark.batch_id, {"node": 7}, '{"counts":"#1"}')
    assert mark_in(text) == mark
    assert parse_metadata(text).stream_times == {"node": 7}
    assert parse_metadata(text).layouts == {"counts": "#1"}


@pytest.mark.parametrize(
    "text", ["", "start", "of another client", "ef1|12ab.3.0|{}", "ef1|start|{}"]
)
def test_what_a_batch_has_committed_is_no_mark(text: str) -> None:
    assert mark_in(text) is None


def test_an_application_that_has_gone_is_refused_with_where_it_is() -> None:
    gone = format_metadata(Mark(GONE, "shop-2").batch_id, {})
    with pytest.raises(ApplicationMigratedError) as refused:
        require_not_migrated("shop", {IN: CommittedOffset(7, gone)})
    assert refused.value.code == "EF-MIGRATED"
    assert refused.value.to == "shop-2"
    assert "shop-2" in str(refused.value)
    require_not_migrated("shop", {IN: CommittedOffset(7, format_metadata("a.1.0", {}))})


def seen(name: str, *owned: TaskId, active: frozenset[TaskId] = frozenset()) -> SeenMember:
    data = UserData(process_id=name, owned=frozenset(owned), topology="one")
    return SeenMember(name, data, AssignmentData(active=active))


def test_a_group_stands_still_when_nobody_has_or_gets_a_held_task() -> None:
    held = {TASK_0}
    assert stand_still([seen("a", TASK_1), seen("b")], held)
    assert not stand_still([seen("a", TASK_0)], held)
    assert not stand_still([seen("a", active=frozenset({TASK_0}))], held)
    refused = SeenMember("c", UserData(process_id="c"), AssignmentData(error=AnswerError(2)))
    assert not stand_still([refused], held)


def test_members_of_another_program_and_unreadable_ones_are_seen() -> None:
    assert others([seen("a"), seen("b")], "one") == []
    assert others([seen("a"), seen("b")], "two") == ["a", "b"]
    description = MemberDescription(
        member_id="m", client_id="c", host="h", subscription=encode(UserData(process_id="p"))
    )
    assert seen_members([description]) is None, "its answer is not there"


def test_the_watch_asks_until_the_mark_is_gone() -> None:
    asked: list[object] = [True, RetriableError("away"), True, False]
    switched: list[str] = []

    def filled() -> bool:
        found = asked.pop(0)
        if isinstance(found, Exception):
            raise found
        return bool(found)

    clock: Clock = ManualClock()
    watch = SwitchWatch(filled, lambda: switched.append("now"), clock)
    assert [watch.check_once() for _ in range(3)] == [False] * 3
    assert not switched
    assert watch.check_once()
    assert switched == ["now"]


def test_a_copy_that_is_always_near_its_end_is_told_again_when_it_has_grown() -> None:
    """Else the migrator would wait for ever for what was told before there was anything."""
    sums, told, clock = {TaskId(0, 0): 0, TaskId(0, 1): 0}, list[int](), ManualClock()
    watch = SwitchWatch(
        lambda: True,
        lambda: None,
        clock,
        lambda: sums,
        lambda: told.append(sums[TaskId(0, 1)]),
        tolerance=100,
    )
    for grown in (50, 100, 101, 150, 300):
        sums[TaskId(0, 1)] = grown
        watch.check_once()
    assert told == [101]
    clock.advance(10_000.0)
    watch.check_once()
    assert told == [101, 300]
    clock.advance(10_000.0)
    watch.check_once()
    assert told == [101, 300]
