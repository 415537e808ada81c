"""A record, or a call of a clock, that fails goes to its handler alone: the others of its batch
come out, in order. What a store holds is blamed on no record (note 041)."""

from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyspark.sql import functions as F

from everflow import (
    ErrorHandlerContext,
    Processor,
    PunctuationType,
    Record,
    Response,
    SessionWindows,
    Stores,
    StreamsBuilder,
    TimeWindows,
    Topology,
    agg,
    punctuate,
    serdes,
)
from everflow.dsl.streams import KStream
from everflow.errors import (
    ConfigError,
    DamagedEntryError,
    EverflowError,
    FatalError,
    RecordError,
    RetriableError,
)
from everflow.records import StoreChanges
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


PROGRAMS = {
    "function": lambda stream: stream.map_values(fails_on_minus_one, returns="n bigint"),
    "ansi cast": lambda stream: stream.map_values(
        F.struct(
            F.when(F.col("value.n") == -1, F.lit("x")).otherwise("1").cast("int").alias("i"),
            F.col("value.n").alias("n"),
        )
    ),
    "date beyond 9999 into a function": late_date,
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
def test_a_record_that_fails_is_a_dead_letter_or_named(program: str) -> None:
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
    with TopologyTestDriver(topology) as driver:
        with pytest.raises(EverflowError, match=f"in-0@{BAD_AT}"):
            piped(driver, {"n": -1})
        assert out(driver) == []


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


def test_half_an_effect_is_taken_back() -> None:
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
def test_an_absent_registry_is_waited_for_wherever_it_writes(place: str, tmp_path: Path) -> None:
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


@pytest.mark.parametrize("failure", [RuntimeError("no handler today"), SystemExit("today"), 7])
def test_a_handler_that_fails_itself_is_told_with_both_errors(failure: Any) -> None:
    def broken(context: ErrorHandlerContext, error: BaseException) -> Response:
        if isinstance(failure, BaseException):
            raise failure
        answer: Response = failure
        return answer

    topology = mapped(PROGRAMS["function"])
    with (
        TopologyTestDriver(topology, exception_handlers={"processing": broken}) as driver,
        pytest.raises(FatalError, match="handler") as found,
    ):
        piped(driver, {"n": -1})
    assert "no such n" in str(found.value), "the record's error"
    assert repr(failure) in str(found.value) or str(failure) in str(found.value)


TEXT = serdes.string()
LONG = serdes.long()
NUMBER = serdes.json("n bigint")
Program = Callable[[StreamsBuilder, KStream], object]


class Remembers(Processor):
    """Hides what its store raises, as user code does."""

    def init(self, context: Any) -> None:
        self.seen = context.store("s")

    def process(self, record: Any) -> None:
        try:
            before = self.seen.get(record.key, 0)
        except Exception as error:
            raise RuntimeError("cannot remember") from error
        self.seen.put(record.key, before + 1)
        self.context.forward(record)


def joined(builder: StreamsBuilder, stream: KStream) -> object:
    other = builder.table("other", key=TEXT, value=NUMBER, store="s")
    return stream.join(other, lambda left, right: left["n"], returns="bigint")


def processed(builder: StreamsBuilder, stream: KStream) -> object:
    return stream.process(Remembers, stores=[Stores.key_value("s", key=TEXT, value=LONG)])


STORED: dict[str, Program] = {
    "count": lambda _, stream: stream.group_by_key().count(store="s"),
    "windows": lambda _, stream: (
        stream.group_by_key().windowed_by(TimeWindows.of_size("10 s")).count(store="s")
    ),
    "sessions": lambda _, stream: (
        stream.group_by_key().windowed_by(SessionWindows.of_inactivity_gap("10 s")).count(store="s")
    ),
    "built-in": lambda _, stream: stream.group_by_key().aggregate(
        mean=agg.avg("value.n"), names=agg.collect_list("value.n"), store="s"
    ),
    "function": lambda _, stream: stream.group_by_key().aggregate(
        initializer=lambda: 0,
        aggregator=lambda key, value, total: total + value["n"],
        returns="bigint",
        store="s",
    ),
    "join": joined,
    "processor": processed,
}
FEW = b"\1\2\3"


def damaged(driver: TopologyTestDriver, value: bytes) -> bytes:
    """Another value for what is stored of key ``bad``; the key."""
    store: Any = driver._stores["s"]
    key = next(key for key, _ in store.range(None, None) if key.startswith(b"bad"))
    store.apply(StoreChanges("s", [key], [value], np.array([1_500], np.int64)))
    return bytes(key)


@pytest.mark.parametrize("program", STORED)
def test_no_record_is_blamed_for_what_a_store_holds(program: str) -> None:
    builder = StreamsBuilder()
    STORED[program](builder, builder.stream("in", key=TEXT, value=NUMBER))
    with TopologyTestDriver(builder.build(), dead_letter_topic="dead") as driver:
        names = ["in", *(["other"] if program == "join" else [])]
        topics = [driver.create_input_topic(name, TEXT, NUMBER) for name in names]
        for topic in topics:
            topic.pipe_batch([("bad", {"n": 1}, 1_000), ("good", {"n": 1}, 1_000)])
        key = damaged(driver, FEW)
        records = [("good", {"n": n}, 2_000 + n) for n in range(20)]
        records.insert(7, ("bad", {"n": 7}, 2_007))
        with pytest.raises(DamagedEntryError) as raised:
            topics[0].pipe_batch(records)
        error = raised.value
        assert (error.code, error.store, str(error.task)) == ("EF-DAMAGED-ENTRY", "s", "0_0")
        assert error.key == key
        assert "s of task 0_0 is damaged: " in str(error)
        assert repr(FEW) in str(error)
        dead = driver.create_output_topic("dead", serdes.bytes_(), serdes.bytes_())
        assert dead.read_records() == []


STORE = Stores.key_value("seen", key=serdes.string(), value=serdes.long())


class Fails(Processor):
    """Its call by stream time at 20 ms changes its store, forwards, and raises then."""

    def process(self, record: Record) -> None:
        self.context.store("seen").put(record.key, record.value)
        self.context.forward(record)

    @punctuate("10 ms")
    def tick(self, time: int) -> None:
        self.context.store("seen").put("tick", time)
        self.context.forward(Record("tick", time, time))
        if time == 20:
            raise LookupError("no tick at 20")


class FailsByClock(Processor):
    def process(self, record: Record) -> None:
        self.context.forward(record)

    @punctuate("1 s", PunctuationType.WALL_CLOCK_TIME)
    def tick(self, time: int) -> None:
        self.context.forward(Record("tick", time, time))
        raise LookupError("no clock")


class ForwardsText(Processor):
    def process(self, record: Record) -> None:
        self.context.forward(record)

    @punctuate("10 ms")
    def tick(self, time: int) -> None:
        if time == 20:
            self.context.forward(Record("tick", "text", time))


def ticking(made: Callable[[], Processor], store: Any = STORE) -> Topology:
    builder = StreamsBuilder()
    builder.stream("in", key=serdes.string(), value=serdes.long()).process(
        made, stores=[store], returns=("string", "bigint"), name="ticks"
    ).to("out", key=serdes.string(), value=serdes.long())
    return builder.build()


def results(driver: TopologyTestDriver) -> list[tuple[Any, Any]]:
    topic = driver.create_output_topic("out", serdes.string(), serdes.long())
    return [(one.key, one.value) for one in topic.read_records()]


RECORDS = [("a", 1, 10), ("b", 2, 20), ("c", 3, 30)]


def put(driver: TopologyTestDriver, records: list[tuple[str, int, int]], cut: bool = False) -> None:
    topic = driver.create_input_topic("in", serdes.string(), serdes.long())
    for batch in [[one] for one in records] if cut else [records]:
        topic.pipe_batch(batch)


def put_and_tick(driver: TopologyTestDriver) -> None:
    put(driver, RECORDS)
    driver.advance_wall_clock_time(1000)


class Handler:
    def __init__(self, response: Response) -> None:
        self.response = response
        self.asked: list[tuple[ErrorHandlerContext, BaseException]] = []

    def __call__(self, context: ErrorHandlerContext, error: BaseException) -> Response:
        self.asked.append((context, error))
        return self.response


@pytest.mark.parametrize("cut", [False, True], ids=["one batch", "a batch each"])
def test_a_call_that_is_left_out_has_no_half_effect(cut: bool) -> None:
    handler = Handler(Response.CONTINUE)
    with TopologyTestDriver(ticking(Fails), exception_handlers={"processing": handler}) as driver:
        put(driver, RECORDS, cut)
        assert results(driver) == [("a", 1), ("tick", 10), ("b", 2), ("c", 3), ("tick", 30)]
        store = driver.get_key_value_store("seen")
        assert dict(store.all()) == {"a": 1, "b": 2, "c": 3, "tick": 30}
    ((context, error),) = handler.asked
    assert context == ErrorHandlerContext(
        stage="processing",
        topic=None,
        partition=-1,
        offset=-1,
        timestamp=20,
        headers=(),
        source_raw_key=None,
        source_raw_value=None,
        processor_node_id="ticks",
        task_id="0_0",
        attempt=0,
    )
    assert isinstance(error, LookupError)


@pytest.mark.parametrize("handlers", [{"ticks": "continue", "*": "fail"}, "continue"])
def test_a_call_by_the_wall_clock_is_left_out_by_its_operators_handler(handlers: Any) -> None:
    with TopologyTestDriver(
        ticking(FailsByClock), exception_handlers={"processing": handlers}
    ) as driver:
        put(driver, RECORDS)
        driver.advance_wall_clock_time(1000)
        driver.advance_wall_clock_time(1000)
        assert results(driver) == [("a", 1), ("b", 2), ("c", 3)]


def test_a_call_is_no_dead_letter() -> None:
    with TopologyTestDriver(ticking(Fails), dead_letter_topic="dead") as driver:
        put(driver, RECORDS)
        assert [key for key, _ in results(driver)] == ["a", "tick", "b", "c", "tick"]
        dead = driver.create_output_topic("dead", serdes.bytes_(), serdes.bytes_())
        assert dead.read_records() == []


def test_what_a_call_forwards_of_a_wrong_type_is_the_calls_fault() -> None:
    handler = Handler(Response.CONTINUE)
    with TopologyTestDriver(
        ticking(ForwardsText), exception_handlers={"processing": handler}
    ) as driver:
        put(driver, RECORDS)
        assert results(driver) == [("a", 1), ("b", 2), ("c", 3)]
    assert [context.topic for context, _ in handler.asked] == [None]


@pytest.mark.parametrize("handlers", [{}, {"processing": "fail"}])
@pytest.mark.parametrize(("made", "time"), [(Fails, 20), (FailsByClock, 1000)])
def test_a_call_that_stops_the_instance_is_named(
    made: type[Processor], time: int, handlers: dict[str, object]
) -> None:
    with TopologyTestDriver(ticking(made), exception_handlers=handlers) as driver:
        with pytest.raises(FatalError) as found:
            put_and_tick(driver)
        line = made.__dict__["tick"].__code__.co_firstlineno
        text = str(found.value)
        assert f"LookupError: no {'tick at 20' if time == 20 else 'clock'}" in text
        assert f"call of {made.__name__}.tick ({__file__}:{line}) at {time} ms" in text
        assert "node ticks, task 0_0" in text
        assert "in-0@" not in text


def test_retry_runs_the_batch_again() -> None:
    handler = Handler(Response.RETRY)
    with TopologyTestDriver(ticking(Fails), exception_handlers={"processing": handler}) as driver:
        with pytest.raises(RetriableError, match="its handler says RETRY") as found:
            put(driver, RECORDS)
        assert [str(one) for one in found.value.partitions] == ["in-0"]


class ReadsByClock(Processor):
    """Its call hides what its store raises, as user code does."""

    def process(self, record: Record) -> None:
        self.context.forward(record)

    @punctuate("10 ms")
    def tick(self, time: int) -> None:
        try:
            self.context.store("seen").get("hurt")
        except Exception as error:
            raise RuntimeError("cannot tell") from error


def test_a_damaged_entry_is_no_calls_fault() -> None:
    with TopologyTestDriver(
        ticking(ReadsByClock), exception_handlers={"processing": "continue"}
    ) as driver:
        hurt = StoreChanges("seen", [b"hurt"], [b"abc"], np.array([1], np.int64))
        store: Any = driver._stores["seen"]
        store.apply(hurt)
        with pytest.raises(DamagedEntryError, match="hurt"):
            put(driver, RECORDS)


class CountsByClock(ReadsByClock):
    @punctuate("10 ms")
    def tick(self, time: int) -> None:
        store = self.context.store("seen")
        store.put("n", {"n": (store.get("n") or {"n": 0})["n"] + 1})


def test_an_absent_registry_is_waited_for_in_a_call(tmp_path: Path) -> None:
    away, handlers = tmp_path / "away", {"processing": "continue"}
    serde: Any = Registered(away)
    store = Stores.key_value("seen", key=serdes.string(), value=serde)
    with TopologyTestDriver(ticking(CountsByClock, store), exception_handlers=handlers) as driver:
        put(driver, RECORDS[:1])
        away.touch()
        with pytest.raises(RetriableError, match="no answer") as found:
            put(driver, RECORDS[1:])
        assert [str(one) for one in found.value.partitions] == ["in-0"]
        away.unlink()
        put(driver, RECORDS[1:])
        assert results(driver) == [("a", 1), ("b", 2), ("c", 3)]
        assert driver.get_key_value_store("seen").get("n")["n"] == 3
