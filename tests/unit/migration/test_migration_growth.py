"""An input that got partitions before or during a migration: no record is lost or counted twice."""

import threading

import pytest

from everflow import StreamsBuilder, serdes
from everflow.assignment.user_data import AssignmentData, UserData, encode, encode_assignment
from everflow.clock import SystemClock
from everflow.config import StreamsConfig
from everflow.errors import MigrationError
from everflow.kafka.admin import MemberDescription
from everflow.kafka.group_channel import GroupSettings
from everflow.kafka.writing.transaction import GroupMetadata
from everflow.migration.holding import Holder, await_still
from everflow.migration.migrator import Migrator
from everflow.migration.plan import planned
from everflow.migration.programs import Program, program_of
from everflow.records import CommittedOffset, TaskId, TopicPartition

VALUE = serdes.json("a string, n bigint")


def counted(application_id: str, between: bool = False, read: int = 4) -> Program:
    builder = StreamsBuilder()
    stream = builder.stream("in", key=serdes.string(), value=VALUE)
    if between:
        stream = stream.repartition(name="by-a", partitions=4)
    stream.group_by_key().count(store="counts")
    return program_of(
        builder.build(),
        application_id=application_id,
        topics={"in": read, "shop-counts-changelog": 4},
        optimization="none",
        topic_config={},
        additional_retention_ms=0,
    )


def holder_of(program: Program) -> Holder:
    settings = GroupSettings(
        bootstrap_servers="nowhere:1",
        group_id="shop",
        session_timeout_ms=10_000,
        heartbeat_interval_ms=100,
        rebalance_timeout_ms=10_000,
        client_id="shop-migration",
        client={},
    )
    return Holder(settings, program, "process")


def test_a_migrator_that_leads_counts_tasks_as_the_members_do() -> None:
    program = counted("shop", read=8)
    assert len(program.tasks()) == 4
    assignor = holder_of(program)._assignor
    assert assignor.task_of(TopicPartition("in", 5)) == TaskId(0, 1)


def migrator_of(began: dict[TopicPartition, CommittedOffset] | None = None) -> Migrator:
    old, new = counted("shop"), counted("shop-2")
    found = Migrator(
        config=StreamsConfig(application_id="shop-2", bootstrap_servers="nowhere:1"),
        plan=planned(old, new),
        old=old,
        new=new,
        functions={},
        admin=None,  # type: ignore[arg-type]
        status=None,  # type: ignore[arg-type]
    )
    found._began = None if began is None else frozenset(began)
    return found


@pytest.mark.parametrize("came", [TopicPartition("in", 4), TopicPartition("in-of-a-pattern", 0)])
def test_no_switch_where_the_old_version_has_read_what_came_meanwhile(came: TopicPartition) -> None:
    migrator = migrator_of(began={})
    migrator._require_same_inputs([TopicPartition("in", number) for number in range(4)])
    with pytest.raises(MigrationError, match=f"{came}.*migrate again"):
        migrator._require_same_inputs([TopicPartition("in", 0), came])


def test_topics_that_the_old_program_read_once_refuse_no_switch() -> None:
    was = TopicPartition("of-an-earlier-program", 0)
    migrator_of(began={was: CommittedOffset(1, "")})._require_same_inputs([was])


def test_no_switch_while_somebody_has_a_task_that_came_meanwhile() -> None:
    program = counted("shop", between=True)
    holder = holder_of(program)
    held = frozenset(program.tasks())

    def description(owned: frozenset[TaskId]) -> MemberDescription:
        data = UserData(process_id="p", owned=owned, topology=holder.topology)
        return MemberDescription(
            member_id="m",
            client_id="m",
            host="h",
            subscription=encode(data),
            assignment=encode_assignment(AssignmentData()),
        )

    member = GroupMetadata(3, "shop", "m", None)
    holder.member = lambda: member  # type: ignore[method-assign]
    clock, stop = SystemClock(), threading.Event()
    still = await_still(holder, held, lambda: [description(frozenset())], clock, stop, 0.0)
    assert still == member
    grown = description(frozenset({TaskId(0, 4)}))
    with pytest.raises(MigrationError, match="0_4"):
        await_still(holder, held, lambda: [grown], clock, stop, 0.0)
