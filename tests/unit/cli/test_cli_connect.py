"""What `everflow connect` makes of the topic, the group and the brokers' offsets (note 074)."""

from collections.abc import Mapping, Sequence
from typing import Any, cast

import pytest
from typer.testing import CliRunner

from everflow.cli.app import app
from everflow.cli.commands import require_not_gone
from everflow.cli.connect import (
    PAUSING,
    RESUMING,
    Desk,
    is_bad,
    list_table,
    said,
    state_of,
    status_table,
)
from everflow.cli.connect_action import Action
from everflow.errors import ApplicationMigratedError, ConfigError
from everflow.kafka.admin import ClusterAdmin, TopicShape
from everflow.kafka.reading.log_reader import RawWritten, WrittenRecords
from everflow.migration.migrator import text_of_gone
from everflow.records import CommittedOffset, TaskId, TopicPartition
from everflow.topology.connectors import (
    FAILED,
    PAUSED,
    RESTARTING,
    RUNNING,
    UNASSIGNED,
    ConnectorFacts,
    Record,
    TaskReport,
    connector_topic,
    facts_record,
    pause_record,
    report_record,
    resume_record,
)

LOG = TopicPartition(connector_topic("shop"), 0)
FACTS = ConnectorFacts(
    kind="sink",
    what="DeltaSink",
    where="app.py:3",
    tasks={1: 2},
    inputs={1: ("orders",)},
    shares=("topic copies",),
)
ORDERS = [TopicPartition("orders", p) for p in range(2)]


class Cluster:
    """The connector topic, a group, and one input of two partitions."""

    def __init__(self, *records: Record) -> None:
        self.records = [facts_record("lake", FACTS), *records]
        self.members = frozenset({"shop-1"})
        self.read = 0
        self.later: list[Record] = []
        """What comes before the next look at the topic, one after the other."""

    def end_offsets(self, logs: object, isolation: str) -> Mapping[TopicPartition, int]:
        return {LOG: len(self.records)}

    def list_offsets(
        self, logs: Sequence[TopicPartition], which: str, isolation: str
    ) -> Mapping[TopicPartition, int]:
        return dict.fromkeys(logs, 100 if which == "latest" else 10)

    def committed(
        self, group: str, logs: object, *, stable: bool
    ) -> Mapping[TopicPartition, CommittedOffset]:
        return {ORDERS[0]: CommittedOffset(70, "")}

    def describe_topics(self, topics: object) -> Mapping[str, TopicShape]:
        return {"orders": TopicShape(2, 1)}

    def client_ids(self, group: str) -> frozenset[str]:
        if self.later:
            self.records.append(self.later.pop(0))
        return self.members

    # the reader
    def read_to(self, ends: object, timeout_s: float) -> bool:
        fresh = enumerate(self.records[self.read :], self.read)
        self.written[LOG] += [RawWritten(at, key, value, 0) for at, (key, value) in fresh]
        self.read = len(self.records)
        return True

    def desk(self) -> Desk:
        self.written: dict[TopicPartition, list[RawWritten]] = {LOG: []}

        class Reader:
            records = self.written
            read_to = self.read_to

        found = Desk(
            "shop",
            cast(ClusterAdmin, self),
            LOG,
            cast(WrittenRecords, Reader()),
            self.take,
        )
        found.refresh()
        return found

    def take(self, record: Record) -> int:
        self.records.append(record)
        return len(self.records)


def report(state: str, instance: str = "shop-1", seen: int = 0, **more: Any) -> TaskReport:
    return TaskReport(state=state, instance=instance, seen=seen, **more)


def reports(*states: str, seen: int = 0) -> list[Record]:
    return [
        report_record(("lake", TaskId(1, p)), report(state, seen=seen))
        for p, state in enumerate(states)
    ]


def test_an_application_that_was_migrated_says_where_it_went() -> None:
    gone = CommittedOffset(7, text_of_gone("shop-2", CommittedOffset(7, "")))
    with pytest.raises(ApplicationMigratedError, match="everflow connect shop-2 list") as raised:
        require_not_gone("shop", {ORDERS[0]: gone}, "everflow connect {} list")
    assert raised.value.to == "shop-2"
    require_not_gone("shop", {ORDERS[0]: CommittedOffset(7, "")}, "everflow connect {} list")


def test_the_last_error_outlives_its_instance() -> None:
    error = report(FAILED, "shop-0", error="no such table", failed_ms=1_000)
    cluster = Cluster(report_record(("lake", TaskId(1, 1)), error))
    row = cluster.desk().rows(["lake"])[0]
    assert row["state"] == UNASSIGNED
    task = row["tasks"][1]
    assert (task["instance"], task["error"], task["failed_ms"]) == ("", "no such table", 1_000)
    for lines in (list_table([row]), status_table([row])):
        assert "1970-01-01T00:00:01Z no such table" in "\n".join(lines)


def test_a_row_has_state_tasks_lag_and_the_last_error() -> None:
    error = report(FAILED, error="no answer at app.py:3", failed_ms=1_000)
    cluster = Cluster(*reports(RUNNING), report_record(("lake", TaskId(1, 1)), error))
    (row,) = cluster.desk().rows(["lake"])
    assert (row["state"], row["lag"], row["shares"]) == (FAILED, 30 + 90, ["topic copies"])
    assert [(one["task"], one["state"], one["lag"]) for one in row["tasks"]] == [
        ("1_0", RUNNING, 30),
        ("1_1", FAILED, 90),
    ]
    assert is_bad(row)
    assert "1970-01-01T00:00:01Z no answer at app.py:3" in list_table([row])[1]
    assert "shop-1" in status_table([row])[1]


def test_a_report_of_who_is_gone_is_none() -> None:
    cluster = Cluster(*reports(RUNNING, RUNNING))
    cluster.members = frozenset({"shop-2"})
    (row,) = cluster.desk().rows(["lake"])
    assert [one["state"] for one in row["tasks"]] == [UNASSIGNED] * 2
    assert is_bad(row)


def test_a_command_is_done_when_each_owner_has_read_it_and_done_it() -> None:
    cluster = Cluster(*reports(RUNNING, RUNNING))
    desk = cluster.desk()
    desk.write(pause_record("lake", 5))
    assert desk.await_done("lake", Action.pause, 0.0) == [TaskId(1, 0), TaskId(1, 1)]
    cluster.records += reports(PAUSED, seen=desk.asked)
    assert desk.await_done("lake", Action.pause, 0.0) == [TaskId(1, 1)]
    cluster.records += reports(PAUSED, RUNNING, seen=desk.asked)
    assert desk.await_done("lake", Action.pause, 0.0) == [TaskId(1, 1)]
    cluster.records += reports(PAUSED, PAUSED, seen=desk.asked)
    assert desk.await_done("lake", Action.pause, 0.0) == []
    assert desk.rows(["lake"])[0]["paused_since_ms"] == 5
    cluster.records += reports(PAUSED, RESTARTING, seen=desk.asked)
    assert desk.await_done("lake", Action.restart, 0.0) == [TaskId(1, 1)]


def test_a_resumed_connector_is_resuming_until_its_tasks_have_said_that_they_run() -> None:
    cluster = Cluster(pause_record("lake", 5), *reports(PAUSED, PAUSED))
    desk = cluster.desk()
    assert desk.rows(["lake"])[0]["state"] == PAUSED
    desk.write(resume_record("lake"))
    late = desk.await_done("lake", Action.resume, 0.0)
    assert late == [TaskId(1, 0), TaskId(1, 1)]
    # An instance that has read the command, and whose thread has not taken it yet.
    cluster.records += reports(PAUSED, RUNNING, seen=desk.asked)
    assert desk.await_done("lake", Action.resume, 0.0) == [TaskId(1, 0)]
    (row,) = desk.rows(["lake"])
    assert row["state"] == RESUMING
    assert [one["state"] for one in row["tasks"]] == [RESUMING, RUNNING]
    assert not is_bad(row)
    cluster.records += reports(RUNNING, RUNNING, seen=desk.asked)
    assert desk.await_done("lake", Action.resume, 0.0) == []
    assert desk.rows(["lake"])[0]["state"] == RUNNING


def test_a_connector_whose_tasks_another_one_pauses_is_not_resuming() -> None:
    other = facts_record("table", FACTS)
    cluster = Cluster(other, pause_record("table", 5), *reports(PAUSED, PAUSED))
    desk = cluster.desk()
    assert desk.rows(["lake"])[0]["state"] == PAUSED
    desk.write(resume_record("lake"))
    cluster.records += reports(PAUSED, PAUSED, seen=desk.asked)
    assert desk.await_done("lake", Action.resume, 0.0) == []


def test_a_task_that_was_just_assigned_is_waited_for() -> None:
    cluster = Cluster()
    desk = cluster.desk()
    desk.await_reports(["lake"], 0.0)
    assert desk.rows(["lake"])[0]["state"] == UNASSIGNED, "nobody said anything in time"
    cluster.later = reports(RUNNING, RUNNING)
    desk.await_reports(["lake"], 1e12)
    assert desk.rows(["lake"])[0]["state"] == RUNNING
    cluster.members = frozenset()
    desk.refresh()
    desk.await_reports(["lake"], 1e12)
    assert desk.rows(["lake"])[0]["state"] == UNASSIGNED, "nobody is there to say anything"


def test_nobody_is_waited_for_where_nobody_runs() -> None:
    cluster = Cluster()
    cluster.members = frozenset()
    desk = cluster.desk()
    desk.write(pause_record("lake", 5))
    assert desk.await_done("lake", Action.pause, 1e9) == []
    text = " ".join(said(Action.pause, "lake", FACTS, [], running=False))
    assert "lake paused" in text
    assert "topic copies" in text


def test_an_unknown_connector_is_refused_with_those_there_are() -> None:
    with pytest.raises(ConfigError, match="lake"):
        Cluster().desk().chosen("table")
    assert Cluster().desk().chosen(None) == ["lake"]


@pytest.mark.parametrize(
    ("paused", "tasks", "state"),
    [
        (False, [RUNNING, RUNNING], RUNNING),
        (False, [RUNNING, FAILED], FAILED),
        (False, [RUNNING, UNASSIGNED], UNASSIGNED),
        (False, [RUNNING, PAUSED], PAUSED),
        (False, [], UNASSIGNED),
        (True, [PAUSED, PAUSED], PAUSED),
        (True, [PAUSED, UNASSIGNED], PAUSED),
        (True, [PAUSED, FAILED], PAUSING),
    ],
)
def test_the_state_of_a_connector_is_that_of_its_worst_task(
    paused: bool, tasks: list[str], state: str
) -> None:
    assert state_of(paused, tasks) == state


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["shop", "pause"], "CONNECTOR"),
        (["shop", "list", "--task", "1"], "--task"),
        (["shop", "pause", "lake", "--only-failed"], "--only-failed"),
        (["shop", "stop", "lake"], "stop"),
    ],
)
def test_what_is_asked_wrongly_is_a_usage_error(arguments: list[str], word: str) -> None:
    found = CliRunner().invoke(app, ["connect", *arguments])
    assert found.exit_code == 2
    assert word in found.stderr
