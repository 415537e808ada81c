"""`TopologyTestDriver`: run a topology without a broker, record by record, and look into its stores.

It runs the very segments and steps that an instance runs: segments on the local Spark session of the test run, steps called in
this process, stores in memory. Functions have gone through the same pickle as on their way to a worker, so what cannot travel fails
here too, and what a function changes in a variable is changed in its own copy. Like Kafka Streams' driver it has one partition per
topic, passes repartition topics on at once and commits after each input; so it shows every intermediate result, and it does not
show co-partitioning faults.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from typing import Any, NamedTuple

from everflow.errors import TopologyError
from everflow.foreign_names import Telling
from everflow.records import EdgeBatch
from everflow.runtime.batch import COMMITTED, BatchRequest, BatchResult, TaskContext
from everflow.runtime.failure_text import ending
from everflow.runtime.packing import packed
from everflow.runtime.query_errors import StoreKindError
from everflow.runtime.record_times import MOST_MS, too_late
from everflow.runtime.step_functions import RecordFailure, UndecodableRecord
from everflow.runtime.task_step import StepResult, TaskStep
from everflow.serdes import Serde
from everflow.serdes.windowed import split_session_key, split_window_store_key, window_store_key
from everflow.spark.local_run import LocalRun
from everflow.state.store import InMemoryStore, StoreSpec, StoreView
from everflow.topology.graph import Topology
from everflow.topology.plan import PhysicalPlan, Source, emitting_every_update, plan
from everflow.topology.subtopologies import cut
from everflow.windows import Windowed

Headers = Sequence[tuple[str, bytes | None]]
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


class TestRecord(NamedTuple):
    """A record as a test reads it: decoded key and value, time in ms, headers."""

    key: Any
    value: Any
    timestamp: int
    headers: tuple[tuple[str, bytes | None], ...] = ()


TestRecord.__test__ = False  # type: ignore[attr-defined]  # pytest takes classes called Test... for tests


@dataclass(frozen=True)
class _Raw:
    topic: str
    key: bytes | None
    value: bytes | None
    timestamp: int
    headers: tuple[tuple[str, bytes | None], ...] = ()


class TopologyTestDriver(AbstractContextManager["TopologyTestDriver"], Telling):
    """Pipes records through a topology. Not thread-safe; use as a context manager or call `close`.

    Args:
        topology: what ``StreamsBuilder.build()`` returned.
        application_id: prefix of internal topics.
        dead_letter_topic: where undecodable records go; None = piping one raises RecordError, and nothing of it has an effect.
        emit_every_update: every intermediate result of a `InputTopic.pipe_batch`, as ``emit.every.update`` gives; by default the
            last per key (and window) of a batch.
        initial_wall_clock_ms: the driver's wall clock, moved by `advance_wall_clock_time` only.
    """

    __test__ = False

    def __init__(
        self,
        topology: Topology,
        *,
        application_id: str = "topology-test-driver",
        dead_letter_topic: str | None = None,
        emit_every_update: bool = False,
        initial_wall_clock_ms: int = 0,
    ) -> None:
        subs = cut(topology)
        chosen = emitting_every_update(topology) if emit_every_update else topology
        self._plan: PhysicalPlan = plan(chosen, subs.index_of, application_id)
        self._wall_clock_ms = initial_wall_clock_ms
        self._dead_letter_topic = dead_letter_topic
        self._stores = {spec.name: InMemoryStore(spec) for found in self._plan.stores().values() for spec in found}
        self._specs = {spec.name: spec for found in self._plan.stores().values() for spec in found}
        self._stream_times: dict[str, dict[str, int]] = {}
        self._offsets: dict[str, int] = {source.topic: 0 for source in self._plan.sources}
        self._written: dict[str, deque[_Raw]] = {}
        self._sink = _MemorySink(dead_letter_topic)
        self._run = LocalRun(self._plan)
        self._request: BatchRequest | None = None
        # As the workers get them: what cannot travel is refused here too, and a variable that a function changes is its own copy.
        sources, operators = packed((self._plan.sources, [step.ops for step in self._plan.steps]), self._plan).copy()
        steps = [
            TaskStep.of(self._plan, level, _Memory(self._stores), self._sink, self._current, _no_announcement)
            for level in range(self._plan.levels)
        ]
        self._steps = [replace(step, ops=ops, sources=sources) for step, ops in zip(steps, operators, strict=True)]

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Forget stores and output; the shared Spark session stays. Idempotent."""
        self._stores.clear()
        self._written.clear()
        self._run.close()

    # -- topics ------------------------------------------------------------------------------------------------

    def create_input_topic(self, topic: str, key: Serde, value: Serde, start_ms: int = 0, advance_ms: int = 0) -> InputTopic:
        """A handle to pipe records in. TopologyError if the topology does not read ``topic``. Records without a time get
        ``start_ms`` and then ``advance_ms`` more each."""
        if topic not in self._offsets:
            raise TopologyError(f"the topology does not read topic {topic!r}; it reads {', '.join(sorted(self._offsets))}")
        return InputTopic(self, topic, key, value, start_ms, advance_ms)

    def create_output_topic(self, topic: str, key: Serde, value: Serde) -> OutputTopic:
        """A handle to read what the topology wrote to ``topic``."""
        return OutputTopic(self._written.setdefault(topic, deque()), topic, key, value)

    def produced_topics(self) -> set[str]:
        """Topics that have been written to so far, internal ones included."""
        return {topic for topic, records in self._written.items() if records}

    # -- stores and time ---------------------------------------------------------------------------------------

    def get_key_value_store(self, name: str) -> KeyValueView:
        """Read access to a key-value store. KeyError for an unknown name, StoreKindError for another kind of store."""
        return KeyValueView(*self._view(name, "key_value"))

    def get_window_store(self, name: str) -> WindowView:
        """Read access to a window store. KeyError for an unknown name, StoreKindError for another kind of store."""
        return WindowView(*self._view(name, "window"))

    def get_session_store(self, name: str) -> SessionView:
        """Read access to a session store. KeyError for an unknown name, StoreKindError for another kind of store."""
        return SessionView(*self._view(name, "session"))

    def _view(self, name: str, kind: str) -> tuple[StoreSpec, InMemoryStore, Callable[[bytes], Any]]:
        spec = self._specs[name]
        if spec.kind != kind:
            raise StoreKindError(f"Store {name!r} is a {spec.kind} store: ask get_{spec.kind}_store({name!r}).")
        return spec, self._stores[name], self._plan.value_decoder(name)

    def advance_wall_clock_time(self, by: timedelta | int) -> None:
        """Move the wall clock (ms or timedelta); stream time only moves with records."""
        self._wall_clock_ms += int(by.total_seconds() * 1000) if isinstance(by, timedelta) else by

    @property
    def wall_clock_ms(self) -> int:
        """The driver's wall clock."""
        return self._wall_clock_ms

    # -- running -----------------------------------------------------------------------------------------------

    def pipe(self, records: Sequence[_Raw]) -> None:
        """Run ``records`` as one micro-batch, then whatever they put into repartition topics. Raises RecordError naming the record
        that a function or serde could not take; then nothing of the batch has an effect."""
        pending = [list(records)]
        while pending:
            looped = self._micro_batch(pending.pop(0))
            if looped:
                pending.append(looped)

    def _micro_batch(self, records: Sequence[_Raw]) -> list[_Raw]:
        rows = []
        ranges = {f"{topic}-0": [offset, offset, offset] for topic, offset in self._offsets.items()}
        for record in records:
            bounds = ranges[f"{record.topic}-0"]
            if record.timestamp > MOST_MS:
                raise too_late(f"{record.topic}-0@{bounds[1]}", record.timestamp)
            rows.append((record, bounds[1]))
            bounds[1] = bounds[2] = bounds[1] + 1
        self._request = self._new_request(ranges)
        result = self._step_result(rows)
        for topic in self._offsets:
            self._offsets[topic] = ranges[f"{topic}-0"][1]
        for task, times in result.stream_times.items():
            self._stream_times.setdefault(task, {}).update(times)
        for task, listed in result.changes.items():
            for changes in listed:
                self._stores[changes.store].apply(changes, result.store_times[task][changes.store])
        return self._deliver(result)

    def _new_request(self, ranges: Mapping[str, list[int]]) -> BatchRequest:
        tasks = [
            TaskContext(f"{sub}_0", "test", "", self._stream_times.get(f"{sub}_0", {}))
            for sub in sorted({source.subtopology for source in self._plan.sources})
        ]
        return BatchRequest(
            "test.0.0", 0, 0, "exactly_once_v2", "", self._wall_clock_ms, "", ranges, tasks, self._plan.application_id
        )

    def _current(self) -> BatchRequest:
        assert self._request is not None
        return self._request

    def _step_result(self, rows: Sequence[tuple[_Raw, int]]) -> StepResult:
        log = [(r.key, r.value, r.topic, 0, offset, r.timestamp, r.headers) for r, offset in rows]
        batches = self._run.first(log)
        try:
            for level, step in enumerate(self._steps):
                if level:
                    batches = self._run.later(batches, level)
                batches = list(step.process(batches))
        except (RecordFailure, UndecodableRecord) as error:
            raise ending(error.failure, 1, "") from (error.__cause__ or error)
        return self._sink.take()

    def _deliver(self, result: StepResult) -> list[_Raw]:
        looped: list[_Raw] = []
        internal = {source.topic for source in self._plan.sources if source.kind == "repartition"}
        for output in result.outputs:
            headers = output.batch.headers.to_pylist() if output.batch.headers is not None else [None] * len(output.keys)
            topics = [output.topics] * len(output.keys) if isinstance(output.topics, str) else output.topics
            times = output.batch.timestamp.tolist()
            for topic, key, value, time, header in zip(topics, output.keys, output.values, times, headers, strict=True):
                record = _Raw(topic, key, value, time, tuple((h["key"], h["value"]) for h in header or ()))
                (looped if topic in internal else self._written.setdefault(topic, deque())).append(record)
        if result.dead_letters is not None and self._dead_letter_topic is not None:
            self._written.setdefault(self._dead_letter_topic, deque()).extend(_dead(result.dead_letters, self._dead_letter_topic))
        return looped


def _dead(letters: EdgeBatch, topic: str) -> Iterator[_Raw]:
    for key, value, time in zip(letters.key.to_pylist(), letters.value.to_pylist(), letters.timestamp.tolist(), strict=True):
        yield _Raw(topic, key, value["value"], time, (("__streams.errors.message", value["error"].encode()),))


def _no_announcement(request: BatchRequest, level: int) -> None:
    """Nobody has to know which process runs a step of the driver: it is this one."""


@dataclass(frozen=True)
class _Memory:
    """`StoreAccess` over the driver's stores."""

    stores: Mapping[str, InMemoryStore]

    @contextmanager
    def view(self, task: TaskContext, spec: StoreSpec) -> Iterator[StoreView]:
        yield self.stores[spec.name]


class _MemorySink:
    """Keeps a micro-batch's effects for the driver instead of writing them."""

    def __init__(self, dead_letter_topic: str | None) -> None:
        self._topic = dead_letter_topic
        self._result: StepResult | None = None

    def __call__(self, request: BatchRequest, result: StepResult, sources: tuple[Source, ...]) -> BatchResult:
        letters = result.dead_letters
        if letters is not None and len(letters) and self._topic is None:
            raise UndecodableRecord(letters, sources)
        self._result = result
        return BatchResult(COMMITTED)

    def take(self) -> StepResult:
        assert self._result is not None
        result, self._result = self._result, None
        return result


class InputTopic(Telling):
    """Pipes decoded records into one topic."""

    def __init__(self, driver: TopologyTestDriver, topic: str, key: Serde, value: Serde, start_ms: int, advance_ms: int) -> None:
        self._driver, self._topic, self._key, self._value = driver, topic, key, value
        self._next_ms, self._advance_ms = start_ms, advance_ms

    def pipe_input(self, key: Any, value: Any, timestamp: int | datetime | None = None, headers: Headers = ()) -> None:
        """Pipe one record and run it through; ``timestamp`` in ms or a datetime."""
        self._driver.pipe([self._raw(key, value, timestamp, headers)])

    def pipe_raw(self, key: bytes | None, value: bytes | None, timestamp: int = 0) -> None:
        """Pipe bytes, for instance ones that cannot be decoded."""
        self._driver.pipe([_Raw(self._topic, key, value, timestamp)])

    def pipe_batch(self, records: Iterable[tuple[Any, ...]]) -> None:
        """Pipe ``(key, value[, timestamp])`` as ONE micro-batch: results come out once per key, as from an instance."""
        self._driver.pipe([self._raw(r[0], r[1], r[2] if len(r) > 2 else None, ()) for r in records])

    def pipe_each(self, records: Iterable[tuple[Any, ...]]) -> None:
        """Pipe ``(key, value[, timestamp])`` one after the other."""
        for record in records:
            self.pipe_input(record[0], record[1], record[2] if len(record) > 2 else None)

    def advance_time(self, by_ms: int) -> None:
        """Move the time given to records that bring none."""
        self._next_ms += by_ms

    def _raw(self, key: Any, value: Any, timestamp: int | datetime | None, headers: Headers) -> _Raw:
        if timestamp is None:
            timestamp, self._next_ms = self._next_ms, self._next_ms + self._advance_ms
        if isinstance(timestamp, datetime):
            timestamp = (timestamp - _EPOCH) // timedelta(milliseconds=1)
        return _Raw(self._topic, self._key.encode(key), self._value.encode(value), timestamp, tuple(headers))


class OutputTopic(Telling):
    """Reads decoded records of one topic, in the order they were written."""

    def __init__(self, records: deque[_Raw], topic: str, key: Serde, value: Serde) -> None:
        self._records, self._topic, self._key, self._value = records, topic, key, value

    def is_empty(self) -> bool:
        """Whether everything has been read."""
        return not self._records

    def queue_size(self) -> int:
        """Records not read yet."""
        return len(self._records)

    def read_record(self) -> TestRecord:
        """The next record; LookupError if there is none."""
        if not self._records:
            raise LookupError(f"no more records in topic {self._topic!r}")
        raw = self._records.popleft()
        return TestRecord(self._key.decode(raw.key), self._value.decode(raw.value), raw.timestamp, raw.headers)

    def read_value(self) -> Any:
        """The next record's value."""
        return self.read_record().value

    def read_key_value(self) -> tuple[Any, Any]:
        """The next record's key and value."""
        return self.read_record()[:2]

    def read_records(self) -> list[TestRecord]:
        """All records not read yet."""
        return [self.read_record() for _ in range(len(self._records))]

    def read_key_values(self) -> list[tuple[Any, Any]]:
        """Keys and values of all records not read yet."""
        return [record[:2] for record in self.read_records()]

    def read_table(self) -> dict[Any, Any]:
        """The records not read yet as a table: the last value per key; a null value deletes. Keys must be hashable."""
        table: dict[Any, Any] = {}
        for record in self.read_records():
            if record.value is None:
                table.pop(record.key, None)
            else:
                table[record.key] = record.value
        return table


class KeyValueView(Telling):
    """Decoded read access to a key-value store."""

    def __init__(self, spec: StoreSpec, store: InMemoryStore, decode: Callable[[bytes], Any]) -> None:
        self._spec, self._store, self._decode = spec, store, decode

    def get(self, key: Any) -> Any:
        """The value of ``key``, None if absent."""
        encoded = self._spec.key_serde.encode(key)
        found = None if encoded is None else self._store.get_many([encoded])[0]
        return None if found is None else self._decode(found[8:])

    def all(self) -> Iterator[tuple[Any, Any]]:
        """Keys and values in key-byte order."""
        for key, stored in self._store.range(None, None):
            yield self._spec.key_serde.decode(key), self._decode(stored[8:])


class WindowView(Telling):
    """Decoded read access to a window store."""

    def __init__(self, spec: StoreSpec, store: InMemoryStore, decode: Callable[[bytes], Any]) -> None:
        self._spec, self._store, self._decode = spec, store, decode

    def all(self) -> Iterator[tuple[Windowed, Any]]:
        """Windows and values in key-byte order."""
        for stored_key, stored in self._store.range(None, None):
            key, start = split_window_store_key(stored_key)
            window = Windowed(self._spec.key_serde.decode(key), start, start + (self._spec.window_size_ms or 0))
            yield window, self._decode(stored[8:])

    def fetch(self, key: Any, start_ms: int) -> Any:
        """The value of ``key`` in the window that starts at ``start_ms``, None if absent."""
        encoded = self._spec.key_serde.encode(key)
        found = None if encoded is None else self._store.get_many([window_store_key(encoded, start_ms)])[0]
        return None if found is None else self._decode(found[8:])


class SessionView(Telling):
    """Decoded read access to a session store."""

    def __init__(self, spec: StoreSpec, store: InMemoryStore, decode: Callable[[bytes], Any]) -> None:
        self._spec, self._store, self._decode = spec, store, decode

    def all(self) -> Iterator[tuple[Windowed, Any]]:
        """Sessions and values in key-byte order, the sessions of a key in order of time."""
        for stored_key, stored in self._store.range(None, None):
            key, start, end = split_session_key(stored_key)
            yield Windowed(self._spec.key_serde.decode(key), start, end), self._decode(stored[8:])

    def fetch(self, key: Any) -> Iterator[tuple[Windowed, Any]]:
        """`all` of one key."""
        return (entry for entry in self.all() if entry[0].key == key)

    def find_sessions(self, key: Any, earliest_end: int, latest_start: int) -> Iterator[tuple[Windowed, Any]]:
        """`fetch` of the sessions that end at ``earliest_end`` or later and start at ``latest_start`` or earlier."""
        return (entry for entry in self.fetch(key) if entry[0].end >= earliest_end and entry[0].start <= latest_start)

    def fetch_session(self, key: Any, start_ms: int, end_ms: int) -> Any:
        """The value of the session of ``key`` with exactly these bounds, None if absent."""
        return next((value for place, value in self.fetch(key) if place[1:] == (start_ms, end_ms)), None)
