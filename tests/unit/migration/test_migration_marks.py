"""The marks beside offsets, who sees them, and when a group stands still."""

from dataclasses import replace

import pytest

from everflow.assignment.user_data import AnswerError, AssignmentData, UserData, encode
from everflow.clock import Clock
from everflow.errors import ApplicationMigratedError, MigrationError, RetriableError
from everflow.instance.tasks.recovery import require_not_migrated
from everflow.instance.topics.switch_watch import SwitchWatch
from everflow.kafka.admin import MemberDescription
from everflow.migration.holding import (
    SeenMember,
    before_holding,
    near_tasks,
    others,
    require_one_version,
    seen_members,
    stand_still,
)
from everflow.migration.migrator import text_of_gone
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
from everflow.topology.idle_sources import MOST_BYTES
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


def test_the_mark_of_one_that_has_gone_fits_beside_an_offset_with_the_times_there() -> None:
    times = {f"NODE-{n:010d}": 1_700_000_000_000 for n in range(120)}
    before = format_metadata("0123456789abcdef.1.0", times)
    assert len(before) <= MOST_BYTES
    text = text_of_gone("x" * 249, CommittedOffset(7, before))
    assert len(text) <= MOST_BYTES
    assert mark_in(text) == Mark(GONE, "x" * 249)
    kept = parse_metadata(text).stream_times
    assert 100 < len(kept) < len(times)
    assert kept.items() <= times.items()
    few = CommittedOffset(7, format_metadata("0123456789abcdef.1.0", {"NODE": 7}))
    assert parse_metadata(text_of_gone("shop-2", few)).stream_times == {"NODE": 7}


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


def test_members_of_a_release_that_cannot_hold_tasks_are_named_and_refused() -> None:
    now = seen("b")
    earlier = replace(seen("a"), data=replace(seen("a").data, used_version=2, latest_version=2))
    spoken_down = replace(now, data=replace(now.data, used_version=2))
    assert before_holding([now, earlier, spoken_down]) == ["a"]
    require_one_version([now, spoken_down], "shop", "one")
    for members, topology, named in (([now, earlier], "one", "a"), ([now], "two", "b")):
        with pytest.raises(MigrationError) as refused:
            require_one_version(members, "shop", topology)
        assert refused.value.code == "EF-MIGRATION-MEMBERS"
        assert f": {named}. " in str(refused.value)


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


def test_a_task_is_near_where_one_member_has_followed_all_its_changelogs() -> None:
    logs = {TASK_0: [TopicPartition("a", 0), TopicPartition("b", 0)]}
    logs[TASK_1] = [TopicPartition("a", 1)]
    ends = {tp: 100 for tps in logs.values() for tp in tps}

    def told(name: str, **sums: int) -> SeenMember:
        known = {TaskId(0, int(number[1:])): at for number, at in sums.items()}
        return SeenMember(name, UserData(process_id=name, offset_sums=known), None)

    assert near_tasks([told("x", t0=190), told("y", t1=89)], logs, ends, 10) == {TASK_0}
    assert near_tasks([told("x", t0=189), told("y", t0=190, t1=90)], logs, ends, 10) == {*logs}
    assert near_tasks([told("x")], logs, ends, 10) == set()
    assert near_tasks([told("x", t1=0)], logs, ends, 1_000) == {TASK_1}, "a copy of a small state"
    assert near_tasks([], logs, ends, 1_000) == set()
