"""One contract, two computers of Columns: Spark jobs, and the service of the JVM without one."""

import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from contracts.test_resident_contract import Record, columns, decoded, planned, same
from everflow import StreamsBuilder, serdes
from everflow.instance.thread.columns import prepared_columns
from everflow.protocol.messages import BatchFailure
from everflow.records import EdgeBatch
from everflow.sockets import MOST_MESSAGE_BYTES
from everflow.topology.plan import ARROW, ColumnsOp, PhysicalPlan, Projection, computed_by
from everflow.worker.columns import ColumnClient
from everflow.worker.failures import SparkSays
from everflow.worker.order import Records
from oracle.job_columns import by_jobs

pytestmark = pytest.mark.spark

VALUE = serdes.json("a bigint, b struct<c: double>, s string, at timestamp, d date, l array<int>")
ROWS: list[tuple[bytes | None, bytes | None]] = [
    (b"k", b'{"a": 1, "b": {"c": 2.5}, "s": "stra\xc3\x9fe", "at": "2026-01-02T03:04:05Z"}'),
    (None, b'{"a": null, "b": null, "s": null}'),
    (b"", b'{"a": -3, "b": {"c": null}, "s": "", "d": "1970-01-01", "l": [1, null]}'),
    (b"bad", b"{broken"),
    (b"null", None),
    (b"\xff", b'{"a": 9223372036854775807, "s": "x", "at": null, "l": []}'),
]


def filtered(builder: StreamsBuilder) -> None:
    stream = builder.stream("in", key=serdes.string(), value=VALUE)
    kept = stream.filter((F.col("value.a") > 0) | F.col("value.b").isNotNull())
    kept.filter(F.length("value.s") > 0).to("out")


def shaped(builder: StreamsBuilder) -> None:
    stream = builder.stream("in", key=serdes.string(), value=VALUE)
    made = F.struct(
        F.upper("value.s").alias("s"),
        F.coalesce(F.col("value.b.c"), F.lit(0.0)).alias("c"),
        F.date_format("value.at", "yyyy-MM-dd HH:mm").alias("at"),
        F.get("value.l", F.lit(0)).alias("first"),
        F.col("timestamp").alias("time"),
        F.concat_ws("-", "topic", "partition", "offset").alias("place"),
        F.size("headers").alias("headers"),
    )
    stream.map_values(made).select_key(F.regexp_replace("value.s", "(?<=S)S", "-")).to("out")


def branched(builder: StreamsBuilder) -> None:
    stream = builder.stream("in", key=serdes.string(), value=VALUE)
    positive = F.col("value.a") > 0
    branches = stream.split().branch(positive, name="up").default_branch(name="down")
    branches["up"].map_values(F.col("value.a") % 10).to("up")
    branches["down"].map_values(F.expr("coalesce(value.s, 'none')")).to("down")
    stream.flat_map_values(F.col("value.l")).to("flat")


def grouped(builder: StreamsBuilder) -> None:
    stream = builder.stream("in", key=serdes.string(), value=VALUE)
    stream.group_by(F.lower("value.s"), name="by-s").count(store="n").to_stream().to("out")


PROGRAMS = [filtered, shaped, branched, grouped]


@pytest.fixture(autouse=True)
def _started(spark: SparkSession) -> None:
    """Programs with Columns are planned in it."""


@pytest.fixture(params=PROGRAMS, ids=lambda program: program.__name__)
def plan(request: pytest.FixtureRequest) -> PhysicalPlan:
    return planned(request.param)


Run = Callable[[Records], dict[int, EdgeBatch]]


@pytest.fixture(params=["service", "default"])
def run(plan: PhysicalPlan, request: pytest.FixtureRequest) -> Iterator[Run]:
    """A plan's Columns as a worker runs them: all of them in the JVM, and by what computes them."""
    with served(plan, service=request.param == "service") as run:
        yield run


@contextmanager
def served(plan: PhysicalPlan, *, service: bool = True) -> Iterator[Run]:
    """The Columns of a plan on a connection to where they are computed; ``service``: all of them,
    those with Arrow expressions too."""
    found = prepared_columns(without_arrow(plan) if service else plan)

    def run(records: Records) -> dict[int, EdgeBatch]:
        made = dict(records)
        for one in found.prepared:
            one(made, client)
        return made

    with closing(ColumnClient(found.path)) as client:
        yield run


def without_arrow(plan: PhysicalPlan) -> PhysicalPlan:
    """The same plan, none of whose Columns has an Arrow expression."""

    def changed(one: Projection) -> Projection:
        columns = {
            what: (replace(column, arrow=None), kind)
            for what, (column, kind) in one.columns.items()
        }
        return replace(one, columns=columns)

    ops = [
        replace(op, projections=list(map(changed, op.projections)))
        if isinstance(op, ColumnsOp)
        else op
        for op in plan.ops
    ]
    return replace(plan, ops=tuple(ops))


def records(topic: str = "in") -> list[Record]:
    return [
        Record((topic, 0, 10 + row), data, 1_000 * row, [("h", b"%d" % row)] if row % 2 else [])
        for row, data in enumerate(ROWS)
    ]


JOBS: dict[tuple[str, int], dict[int, EdgeBatch]] = {}
"""Results of Spark jobs, by program and batch."""


def test_columns_are_what_a_spark_job_makes_of_them_batch_after_batch(
    plan: PhysicalPlan, run: Run, request: pytest.FixtureRequest
) -> None:
    """On one connection with one memory: a smaller batch shows nothing of a larger one."""
    for at, listed in enumerate((records() * 50, records()[:1], records() * 3, [])):
        numbered = [
            Record((*record.place[:2], offset), record.data, record.time, record.head)
            for offset, record in enumerate(listed)
        ]
        given = decoded(plan, numbered).batches
        job = request.node.callspec.params["plan"].__name__, at
        if job not in JOBS:
            JOBS[job] = by_jobs(plan, given)
        same(plan, run(given), JOBS[job])


def later(builder: StreamsBuilder) -> None:
    stream = builder.stream("in", key=serdes.string(), value=serdes.string())
    counts = stream.group_by_key().count(store="n").to_stream()
    counts.filter(F.col("value") != 2).map_values(F.struct((F.col("value") * 2).alias("twice"))).to(
        "out", value=serdes.json("twice bigint")
    )


def test_columns_behind_an_operator(spark: SparkSession) -> None:
    plan = planned(later)
    op = plan.columns[-1]
    rows = EdgeBatch(
        key=pa.array(["a", None, "c"]),
        value=pa.array([1, 2, 3], pa.int64()),
        timestamp=np.array([10, 20, 30]),
        seq=np.array([4, 5, 9]),
        source=np.zeros(3, np.int32),
        partition=np.array([0, 1, 0], np.int32),
        offset=np.array([7, 8, 9]),
    )
    given = {**decoded(plan, []).batches, op.input: rows}
    for service in (True, False):
        with served(plan, service=service) as run:
            made = run(given)
        same(plan, made, by_jobs(plan, given))
        assert made[op.outputs[0]].seq.tolist() == [4, 9]


def failing(builder: StreamsBuilder) -> None:
    stream = builder.stream("in", key=serdes.string(), value=serdes.string())
    stream.map_values(F.col("value").cast("bigint")).to("out")


def refused(run: Run, given: Records, place: tuple[str, int, int], code: str) -> BatchFailure:
    """What Spark says of the one record of ``given`` for which a Column fails."""
    with pytest.raises(SparkSays) as failure:
        run(given)
    said = failure.value.failure
    assert said.record is not None
    assert said.record.place == place
    assert code in said.error
    return said


def test_a_column_that_fails_names_its_record_and_the_connection_goes_on() -> None:
    plan = planned(failing)
    given = [Record(("in", 0, 7 + i), (b"k", v), 0) for i, v in enumerate((b"1", b"one", b"2"))]
    with served(plan) as run:
        said = refused(run, decoded(plan, given).batches, ("in", 0, 8), "[CAST_INVALID_INPUT]")
        assert said.where[0].startswith(__file__)
        good = run(decoded(plan, [given[0], given[2]]).batches)
    (slot,) = plan.columns[0].outputs
    assert good[slot].value.to_pylist() == [1, 2]


def test_the_service_refuses_a_question_that_is_too_large_and_hangs_up() -> None:
    plan = planned(filtered)
    path = prepared_columns(without_arrow(plan)).path
    for size in (-1, MOST_MESSAGE_BYTES + 1):
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asking:
            asking.settimeout(60)
            asking.connect(path)
            asking.sendall(struct.pack(">ii", 1, size))
            answer = asking.makefile("rb").read()
        failed, row, length = struct.unpack(">iii", answer[:12])
        assert (failed, row, length) == (-1, -1, len(answer) - 12)
        assert f"a question of {size} bytes" in answer[12:].decode()


def sums(builder: StreamsBuilder) -> None:
    stream = builder.stream("in", key=serdes.string(), value=serdes.long())
    stream.filter(F.col("value") > 0).map_values(F.col("value") + 1).to("out")


def test_where_arrow_fails_spark_says_what_and_for_which_record(spark: SparkSession) -> None:
    plan = planned(sums)
    values = [5, 2**63 - 1, 0, 7]
    given = [
        Record(("in", 0, 7 + i), (b"k", v.to_bytes(8, "big")), 0) for i, v in enumerate(values)
    ]
    assert computed_by(plan.columns[0].projections[0]) == ARROW
    with served(plan, service=False) as run:
        refused(run, decoded(plan, given).batches, ("in", 0, 8), "[ARITHMETIC_OVERFLOW]")
        good = run(decoded(plan, [given[0], given[2], given[3]]).batches)
    (slot,) = plan.columns[0].outputs
    assert good[slot].value.to_pylist() == [6, 8]
    assert good[slot].seq.tolist() == [0, 2]


def test_threads_have_expressions_of_their_own(spark: SparkSession) -> None:
    """to_json keeps a writer: two threads in one write each other's JSON."""
    plan = planned(shaped_as_json)
    given = records() * 200
    with served(plan) as run:
        expected = columns_of_all(run(decoded(plan, given).batches))
    outcomes: list[object] = []

    def work() -> None:
        with served(plan) as run:
            outcomes.extend(
                columns_of_all(run(decoded(plan, given).batches)) == expected for _ in range(20)
            )

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert outcomes == [True] * 80


def shaped_as_json(builder: StreamsBuilder) -> None:
    stream = builder.stream("in", key=serdes.string(), value=VALUE)
    stream.map_values(F.to_json("value")).to("out")


def columns_of_all(records: Records) -> list[object]:
    return [columns(batch) for _, batch in sorted(records.items())]
