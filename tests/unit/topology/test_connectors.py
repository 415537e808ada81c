"""Which connectors a program has, what shares their tasks, and what the topic says (note 074)."""

import json

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from everflow import StreamsBuilder, serdes
from everflow.records import TaskId, TopicPartition
from everflow.topology.connectors import (
    Connector,
    ConnectorBook,
    ConnectorFacts,
    Record,
    Restart,
    TaskReport,
    connectors,
    facts_of,
    facts_record,
    pause_record,
    paused_parts,
    report_record,
    restart_record,
    resume_record,
    sharing,
)
from everflow.topology.subtopologies import SubTopologies, cut

TEXT = serdes.string()


def write(rows: pa.Table) -> None:
    pass


def program() -> SubTopologies:
    """``near`` and ``twin`` in the tasks that read the input, ``apart`` behind a repartition."""
    builder = StreamsBuilder()
    orders = builder.stream("orders", key=TEXT, value=TEXT)
    orders.to("copies")
    orders.for_each_batch(write, name="near")
    orders.for_each_batch(write, name="twin")
    orders.repartition(name="own").for_each_batch(write, name="apart")
    return cut(builder.build())


def test_a_programs_sinks_are_its_connectors() -> None:
    found = connectors(program())
    assert sorted(found) == ["apart", "near", "twin"]
    assert {one.kind for one in found.values()} == {"sink"}
    assert found["near"].subtopologies == found["twin"].subtopologies
    assert found["near"].subtopologies.isdisjoint(found["apart"].subtopologies)
    assert "test_connectors.py" in (found["near"].where or "")
    plain = StreamsBuilder()
    plain.stream("orders", key=TEXT, value=TEXT).to("copies")
    assert connectors(cut(plain.build())) == {}


def test_what_stands_still_with_a_connector_is_named() -> None:
    subs = program()
    found = connectors(subs)
    assert set(sharing("near", found, subs)) == {
        "sink twin",
        "topic copies",
        "topic own-repartition",
    }
    assert sharing("apart", found, subs) == []


def test_the_paused_ones_name_the_parts_that_do_not_run() -> None:
    found = connectors(program())
    near = found["near"].subtopologies
    assert paused_parts(found, []) == frozenset()
    assert paused_parts(found, ["near", "twin"]) == near
    assert paused_parts(found, ["near", "apart", "of another program"]) == (
        near | found["apart"].subtopologies
    )


def test_facts_name_tasks_and_inputs() -> None:
    subs = program()
    found = connectors(subs)
    facts = facts_of(found, subs, "shop", lambda _: 2)["apart"]
    (part,) = found["apart"].subtopologies
    assert facts.all_tasks == [TaskId(part, 0), TaskId(part, 1)]
    own = "shop-own-repartition"
    assert facts.reads(TaskId(part, 1), TopicPartition(own, 1))
    assert facts.reads(TaskId(part, 1), TopicPartition(own, 3)), "its topic grew"
    assert not facts.reads(TaskId(part, 1), TopicPartition(own, 2))
    assert not facts.reads(TaskId(part, 1), TopicPartition("orders", 1))


# --- the topic ------------------------------------------------------------------------------------

PLACE = ("lake", TaskId(1, 0))
REPORT = TaskReport(state="FAILED", instance="shop-1", seen=7, error="no answer", failed_ms=5)


def book_of(*records: Record, start: int = 0) -> tuple[ConnectorBook, list[Restart]]:
    book = ConnectorBook()
    restarts = book.take((start + at, key, value) for at, (key, value) in enumerate(records))
    return book, restarts


def test_a_pause_lasts_until_the_resume() -> None:
    book, _ = book_of(pause_record("lake", 10), pause_record("table", 20))
    assert book.paused == {"lake": 10, "table": 20}
    book, _ = book_of(pause_record("lake", 10), resume_record("lake"), start=40)
    assert (book.paused, book.position, book.commanded) == ({}, 42, 42)


def test_restarts_are_given_once_and_reports_are_no_commands() -> None:
    wanted = Restart(connector="lake", task=3, only_failed=True)
    book, restarts = book_of(restart_record(wanted), report_record(PLACE, REPORT))
    assert restarts == [wanted]
    assert book.reports == {PLACE: REPORT}
    assert (book.position, book.commanded) == (2, 1)
    assert book.take([]) == []


def test_facts_come_back_as_they_were_and_go_with_their_connector() -> None:
    subs = program()
    facts = facts_of(connectors(subs), subs, "shop", lambda _: 2)["near"]
    book, _ = book_of(facts_record("near", facts))
    assert book.facts == {"near": facts}
    book, _ = book_of(facts_record("near", facts), facts_record("near", None))
    assert book.facts == {}


OTHERS = [
    *(None, b"", b"\xff", b"pause", b"pause/lake", b"task/lake", b"task/lake/x", b"task/lake/0_0"),
    *(b"restart/lake", b"connector/lake", b"a/b/c"),
]
VALUES = [b"", b"{", b"[]", b"null", b"7", json.dumps({"more": 1}).encode(), b"\xff"]


@given(st.lists(st.tuples(st.sampled_from(OTHERS), st.sampled_from(VALUES)), max_size=6))
def test_what_cannot_be_read_is_left_out(records: list[Record]) -> None:
    """Another release's, or somebody's by hand: an instance goes on."""
    book, _ = book_of(pause_record("table", 1), *records)
    assert book.paused["table"] == 1
    assert book.position == len(records) + 1


NAMES = st.sampled_from(["lake", "table"])
RECORDS = st.one_of(
    st.builds(pause_record, NAMES, st.integers(0, 9)),
    st.builds(resume_record, NAMES),
    st.builds(
        report_record,
        st.tuples(NAMES, st.builds(TaskId, st.integers(0, 1), st.integers(0, 1))),
        st.builds(TaskReport, state=st.sampled_from(["RUNNING", "PAUSED"]), instance=st.just("i")),
    ),
    st.builds(
        facts_record,
        NAMES,
        st.builds(
            ConnectorFacts,
            kind=st.just("sink"),
            what=st.just("x"),
            where=st.just(""),
            tasks=st.just({0: 1}),
            inputs=st.just({0: ("in",)}),
        ),
    ),
)


@given(st.lists(RECORDS, max_size=20))
def test_compaction_changes_nothing_that_is_wanted(records: list[Record]) -> None:
    """The broker keeps the last record of each key, and drops a null after a day."""
    last = {key: (at, value) for at, (key, value) in enumerate(records)}
    kept = sorted((at, key, value) for key, (at, value) in last.items() if value is not None)
    whole, compacted = ConnectorBook(), ConnectorBook()
    whole.take((at, key, value) for at, (key, value) in enumerate(records))
    compacted.take(kept)
    assert (whole.paused, whole.reports, whole.facts) == (
        compacted.paused,
        compacted.reports,
        compacted.facts,
    )


def test_a_connector_has_the_tasks_of_its_parts() -> None:
    one = Connector(name="lake", kind="sink", what="DeltaSink", subtopologies=frozenset({2}))
    assert one.has(TaskId(2, 7))
    assert not one.has(TaskId(1, 7))


def test_a_source_is_a_connector_of_its_planner_and_its_splits() -> None:
    builder = StreamsBuilder()
    rows = builder.read("json", name="files", schema="item string", tasks=3, path="there")
    rows.to("items")
    subs = cut(builder.build())
    found = connectors(subs)["files"]
    assert (found.kind, found.what) == ("source", "JsonFiles")
    read = {topic for part in found.subtopologies for topic in subs.subtopologies[part].inputs("a")}
    assert read == {"a-files-plan-repartition", "a-files-splits-repartition"}
    assert sharing("files", connectors(subs), subs) == ["topic items"]
