"""A record that fails goes to its handler alone: the others of its batch come out, in order."""

from __future__ import annotations

import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import functions as F

from everflow import ErrorHandlerContext, Response, StreamsBuilder, Topology, agg, serdes
from everflow.errors import ConfigError, EverflowError, FatalError, RecordError, RetriableError
from everflow.serdes import SerdeError
from everflow.testing import TestRecord, TopologyTestDriver

pytestmark = pytest.mark.spark
GOOD = 40
VALUE = serdes.json("n bigint, t timestamp, d date")
RAW = serdes.bytes_()
BAD_AT = 13


def mapped(function: Any, schema: str = "n bigint, t timestamp, d date") -> Topology:
    builder = StreamsBuilder()
    stream = builder.stream("in", key=serdes.string(), value=serdes.json(schema))
    function(stream).to("out")
    return builder.build()


def fails_on_minus_one(value: dict[str, Any]) -> dict[str, Any]:
    if value["n"] == -1:
        raise LookupError("no such n")
    return {"n": value["n"]}


def late_date(stream: Any) -> Any:
    """A Column makes a date that Python has not, and a function is to see it."""
    far = stream.map_values(
        F.struct(
            F.col("value.n").alias("n"),
            F.when(F.col("value.n") == -1, F.date_add(F.lit("9999-12-31").cast("date"), 5)).alias(
                "d"
            ),
        )
    )
    return far.map_values(lambda value: value["n"], returns="bigint")


def far_date_out(stream: Any) -> Any:
    return stream.map_values(
        F.struct(
            F.col("value.n").alias("n"),
            F.when(F.col("value.n") == -1, F.date_add(F.lit("9999-12-31").cast("date"), 5)).alias(
                "d"
            ),
        )
    )


PROGRAMS = {
    "function": lambda stream: stream.map_values(fails_on_minus_one, returns="n bigint"),
    "column division": lambda stream: stream.map_values(
        F.struct((F.lit(10) / (F.col("value.n") + 1)).alias("q"), F.col("value.n").alias("n"))
    ),
    "ansi cast": lambda stream: stream.map_values(
        F.struct(
            F.when(F.col("value.n") == -1, F.lit("x")).otherwise("1").cast("int").alias("i"),
            F.col("value.n").alias("n"),
        )
    ),
    "date beyond 9999 into a function": late_date,
    "date beyond 9999 on the way out": far_date_out,
}


def pipe(driver: TopologyTestDriver, records: Any, value: Any = VALUE) -> None:
    driver.create_input_topic("in", serdes.string(), value).pipe_batch(records)


def out(driver: TopologyTestDriver, value: Any = RAW, topic: str = "out") -> list[TestRecord]:
    return driver.create_output_topic(topic, serdes.string(), value).read_records()


def letters(driver: TopologyTestDriver) -> list[TestRecord]:
    return out(driver, topic="dead")


def piped(driver: TopologyTestDriver, bad: Any) -> list[tuple[str, Any]]:
    records = [(f"k{n % 3}", {"n": n}) for n in range(GOOD)]
    records.insert(BAD_AT, ("bad", bad))
    pipe(driver, records)
    return records


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_record_that_fails_is_a_dead_letter_and_the_others_come_out(program: str) -> None:
    topology = mapped(PROGRAMS[program])
    with TopologyTestDriver(topology, dead_letter_topic="dead") as driver:
        piped(driver, {"n": -1})
        keys = [record.key for record in out(driver)]
        assert keys == [f"k{n % 3}" for n in range(GOOD)]
        (letter,) = letters(driver)
        assert (letter.key, letter.value) == ("bad", b'{"n":-1,"t":null,"d":null}')
        headers = dict(letter.headers)
        assert headers["__streams.errors.offset"] == str(BAD_AT).encode()
        assert headers["__streams.errors.topic"] == b"in"
        assert headers["__streams.errors.exception"]
        assert headers["__streams.errors.message"]
        assert headers["__everflow.errors.task"] == b"0_0"


@pytest.mark.parametrize("program", PROGRAMS)
def test_without_a_dead_letter_topic_the_record_is_named(program: str) -> None:
    with TopologyTestDriver(mapped(PROGRAMS[program])) as driver:
        with pytest.raises(EverflowError, match=f"in-0@{BAD_AT}"):
            piped(driver, {"n": -1})
        assert out(driver) == []


@pytest.mark.parametrize(
    "raw",
    [
        b'{"t": 1700000000000}',
        b'{"t": 1700000000}',
        b'{"n": ' + b"[" * 100_000,
        b"[" * 100_000 + b"]" * 100_000,
        b'{"d": "12024-01-01"}',
        b'{"t": "+58861-01-01T00:00:00Z"}',
    ],
    ids=["epoch-ms", "epoch-s", "open-brackets", "brackets", "far-date", "far-time"],
)
def test_json_that_is_poison_is_a_dead_letter(raw: bytes) -> None:
    topology = mapped(lambda stream: stream.map_values(lambda value: value["n"], returns="bigint"))
    with TopologyTestDriver(topology, dead_letter_topic="dead") as driver:
        good = [("k", b'{"n": 1}')] * 5
        pipe(driver, [*good[:2], ("bad", raw), *good[2:]], RAW)
        assert len(out(driver)) == 5
        (letter,) = letters(driver)
        assert letter.value == raw


def test_a_sum_beyond_38_digits_leaves_out_the_record_that_does_it() -> None:
    builder = StreamsBuilder()
    stream = builder.stream("in", key=serdes.string(), value=serdes.json("x decimal(38,0)"))
    stream.group_by_key().aggregate(total=agg.sum("value.x"), store="totals").to_stream().to("out")
    most = Decimal("9" * 38)
    with TopologyTestDriver(builder.build(), dead_letter_topic="dead") as driver:
        pipe(
            driver,
            [
                ("a", {"x": Decimal(1)}),
                ("b", {"x": most}),
                ("b", {"x": most}),
                ("a", {"x": Decimal(2)}),
            ],
            serdes.json("x decimal(38,0)"),
        )
        totals = serdes.json("total decimal(38,0)")
        found = {record.key: record.value["total"] for record in out(driver, totals)}
        assert found == {"a": 3, "b": most}
        (letter,) = letters(driver)
        assert dict(letter.headers)["__streams.errors.offset"] == b"2"


def test_many_records_that_fail_in_one_batch() -> None:
    topology = mapped(PROGRAMS["function"])
    with TopologyTestDriver(topology, dead_letter_topic="dead") as driver:
        pipe(driver, [(str(n), {"n": -1 if n % 2 else n}) for n in range(400)])
        assert [r.key for r in out(driver)] == [str(n) for n in range(0, 400, 2)]
        assert len(letters(driver)) == 200


def test_half_an_effect_is_taken_back() -> None:
    """The count has seen the record before the function behind it fails."""
    builder = StreamsBuilder()
    stream = builder.stream("in", key=serdes.string(), value=serdes.json("n bigint"))
    counts = stream.group_by_key().count(store="counts")
    counts.to_stream().map_values(lambda count: 1 // (3 - count), returns="bigint").to("out")
    with TopologyTestDriver(
        builder.build(), dead_letter_topic="dead", emit_every_update=True
    ) as driver:
        pipe(driver, [("a", {"n": n}) for n in range(3)])
        assert driver.get_key_value_store("counts").get("a") == 2
        (letter,) = letters(driver)
        assert dict(letter.headers)["__everflow.errors.stage"] == b"processing"


@pytest.mark.parametrize("at", [10**18, 2**70, "no time"])
def test_a_time_that_is_none_leaves_out_its_record(at: Any) -> None:
    builder = StreamsBuilder()
    extractor = lambda value: at if value["n"] == -1 else 1_000 + value["n"]  # noqa: E731
    builder.stream("in", key=serdes.string(), value=VALUE, timestamp=extractor).to("out")
    with TopologyTestDriver(builder.build(), dead_letter_topic="dead") as driver:
        piped(driver, {"n": -1})
        assert [record.timestamp for record in out(driver)] == [1_000 + n for n in range(GOOD)]
        (letter,) = letters(driver)
        assert dict(letter.headers)["__streams.errors.offset"] == str(BAD_AT).encode()


@pytest.mark.parametrize("name", ["no topic!", "", "..", "x" * 250, None, 7, ["out"]])
def test_a_topic_that_is_none_leaves_out_its_record(name: Any) -> None:
    """A broker would be asked for it until task.timeout.ms is over."""
    builder = StreamsBuilder()
    stream = builder.stream("in", key=serdes.string(), value=VALUE)
    stream.to(lambda key, value: "out" if value["n"] != -1 else name)
    topology = builder.build()
    with TopologyTestDriver(topology, dead_letter_topic="dead") as driver:
        piped(driver, {"n": -1})
        assert len(out(driver)) == GOOD
        (letter,) = letters(driver)
        assert b"not a name" in (dict(letter.headers)["__streams.errors.message"] or b"")


class Registered:
    """Its registry is away while the file is there."""

    type = VALUE.type

    def __init__(self, away: Path) -> None:
        self.away = str(away)

    def _ask(self) -> None:
        if Path(self.away).exists():
            raise ConnectionRefusedError("nobody answers")

    def encode(self, value: dict[str, Any]) -> bytes:
        self._ask()
        return str(value["n"]).encode()

    def decode(self, data: bytes) -> dict[str, Any]:
        self._ask()
        return {"n": int(data), "t": None, "d": None}


REGISTERED: dict[str, Any] = {
    "sink": lambda stream, serde: stream.to("out", value=serde),
    "re-key": lambda stream, serde: stream.repartition(name="again", value=serde, partitions=1).to(
        "out"
    ),
    "store": lambda stream, serde: stream.to_table(store="t", value=serde).to_stream().to("out"),
}


@pytest.mark.parametrize("place", REGISTERED)
def test_a_registry_that_is_away_is_waited_for_wherever_its_serde_writes(
    place: str, tmp_path: Path
) -> None:
    away = tmp_path / "away"
    builder = StreamsBuilder()
    stream = builder.stream("in", key=serdes.string(), value=VALUE)
    REGISTERED[place](stream, Registered(away))
    with TopologyTestDriver(
        builder.build(),
        dead_letter_topic="dead",
        exception_handlers={"production": "continue", "processing": "continue"},
    ) as driver:
        away.touch()
        with pytest.raises(RetriableError, match="gets no answer"):
            pipe(driver, [("a", {"n": 1})])
        assert out(driver) == letters(driver) == []
        away.unlink()
        pipe(driver, [("a", {"n": 1})])
        assert len(out(driver)) == 1
        assert letters(driver) == []


class Refuses:
    type = VALUE.type

    def encode(self, value: dict[str, Any]) -> bytes:
        return str(10 // (value["n"] + 1)).encode()

    def decode(self, data: bytes) -> dict[str, Any]:
        return {"n": int(data), "t": None, "d": None}


STAGES: dict[str, tuple[Any, bytes]] = {
    "deserialization": (lambda stream: stream.to("out"), b"{"),
    "processing": (
        lambda stream: stream.map_values(fails_on_minus_one, returns="n bigint").to("out"),
        b'{"n": -1}',
    ),
    "production": (lambda stream: stream.to("out", value=Refuses()), b'{"n": -1}'),
}


class TestHandlers:
    @pytest.mark.parametrize("stage", STAGES)
    def test_the_handler_of_each_stage_has_the_whole_context(self, stage: str) -> None:
        asked: list[tuple[ErrorHandlerContext, BaseException]] = []

        def handler(context: ErrorHandlerContext, error: BaseException) -> Response:
            asked.append((context, error))
            return Response.CONTINUE

        program, bad = STAGES[stage]
        builder = StreamsBuilder()
        program(builder.stream("in", key=serdes.string(), value=VALUE))
        topology = builder.build()
        with TopologyTestDriver(topology, exception_handlers={stage: handler}) as driver:
            own = [("own", b"header")]
            pipe(driver, [("good", b'{"n": 1}', 7), ("bad", bad, 8, own)], RAW)
            assert [record.key for record in out(driver)] == ["good"]
        ((context, error),) = asked
        node = context.processor_node_id
        assert node in {one.name for one in topology.nodes}
        assert context == ErrorHandlerContext(
            stage=stage,
            topic="in",
            partition=0,
            offset=1,
            timestamp=8,
            headers=own,
            source_raw_key=b"bad",
            source_raw_value=bad,
            processor_node_id=node,
            task_id="0_0",
            attempt=0,
        )
        assert isinstance(error, SerdeError | LookupError | ZeroDivisionError)

    @pytest.mark.parametrize("name", ["fail", "LogAndFailProcessingExceptionHandler"])
    def test_fail_stops_though_there_is_a_topic(self, name: str) -> None:
        topology = mapped(PROGRAMS["function"])
        settings = {"processing": name}
        with (
            TopologyTestDriver(
                topology, dead_letter_topic="dead", exception_handlers=settings
            ) as driver,
            pytest.raises(RecordError, match="no such n"),
        ):
            piped(driver, {"n": -1})

    def test_a_handler_that_fails_itself_is_told_with_both_errors(self) -> None:
        def broken(context: ErrorHandlerContext, error: BaseException) -> Response:
            raise RuntimeError("no handler today")

        topology = mapped(PROGRAMS["function"])
        with (
            TopologyTestDriver(topology, exception_handlers={"processing": broken}) as driver,
            pytest.raises(FatalError, match="handler"),
        ):
            piped(driver, {"n": -1})

    def test_an_operator_has_its_own(self) -> None:
        builder = StreamsBuilder()
        stream = builder.stream("in", key=serdes.string(), value=VALUE)
        stream.map_values(fails_on_minus_one, returns="n bigint", name="parse").to("out")
        topology = builder.build()
        settings = {"processing": {"parse": "continue", "*": "fail"}}
        with TopologyTestDriver(topology, exception_handlers=settings) as driver:
            piped(driver, {"n": -1})
            assert len(out(driver)) == GOOD
        others = {"processing": {"parse": "fail", "*": "continue"}}
        with (
            TopologyTestDriver(topology, exception_handlers=others) as driver,
            pytest.raises(RecordError, match="no such n"),
        ):
            piped(driver, {"n": -1})
        with pytest.raises(ConfigError, match="parse"):
            TopologyTestDriver(topology, exception_handlers={"processing": {"prase": "fail"}})

    def test_a_handler_of_undecodable_records(self) -> None:
        topology = mapped(PROGRAMS["function"])
        settings = {"deserialization": lambda context, error: Response.CONTINUE}
        with TopologyTestDriver(topology, exception_handlers=settings) as driver:
            pipe(driver, [("a", b"{"), ("b", b'{"n": 1}')], RAW)
            assert [record.key for record in out(driver)] == ["b"]


def test_times_are_kept() -> None:
    """Leaving a record out changes no other one."""
    topology = mapped(PROGRAMS["function"])
    when = datetime.datetime(2026, 1, 1, tzinfo=datetime.timezone.utc)
    with TopologyTestDriver(topology, dead_letter_topic="dead") as driver:
        pipe(driver, [("a", {"n": 1}, int(when.timestamp() * 1000)), ("b", {"n": -1}, 5)])
        (found,) = out(driver)
        assert found.timestamp == int(when.timestamp() * 1000)
        (letter,) = letters(driver)
        assert letter.timestamp == 5
