"""`TopologyTestDriver`: runs a topology without a broker, record by record, and shows its stores.

It runs an instance's own operators in this process (Columns in the Spark of the test run), with
stores in memory. Functions have gone through the same pickle as on their way to a worker, so what
cannot travel fails here too, and a function changes variables of its own copy only. Like Kafka
Streams' driver it passes repartition topics on at once and commits after each input, so it shows
every intermediate result.
"""

from __future__ import annotations

import difflib
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import numpy as np
import pyarrow as pa

from everflow.clock import in_utc
from everflow.columns.key_partitions import MURMUR2, java_partitions
from everflow.config import EXACTLY_ONCE_V2
from everflow.dsl.expressions import bound_serdes, checked_serde, required_parameters
from everflow.dsl.lowering.stateless import key_partitioner_of
from everflow.errors import TopologyError, naming_the_line
from everflow.exact_texts import exact_ms
from everflow.foreign_names import Telling
from everflow.handlers import Handlers
from everflow.instance.client_state import IllegalStateError
from everflow.instance.tasks.task import ActiveTask
from everflow.instance.thread.batch_counts import misplaced_keys, tables
from everflow.instance.thread.columns import packed, prepared_columns
from everflow.instance.thread.failure_text import ending
from everflow.instance.thread.planning import IdleSources, IdleTimes
from everflow.kafka.reading.record_columns import LogColumns
from everflow.logs import rebalance_log
from everflow.operators.stored_records import loaded_rows
from everflow.protocol.messages import COMMITTED, BatchRequest, BatchResult, StorePlace, TaskContext
from everflow.records import (
    HEADERS,
    Bytes,
    Int64,
    OffsetRange,
    StoreChanges,
    TaskId,
    TopicPartition,
)
from everflow.retry import waiting
from everflow.serdes import Serde
from everflow.sinks.function import BatchFunction
from everflow.snapshots.query_errors import StoreKindError, StoreNotFoundError
from everflow.state.store import InMemoryStore, StoreSpec
from everflow.testing.event_times import DriverEventTimes
from everflow.testing.store_views import (
    DriverStores,
    Home,
    KeyValueView,
    SessionView,
    VersionedView,
    WindowView,
)
from everflow.testing.topics import InputTopic, OutputTopic, Places, RawRecord
from everflow.topology.batches import BatchInput
from everflow.topology.event_time import (
    HIGHEST,
    LOWEST,
    require_lowest_fits,
    required_rule,
    writers,
)
from everflow.topology.graph import FunctionExpr, SinkNode, StatefulNode, TimestampExtractor
from everflow.topology.partitioners import (
    KeyPartitioner,
    key_partitioner,
    key_partitioners,
    partitioners_of_stores,
    partitions_of,
    topics_into_stores,
)
from everflow.topology.patterns import pattern_sources, with_topics
from everflow.topology.plan import (
    GlobalTable,
    LoadedTable,
    PhysicalPlan,
    WriteOp,
    emitting_every_update,
    plan,
    with_default_extractor,
)
from everflow.topology.program import Topology, checked_topology
from everflow.topology.sources import sources_of_logs
from everflow.topology.subtopologies import SubTopologies, cut, internal_topics, tasks
from everflow.user_program import did_you_mean, user_line
from everflow.worker.columns import ColumnClient
from everflow.worker.decode import LogDecoder
from everflow.worker.deliver import deliver
from everflow.worker.failures import DescribedFailure, RecordFailure, Sources, UndecodableRecord
from everflow.worker.isolation import Isolated, Trial, stores_of, trial_of
from everflow.worker.letters import GlobalRecords, Letters, take_letters
from everflow.worker.sink import columns_of
from everflow.worker.task_step import BY_KEY, StepResult, TaskStep


class TopologyTestDriver(AbstractContextManager["TopologyTestDriver"], Telling):
    """Runs a topology without a broker: tests pipe records in and read the results. Not
    thread-safe; use it as a context manager or call `close`.

    Args:
        topology: what ``StreamsBuilder.build()`` returned.
        application_id: prefix of internal topics.
        dead_letter_topic: the topic for records that cannot be decoded, processed or written; None
            = piping such a record raises RecordError and has no effect.
        exception_handlers: by stage (``deserialization``, ``processing``, ``production``) the value
            of ``<stage>.exception.handler``; left out: "dead-letter".
        emit_every_update: as the setting ``emit.every.update``: every intermediate result of a
            `InputTopic.pipe_batch`; by default the last per key (and window) of a batch.
        initial_wall_clock_ms: the driver's wall clock, moved by `advance_wall_clock_time` only.
        default_timestamp_extractor: for sources without ``timestamp=``; None: records keep their
            time, and a negative one raises an error.
        topics: the existing topics, for sources that have a pattern.
        sinks: by the name of a `KStream.write_stream` or `KStream.for_each_batch` a function that
            is called in its place, with (rows) or (rows, batch); others write where they say.
        partitions: the number of every topic, or numbers by topic (1 for topics not named);
            repartition topics get theirs as on a broker. TopologyError, as at the start of an
            instance, if topics that must have equal numbers do not. With 1 all topics have one
            partition, those of ``repartition(partitions=...)``, too.
        stream_time: as the setting ``stream.time``. With "lowest" a source partition without new
            records is waited for until `advance_wall_clock_time` has gone ``stream_time_idle_ms``
            on, as in an instance.
        stream_time_idle_ms: as the setting ``stream.time.idle.ms``.
        max_event_time_ahead: as the setting ``max.event.time.ahead``.
    """

    __test__ = False

    def __init__(
        self,
        topology: Topology,
        *,
        application_id: str = "topology-test-driver",
        dead_letter_topic: str | None = None,
        exception_handlers: Mapping[str, object] | None = None,
        emit_every_update: bool = False,
        initial_wall_clock_ms: int = 0,
        default_timestamp_extractor: TimestampExtractor | None = None,
        topics: Collection[str] = (),
        partitions: int | Mapping[str, int] = 1,
        sinks: Mapping[str, Callable[..., object]] | None = None,
        stream_time: str = HIGHEST,
        stream_time_idle_ms: int = 30_000,
        max_event_time_ahead: int = 0,
    ) -> None:
        where = user_line()
        checked_topology(topology, "TopologyTestDriver")
        topology = _with_topics(topology, topics, application_id)
        topology = with_default_extractor(topology, default_timestamp_extractor)
        subs = cut(topology)
        self._topics = DriverTopics(topology, subs, application_id, partitions, where)
        chosen = emitting_every_update(topology) if emit_every_update else topology
        self._plan: PhysicalPlan = plan(chosen, subs.index_of, application_id)
        self._start_ms = self._wall_clock_ms = initial_wall_clock_ms
        handlers = Handlers.of(dead_letter_topic, exception_handlers or {})
        handlers.require_nodes({node.name for node in topology.nodes})
        self._dead_letter_topic = handlers.topic
        self._specs = {spec.name: spec for found in self._plan.stores().values() for spec in found}
        kept = {spec.name: spec for spec in self._plan.whole_stores()}
        self._kept = {**self._specs, **kept}
        homes = self._topics.homes(topology, application_id)
        anywhere: tuple[int, Home] = 1, lambda key: None
        self._stores = DriverStores(
            {name: (spec, *homes.get(name, anywhere)) for name, spec in self._kept.items()}
        )
        self._stream_times: dict[TaskId, dict[str, int]] = {}
        inputs = [tp for task in self._topics.tasks for tp in self._topics.inputs[task]]
        self._offsets = dict.fromkeys(inputs, 0)
        self._looped = frozenset(
            source.topic for source in self._plan.sources if source.kind == "repartition"
        )
        self._outputs = _Outputs(
            topology,
            self._looped | {self._changelog(name) for name in self._specs},
            dead_letter_topic,
        )
        self._tables = DriverTables(
            self._plan.global_tables,
            self._plan.loaded_tables,
            self._stores,
            handlers,
            self._outputs.add,
        )
        self._silence = DriverSilence(self._plan, self._stream_times, self._topics.inputs)
        self._ahead_ms = max_event_time_ahead
        self._event_times: DriverEventTimes | None = None
        if required_rule(stream_time) == LOWEST:
            require_lowest_fits(topology)
            self._event_times = DriverEventTimes(
                writers=writers(topology, application_id),
                sources=sources_of_logs(self._plan.sources, inputs),
                tasks=self._topics.tasks,
                stream_times=self._stream_times,
                idle_ms=stream_time_idle_ms,
                began_ms=initial_wall_clock_ms,
            )
        self._inputs: list[InputTopic] = []
        self._misplaced = set[str]()
        self._moved = False
        """Whether the last batch has moved anything that others wait for."""
        self._result, self._written = StepResult(), list[RawRecord]()
        self._decoder = LogDecoder.of(self._plan, handlers, self._topics.counts)
        with waiting("preparing the Columns of this topology in Spark"):
            columns = prepared_columns(self._plan)
        self._columns = ColumnClient(columns.path)
        self._closed = False
        step = TaskStep.of(
            self._plan,
            columns.prepared,
            self._stores,
            self._keep,
            handlers=handlers,
            partitions=self._topics.counts,
        )
        self._sinks = _functions_of(sinks or {}, self._plan)
        self._packed = packed((step.sources, step.times, step.ops), self._plan)
        self._step = self._as_travelled(step)
        self._tables.load(self._wall_clock_ms)

    def _as_travelled(self, step: TaskStep) -> TaskStep:
        sources, times, ops = self._packed.copy()
        ops = tuple(
            replace(op, node=replace(op.node, sink=self._sinks[op.name]))
            if isinstance(op, WriteOp) and op.name in self._sinks
            else op
            for op in ops
        )
        return replace(step, sources=sources, times=times, ops=ops)

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Delete the driver's stores and output; Spark keeps running. Idempotent."""
        self._closed = True
        self._forget()
        self._columns.close()

    def reset(self) -> None:
        """Start over for another test case: stores, topics, stream times, offsets, clocks and
        variables of the topology's functions are as at the start. Handles of topics and stores stay
        valid. Faster than a new driver. Raises IllegalStateError if the driver is closed."""
        self._require_open()
        self._forget()
        self._step = self._as_travelled(self._step)
        self._tables.load(self._wall_clock_ms)

    def _forget(self) -> None:
        self._stores.empty()
        self._stream_times.clear()
        self._silence.forget()
        if self._event_times is not None:
            self._event_times.forget()
        self._offsets.update(dict.fromkeys(self._offsets, 0))
        self._tables.rewind()
        self._outputs.clear()
        self._misplaced.clear()
        self._wall_clock_ms = self._start_ms
        for topic in self._inputs:
            topic.rewind()

    @naming_the_line
    def create_input_topic(
        self,
        topic: str,
        key: Serde,
        value: Serde,
        start_ms: int = 0,
        advance_ms: int = 0,
        *,
        partitioner: str | Callable[..., int] | None = None,
    ) -> InputTopic:
        """A handle that pipes records into ``topic``. The first record without a time gets
        ``start_ms``, each later one ``advance_ms`` more. ``partitioner``: as in
        `StreamsBuilder.stream`; by default the one of the source. Raises TopologyError if the
        topology does not read ``topic``, or if ``key`` or ``value`` is not a serde."""
        known = [*{tp.topic: None for tp in self._offsets}, *self._tables.topics]
        if topic not in known:
            near = difflib.get_close_matches(topic, known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"it reads {', '.join(sorted(known))}"
            raise TopologyError(f"the topology does not read topic {topic!r}; {hint}")
        created = InputTopic(
            self._pipe,
            topic,
            bound_serdes(_serdes("create_input_topic", key, value), topic),
            start_ms,
            advance_ms,
            self._topics.places(topic, key, key_partitioner_of(partitioner, "create_input_topic")),
        )
        self._inputs.append(created)
        return created

    @naming_the_line
    def create_output_topic(self, topic: str, key: Serde, value: Serde) -> OutputTopic:
        """A handle that reads what the topology wrote to ``topic``, which may also be an internal
        topic. Raises TopologyError if the topology does not write ``topic`` (unless a `to` chooses
        the topic per record), or if ``key`` or ``value`` is not a serde."""
        found = self._outputs.of(topic)
        pair = _serdes("create_output_topic", key, value)
        return OutputTopic(found, topic, bound_serdes(pair, topic))

    def produced_topics(self) -> set[str]:
        """Full names of the topics written to since the start or the last `reset`: outputs,
        repartition topics and changelogs."""
        return set(self._outputs.produced)

    def get_key_value_store(self, name: str) -> KeyValueView:
        """Read access to a key-value store. Raises StoreNotFoundError if the topology has no store
        ``name``, StoreKindError if that store is of another kind."""
        return KeyValueView(*self._view(name, "key_value"))

    def get_window_store(self, name: str) -> WindowView:
        """Read access to a window store. Raises StoreNotFoundError if the topology has no store
        ``name``, StoreKindError if that store is of another kind."""
        return WindowView(*self._view(name, "window"))

    def get_session_store(self, name: str) -> SessionView:
        """Read access to a session store. Raises StoreNotFoundError if the topology has no store
        ``name``, StoreKindError if that store is of another kind."""
        return SessionView(*self._view(name, "session"))

    def get_versioned_store(self, name: str) -> VersionedView:
        """Read access to a versioned store. Raises StoreNotFoundError if the topology has no store
        ``name``, StoreKindError if that store is of another kind."""
        return VersionedView(*self._view(name, "versioned"))

    def _view(
        self, name: str, kind: str
    ) -> tuple[StoreSpec, Callable[[], InMemoryStore], Callable[[bytes], Any]]:
        spec = self._kept.get(name)
        if spec is None:
            raise StoreNotFoundError(
                f"The topology has no store {name!r}; it has "
                f"{', '.join(sorted(self._kept)) or 'none'}."
            )
        if spec.kind != kind:
            raise StoreKindError(
                f"Store {name!r} is a {spec.kind} store: ask get_{spec.kind}_store({name!r})."
            )
        return spec, lambda: self._stores[name], self._plan.value_decoder(name)

    def advance_wall_clock_time(self, by: timedelta | int) -> None:
        """Advance the driver's wall clock by ms or a timedelta. Global tables of DataFrames whose
        refresh is due are loaded again, then wall-clock punctuators that are due are called. Stream
        time does not change, except for idle sources with ``idle_advance``."""
        self._wall_clock_ms += exact_ms(by) if isinstance(by, timedelta) else by
        self._tables.load(self._wall_clock_ms)
        if self._plan.wall_clocks or self._event_times is not None:
            self._pipe([])
        for subtopology in self._silence.subtopologies:
            idle_times = self._silence.due(subtopology, self._wall_clock_ms)
            if idle_times:
                self._pipe([], idle_times)

    @property
    def wall_clock_ms(self) -> int:
        """The driver's wall clock in ms since the epoch; `advance_wall_clock_time` moves it."""
        return self._wall_clock_ms

    def pipe_batch(self, records: Mapping[InputTopic, Iterable[tuple[Any, ...]]]) -> None:
        """Pipe records of several topics as ONE micro-batch. ``records`` is a dict by handles of
        `create_input_topic`: ``{orders: [(key, value[, timestamp[, headers]]), ...], ...}``.

        Within a topic they keep their order; between topics of one sub-topology the earlier record
        time comes first, as in an instance. Raises RecordError naming the record that a function or
        serde could not take; then nothing has an effect. TopologyError for a topic of another
        driver.
        """
        for topic in records:
            if topic not in self._inputs:
                raise TopologyError(
                    (
                        f"pipe_batch takes {{topic: records}} with what this driver's "
                        f"create_input_topic gave, found {topic!r}"
                    ),
                    where=user_line(),
                )
        self._pipe(
            [record for topic, listed in records.items() for record in topic.written(listed)]
        )

    def _pipe(
        self,
        records: Sequence[RawRecord],
        idle_times: IdleTimes | None = None,
    ) -> None:
        """Run ``records`` as one micro-batch, then whatever they put into repartition topics. Those
        of global tables' topics are in the tables before. ``idle_times``: stream times of idle
        sources in the first of them."""
        self._require_open()
        with in_utc():
            self._run(records, idle_times or {})

    def _run(self, records: Sequence[RawRecord], idle_times: IdleTimes) -> None:
        pending = [self._tables.filled(records)]
        while pending:
            taken = pending.pop(0)
            looped, left = self._micro_batch(taken, idle_times)
            if left:
                pending.insert(0, left)
            read = {TopicPartition(one.topic, one.partition) for one in taken}
            self._silence.read(read, idle_times, self._wall_clock_ms)
            idle_times = {}
            if looped or self._moved:
                pending.append(looped)

    def _micro_batch(
        self,
        records: Sequence[RawRecord],
        idle_times: IdleTimes,
    ) -> tuple[list[RawRecord], list[RawRecord]]:
        """What goes into repartition topics, and the records that the batch has not done."""
        lowest = self._event_times
        rows = [] if lowest is None else lowest.rows()
        ends = dict(self._offsets) if lowest is None else lowest.ends(self._offsets)
        for record in records:
            tp = TopicPartition(record.topic, record.partition)
            offset = ends[tp]
            rows.append((record, offset))
            ends[tp] = offset + 1
        request = self._new_request(ends, idle_times)
        if lowest is not None:
            read = {TopicPartition(record.topic, record.partition) for record in records}
            times_of = lowest.of(ends, read, self._wall_clock_ms)
            request = replace(request, times=times_of)
        result = self._step_result(request, rows)
        before = self._offsets
        self._offsets = {tp: result.consumed.get(tp, end) for tp, end in ends.items()}
        self._moved = lowest is not None and (bool(records) or before != self._offsets)
        for task, times in result.stream_times.items():
            known = self._stream_times.setdefault(task, {})
            self._moved |= lowest is not None and {**known, **times} != known
            known.update(times)
        for task, listed in result.changes.items():
            for changes in listed:
                self._stores.part(changes.store, task.partition).apply(changes)
                if not self._specs[changes.store].logging:
                    continue
                topic = self._changelog(changes.store)
                written = zip(
                    changes.keys, changes.values, changes.timestamps.tolist(), strict=True
                )
                self._outputs.add(
                    RawRecord(topic, key, value, at, partition=task.partition)
                    for key, value, at in written
                )
        for topic, line in misplaced_keys(result.keys).items():
            if topic not in self._misplaced:
                self._misplaced.add(topic)
                rebalance_log.warning("%s", line)
        tables.add(result.printed)
        tables.flush()
        self._outputs.add(self._written)
        if lowest is not None:
            lowest.keep(rows, self._offsets)
        left = [
            record
            for record, offset in rows
            if lowest is None
            and offset >= self._offsets[TopicPartition(record.topic, record.partition)]
        ]
        return [record for record in self._written if record.topic in self._looped], left

    def _new_request(
        self, ends: Mapping[TopicPartition, int], idle_times: IdleTimes
    ) -> BatchRequest:
        return BatchRequest(
            batch_id="test.0.0",
            thread=0,
            attempt=0,
            guarantee=EXACTLY_ONCE_V2,
            transactional_id="",
            wall_clock_ms=self._wall_clock_ms,
            gate="",
            ranges={tp: OffsetRange(start, ends[tp]) for tp, start in self._offsets.items()},
            log_ends=ends,
            tasks=[
                TaskContext(task, "test", "", self._stream_times.get(task, {}))
                for task in self._topics.tasks
            ],
            application_id=self._plan.application_id,
            global_tasks=self._tables.contexts,
            idle=idle_times,
            most_ms=self._wall_clock_ms + self._ahead_ms if self._ahead_ms else None,
        )

    def _step_result(
        self, request: BatchRequest, rows: Sequence[tuple[RawRecord, int]]
    ) -> StepResult:
        try:
            read = log_columns(rows, self._plan.headers)
            batch = Isolated(self._decoder, stores_of(self._step))
            batch.run(request, read, self._computed)
        except (RecordFailure, DescribedFailure) as error:
            raise ending(error.failure, 1, "") from (error.__cause__ or error)
        return self._result

    def _computed(
        self, request: BatchRequest, decoded: BatchInput, trial: Trial | None
    ) -> BatchResult:
        step = self._step if trial is None else trial_of(self._step, trial)
        return step.run(request, decoded, self._columns, {})

    def _keep(
        self,
        request: BatchRequest,
        result: StepResult,
        sources: Sources,
    ) -> BatchResult:
        """The step's sink."""
        deliver(request, result, sources, lambda _: None)
        take_letters(result, sources)
        self._result, self._written = result, []
        writer = _MemoryWriter(self._written.extend, self._topics.count)
        for output in result.outputs:
            for columns in columns_of(output, self._topics.count):
                writer.write(*columns)
        letters = Letters.of(self._dead_letter_topic, result.dead_letters, sources, 0)
        if letters is not None:
            writer.write(*letters.columns())
        return BatchResult(outcome=COMMITTED)

    def _changelog(self, store: str) -> str:
        return f"{self._plan.application_id}-{self._specs[store].changelog}"

    def _require_open(self) -> None:
        if self._closed:
            raise IllegalStateError(
                "The driver is closed: make a new one. (reset() empties one that is to be used "
                "again.)"
            )


def _functions_of(
    sinks: Mapping[str, Callable[..., object]], plan: PhysicalPlan
) -> dict[str, BatchFunction]:
    known = [op.name for op in plan.ops if isinstance(op, WriteOp)]
    for name in sinks:
        if name not in known:
            raise TopologyError(
                f"the topology has no sink {name!r}; it has {', '.join(known) or 'none'}",
                where=user_line(),
            )
    return {
        name: BatchFunction(fn, required_parameters(fn) or 1, frame=False)
        for name, fn in sinks.items()
    }


class _Outputs:
    """Written records by topic, and the topics that may be written."""

    def __init__(
        self, topology: Topology, internal: Collection[str], dead_letter_topic: str | None
    ) -> None:
        targets = [
            node.topic
            for node in topology.nodes
            if isinstance(node, SinkNode) and node.kind == "sink"
        ]
        self._fixed = {
            target for target in (*targets, dead_letter_topic) if isinstance(target, str)
        }
        self._internal = frozenset(internal)
        self._chosen_per_record = any(not isinstance(target, str) for target in targets)
        self._written = defaultdict[str, deque[RawRecord]](deque)
        self.produced: set[str] = set()

    def of(self, topic: str) -> deque[RawRecord]:
        """A topic's records that have not been read; TopologyError where none is ever written."""
        if topic not in self._fixed | self._internal and not self._chosen_per_record:
            hint = did_you_mean(topic, self._fixed | self._internal)
            writes = ", ".join(sorted(self._fixed)) or "no output topic"
            internal = (
                f" (and internally {', '.join(sorted(self._internal))})" if self._internal else ""
            )
            raise TopologyError(
                f"the topology does not write topic {topic!r}; it writes {writes}{internal}{hint}"
            )
        return self._written[topic]

    def add(self, records: Iterable[RawRecord]) -> None:
        for record in records:
            self._written[record.topic].append(record)
            self.produced.add(record.topic)

    def clear(self) -> None:
        self.produced.clear()
        for records in self._written.values():
            records.clear()


def _serdes(operator: str, key: object, value: object) -> tuple[Serde, Serde]:
    return checked_serde(key, "key", operator), checked_serde(value, "value", operator)


def _with_topics(
    topology: Topology,
    topics: Collection[str],
    application_id: str,
) -> Topology:
    if not topics and (sources := pattern_sources(topology)):
        raise TopologyError(
            f"the source at {sources[0].where} reads the topics of a pattern, "
            f"{sources[0].topics[0]!r}; say which there are: TopologyTestDriver(topology, "
            "topics=['orders-eu', 'orders-us'])",
            where=user_line(),
        )
    return with_topics(topology, topics, application_id)


Tell = Callable[[Iterable[RawRecord]], None]


class DriverTables:
    """``stores``: the driver's, by name; ``tell``: what takes dead letters."""

    def __init__(
        self,
        tables: Sequence[GlobalTable],
        loaded: Sequence[LoadedTable],
        stores: Mapping[str, InMemoryStore],
        handlers: Handlers,
        tell: Tell,
    ) -> None:
        self._tables = {table.source.topic: table for table in tables}
        self.topics = tuple(self._tables)
        self._offsets = dict.fromkeys(self._tables, 0)
        self._loaded, self._due_ms = loaded, dict[str, int]()
        self._stores = stores
        self._intake = GlobalRecords(
            {topic: table.source for topic, table in self._tables.items()},
            handlers,
            lambda: _MemoryWriter(tell),
        )
        places: list[tuple[int, str, str | None]] = [
            *((table.subtopology, table.store.name, table.source.topic) for table in tables),
            *((table.subtopology, table.store.name, None) for table in loaded),
        ]
        self.contexts = [
            TaskContext(TaskId(number, 0), "", "", stores={name: StorePlace("", topic)})
            for number, name, topic in places
        ]

    def load(self, now_ms: int) -> None:
        for table in self._loaded:
            name, refresh_ms = table.store.name, table.node.refresh_ms
            if name in self._due_ms and (refresh_ms is None or now_ms < self._due_ms[name]):
                continue
            self._due_ms[name] = now_ms + (refresh_ms or 0)
            rows, store = loaded_rows(table.node), self._stores[name]
            gone = [key for key, _ in store.range(None, None)]
            times = np.full(len(gone), now_ms, np.int64)
            store.apply(StoreChanges(name, gone, [None] * len(gone), times))
            for part in rows.chunks(now_ms):
                store.apply(part)

    def rewind(self) -> None:
        self._offsets.update(dict.fromkeys(self._offsets, 0))
        self._due_ms.clear()

    def filled(self, records: Sequence[RawRecord]) -> list[RawRecord]:
        """Fill the global tables; returns the other records. RecordError as the handler says."""
        for topic in self._tables:
            mine = [record for record in records if record.topic == topic]
            self._fill(topic, [replace(record, partition=0) for record in mine])
        return [record for record in records if record.topic not in self._tables]

    def _fill(self, topic: str, records: Sequence[RawRecord]) -> None:
        table, offset = self._tables[topic], self._offsets[topic]
        rows = [(record, offset + at) for at, record in enumerate(records)]
        for tp, columns in log_columns(rows, headers=True).items():
            try:
                taken = self._intake.taken(tp, columns, offset + len(rows), len(rows))
            except UndecodableRecord as error:
                raise ending(error.failure, 1, "") from error
            keyed = [at for at, key in enumerate(taken.keys) if key is not None]
            changes = StoreChanges(
                table.store.name,
                [taken.keys[at] or b"" for at in keyed],
                [taken.values[at] for at in keyed],
                taken.timestamps[keyed],
            )
            self._stores[table.store.name].apply(changes)
        self._offsets[topic] += len(rows)


def log_columns(
    rows: Sequence[tuple[RawRecord, int]], headers: bool
) -> dict[TopicPartition, LogColumns]:
    found = defaultdict[TopicPartition, list[tuple[RawRecord, int]]](list)
    for record, offset in rows:
        found[TopicPartition(record.topic, record.partition)].append((record, offset))
    return {
        tp: LogColumns(
            keys=pa.array([record.key for record, _ in listed], pa.binary()),
            values=pa.array([record.value for record, _ in listed], pa.binary()),
            offsets=np.array([offset for _, offset in listed], np.int64),
            timestamps=np.array([record.timestamp for record, _ in listed], np.int64),
            headers=pa.array(
                [[{"key": k, "value": v} for k, v in record.headers] for record, _ in listed],
                HEADERS,
            )
            if headers and any(record.headers for record, _ in listed)
            else None,
        )
        for tp, listed in found.items()
    }


@dataclass(frozen=True)
class _MemoryWriter:
    """Gives the records to ``tell``, each in the partition that the producer would choose."""

    tell: Tell
    count: Callable[[str], int] = lambda _: 1

    def write(
        self,
        topic: str,
        keys: Bytes,
        values: Bytes,
        timestamps: Int64,
        partition: int | Int64 | None = None,
        headers: Sequence[Any] | None = None,
    ) -> None:
        listed = pa.array(keys, pa.binary())
        count = self.count(topic)
        places = np.zeros(len(listed), np.int64) if count == 1 else java_partitions(listed, count)
        if partition is not None:
            places = np.where(partition == BY_KEY, places, partition)
        columns = (
            listed.to_pylist(),
            pa.array(values, pa.binary()).to_pylist(),
            timestamps.tolist(),
            headers or [()] * len(listed),
            places.tolist(),
        )
        self.tell(
            RawRecord(topic, k, v, at, tuple(h), place)
            for k, v, at, h, place in zip(*columns, strict=True)
        )

    def begin(self) -> None: ...
    def send(self) -> None: ...
    def flush(self, timeout_s: float) -> None: ...


Partitions = int | Mapping[str, int]


class DriverTopics:
    """``counts``: partitions of the topics that tasks read, by full name. ``inputs``: of each task.
    ``by``: partitioners by topic."""

    def __init__(
        self,
        topology: Topology,
        subs: SubTopologies,
        application_id: str,
        partitions: Partitions,
        where: str | None,
    ) -> None:
        """For ``partitions`` as `TopologyTestDriver` has them. TopologyError also for numbers below
        1 and for topics that the topology does not read."""
        numbers = [partitions] if isinstance(partitions, int) else list(partitions.values())
        if any(not isinstance(n, int) or isinstance(n, bool) or n < 1 for n in numbers):
            raise TopologyError(
                f"partitions is a number above 0, or such numbers by topic, found {partitions!r}",
                where=where,
            )
        full = {f"{application_id}-{one.name}": one.name for one in topology.repartition_topics}
        self._others = partitions
        self.counts: Mapping[str, int] = {}
        if partitions == 1:
            self.counts = dict.fromkeys([*subs.topics, *full], 1)
        else:
            known = {topic: self.count(topic) for topic in subs.topics}
            internal = internal_topics(subs, known, application_id).repartition
            self.counts = {**known, **{name: count for name, (count, _) in internal.items()}}
        self.tasks = tasks(subs, self.counts, application_id)
        inputs = {sub.index: sub.inputs(application_id) for sub in subs.subtopologies}
        self.inputs = {
            task: [
                TopicPartition(topic, task.partition)
                for topic in inputs[task.subtopology]
                if task.partition < self.counts[topic]
            ]
            for task in self.tasks
        }
        by = key_partitioners(topology)
        names = {**{topic: topic for topic in by}, **full}
        self.by = {name: by[short] for name, short in names.items() if short in by}

    def count(self, topic: str) -> int:
        others = self._others
        other = others if isinstance(others, int) else others.get(topic, 1)
        return self.counts.get(topic) or other

    def places(self, topic: str, serde: Serde, said: str | FunctionExpr | None) -> Places:
        """The partitioner of an input topic; ``said``: the one of its producer."""
        count = self.count(topic)
        by = self.by.get(topic, MURMUR2) if said is None else key_partitioner(said, (topic,))

        def place(key: bytes | None, partition: int | None) -> int:
            if partition is not None:
                if not 0 <= partition < count:
                    raise ValueError(
                        f"{topic} has the partitions 0 to {count - 1}, not {partition}; "
                        f"TopologyTestDriver(topology, partitions={partition + 1}) gives it more"
                    )
                return partition
            if key is None or count == 1:
                return 0
            return int(
                partitions_of(
                    by,
                    topic,
                    pa.array([key], pa.binary()),
                    serde,
                    count,
                )[0]
            )

        return place

    def homes(self, topology: Topology, application_id: str) -> dict[str, tuple[int, Home]]:
        """Store -> its number of partitions, and where queries look for a key."""
        nodes = [node for node in topology.nodes if isinstance(node, StatefulNode)]
        serdes = {spec.name: spec.key_serde for node in nodes for spec in node.stores}
        by = partitioners_of_stores(topology)
        return {
            name: (
                max((self.counts.get(topic, 1) for topic in topics), default=1),
                self._home(
                    by.get(name) if topics <= self.by.keys() else None, topics, serdes[name]
                ),
            )
            for name, topics in topics_into_stores(topology, application_id).items()
        }

    def _home(self, by: KeyPartitioner | None, topics: frozenset[str], serde: Serde) -> Home:
        if by is None:
            return lambda key: None
        count = max(self.counts[one] for one in topics)
        return lambda key: int(partitions_of(by, "", pa.array([key], pa.binary()), serde, count)[0])


class DriverSilence:
    """Idle sources, by the driver's wall clock (note 025). ``inputs``: partitions of each task."""

    def __init__(
        self,
        plan: PhysicalPlan,
        stream_times: Mapping[TaskId, Mapping[str, int]],
        inputs: Mapping[TaskId, Sequence[TopicPartition]],
    ) -> None:
        self._plan, self._stream_times, self._inputs = plan, stream_times, inputs
        self.subtopologies = sorted(plan.idle)
        self.forget()

    def forget(self) -> None:
        self._idle_sources = IdleSources(self._plan.idle, lambda topics: True)

    def due(self, subtopology: int, now_ms: int) -> IdleTimes:
        found = self._due((), now_ms)
        return {task: names for task, names in found.items() if task.subtopology == subtopology}

    def read(self, read: Collection[TopicPartition], moved: IdleTimes, now_ms: int) -> None:
        """After a micro-batch: ``read`` had records, ``moved`` are the times it advanced."""
        if not self.subtopologies:
            return
        self._due(read, now_ms)
        self._idle_sources.advanced(self._tasks(), moved, now_ms)
        self._due((), now_ms)

    def _due(self, read: Collection[TopicPartition], now_ms: int) -> IdleTimes:
        tasks = self._tasks()
        available = {tp: OffsetRange(0, int(tp in read)) for task in tasks for tp in task.inputs}
        return self._idle_sources.due(tasks, available, now_ms)

    def _tasks(self) -> list[ActiveTask]:
        return [
            ActiveTask(
                id=task, inputs=tuple(listed), stream_times=dict(self._stream_times.get(task, {}))
            )
            for task, listed in self._inputs.items()
        ]
