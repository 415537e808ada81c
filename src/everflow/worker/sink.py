"""The last step's end: one Kafka transaction per micro-batch, then the stores (design D5, D6).

Outputs, changelog and dead letters are written; the driver's gate is asked; the offsets go into the
transaction; it commits; only then do the changelog's rows enter the local stores. Before the commit
nothing local has changed, so an abort leaves nothing to undo; after it the changelog holds
everything, so a crash is mended by replaying its tail.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import NamedTuple, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from everflow.config import EXACTLY_ONCE_V2
from everflow.errors import (
    EverflowError,
    GenerationChanged,
    RecordRefusedError,
    RecordTooLargeError,
)
from everflow.memory import Taken
from everflow.protocol.messages import (
    ABORTED,
    COMMITTED,
    LEFT,
    RENEWED,
    SINKS,
    BatchFigures,
    BatchRequest,
    BatchResult,
    GateAnswer,
    Puts,
    Rows,
    Sent,
    TaskContext,
    format_metadata,
    timed,
)
from everflow.records import (
    Int64,
    StoreChanges,
    TaskId,
    TopicPartition,
    as_bytes,
    listed_headers,
)
from everflow.state.changelog import fold
from everflow.state.left_out import KeptEntry, as_written
from everflow.state.store import left_out_topic
from everflow.state.store_meta import NO_INPUTS, Owner
from everflow.topology.sources import sources_of_logs
from everflow.worker.crash_points import BEFORE_TRANSACTION, FIRST_RECORD, OFFSETS_SENT
from everflow.worker.crash_points import COMMITTED as POINT_COMMITTED
from everflow.worker.deliver import deliver
from everflow.worker.failures import Sources
from everflow.worker.letters import (
    FLUSH_TIMEOUT_S,
    Columns,
    LetterRefusedError,
    Letters,
    LetterTooLargeError,
    LetterWriter,
    changes_of,
    named,
    refused,
    take_letters,
)
from everflow.worker.task_step import SinkOutput, StepResult
from everflow.worker.times import ages_written

# --- metrics of a batch ---------------------------------------------------------------------------


def figures_of(result: StepResult) -> BatchFigures:
    written = ages_written((output.node, output.batch) for output in result.outputs)
    return BatchFigures(
        [*result.ages, *written],
        [sent for output in result.outputs for sent in _sent(output)],
        _puts(result.changes),
        result.letters,
        result.keys,
    )


def _sent(output: SinkOutput) -> list[Sent]:
    count = len(output.batch)
    size = _length(output.keys) + _length(output.values)
    if isinstance(output.topics, str):
        return [Sent(output.node, output.topics, count, size)] if count else []
    # Each has its share of the bytes: they are not read twice for a metric.
    return [
        Sent(output.node, topic, records, size * records // count)
        for topic, records in Counter(output.topics).items()
    ]


def _length(column: pa.Array) -> int:
    return int(pc.sum(pc.binary_length(column)).as_py() or 0)


def _puts(changes: Mapping[TaskId, Sequence[StoreChanges]]) -> list[Puts]:
    found: Counter[tuple[TaskId, str]] = Counter()
    for task, listed in changes.items():
        for change in listed:
            found[task, change.store] += len(change)
    return [Puts(str(task), store, count) for (task, store), count in found.items()]


# --- the transaction ------------------------------------------------------------------------------


ENDED_LATE_S = 10.0
"""How much later than its time-out the broker ends a transaction."""
OFFSETS_TIMEOUT_S = 10.0
COMMIT_TIMEOUT_S = 30.0
ABORT_TIMEOUT_S = 10.0


class SinkWriter(LetterWriter, Protocol):
    """The part of a `RecordWriter` that the sink needs."""

    @property
    def blocked_ms(self) -> float: ...
    @property
    def renewals(self) -> int: ...
    def partition_count(self, topic: str) -> int: ...
    def positions(self) -> Mapping[TopicPartition, int]: ...
    def send_offsets(
        self, offsets: Iterable[tuple[str, int, int, str]], group_metadata: bytes, timeout_s: float
    ) -> None: ...
    def commit(self, timeout_s: float) -> None: ...
    def abort(self, timeout_s: float) -> None: ...
    def close(self) -> None: ...


class SinkPorts(Protocol):
    """Effects of the sink, in a worker (`serve.WorkerPorts`, picklable) or in a simulation."""

    @property
    def watched(self) -> bool:
        """True if a test may wait for `reached`."""

    def reached(self, point: str) -> None:
        """The batch is at this crash point (`crash_points.NAMES`); where it is to die there, this
        does not return."""

    def writer(self, request: BatchRequest) -> SinkWriter:
        """The process's writer for the batch; connects it on first use."""

    def ask(
        self, request: BatchRequest, offsets: Sequence[tuple[str, int, int, str]]
    ) -> GateAnswer:
        """The driver's answer: may the batch commit these?"""

    def apply(
        self,
        path: str,
        changes: StoreChanges,
        position: int | None,
        expected: Owner,
        batch: str,
        inputs: Mapping[str, int],
    ) -> None:
        """`LmdbStore.apply` on the store in this folder, at the present wall clock."""

    def entry(self, path: str, key: bytes) -> bytes | None:
        """The entry of a key in the store of this folder, in its stored form."""

    def memory(self) -> Taken | None:
        """See `PeakMemory.taken`: the most memory of the batch so far; None: not known."""

    def topic_limit(self, request: BatchRequest, topic: str) -> int | None:
        """``max.message.bytes`` of a topic; None where the broker does not say."""


@dataclass(frozen=True)
class KafkaSink:
    """Writes and commits a batch. ``dead_letter_topic`` may be None; ``layouts``: see note 013."""

    dead_letter_topic: str | None
    ports: SinkPorts
    layouts: str = ""

    def __call__(
        self,
        request: BatchRequest,
        result: StepResult,
        sources: Sources,
    ) -> BatchResult:
        """See `Sink`. Raises UndecodableRecord for one that is to stop the application,
        TaskMigratedError, UnknownOutcomeError and RetriableError as `RecordWriter` does; whatever
        is raised, no store has changed."""
        batch = _Transaction(self, request, result, sources)
        if not batch.touched:
            # A warm-up or keep-alive batch: the producer is there when the first record comes.
            self.ports.writer(request)
            return batch.of_nothing()
        corrections = left_out_entries(
            request,
            result,
            sources,
            lambda task, store, key: self.ports.entry(task.stores[store].path, key),
        )
        left_out = take_letters(result, sources)
        letters = Letters.of(
            self.dead_letter_topic, result.dead_letters, sources, request.wall_clock_ms
        )
        given: list[Rows] = []
        if result.given:
            # No transaction is open while the outside is waited for.
            with timed(result.timings, SINKS):
                given = deliver(request, result, sources, self.ports.reached)
        while True:
            try:
                return batch.transacted(letters, corrections, left_out, given)
            except (LetterTooLargeError, LetterRefusedError) as error:
                assert letters is not None
                letters.refused(error)


@dataclass(frozen=True)
class _Transaction:
    """A micro-batch on its way into the log and the stores."""

    sink: KafkaSink
    request: BatchRequest
    result: StepResult
    sources: Sources

    @cached_property
    def tasks(self) -> dict[TopicPartition, TaskId]:
        found = sources_of_logs(self.sources, self.request.ranges)
        return {tp: source.task(tp) for tp, source in found.items()}

    @cached_property
    def touched(self) -> set[TaskId]:
        """Tasks whose input moved, whose stores changed, or that a clock has called."""
        ranges, result = self.request.ranges, self.result
        before = {task.task: task.stream_times for task in self.request.tasks}
        touched = set(result.changes) | {
            task
            for task, times in result.stream_times.items()
            if any(before.get(task, {}).get(name, -1) != ms for name, ms in times.items())
        }
        moved = (tp for tp, wanted in ranges.items() if result.consumed[tp] > wanted.start)
        return touched.union(self.tasks[tp] for tp in moved)

    def of_nothing(self) -> BatchResult:
        """The result of a batch without records: its consumed offsets hold all the same."""
        return BatchResult(
            outcome=COMMITTED,
            consumed=self.result.consumed,
            counts={"in": 0, "out": 0},
            silent=self.request.silent,
            heads=self.result.heads,
        )

    @property
    def delivery_s(self) -> float:
        """Of a transaction's records: no longer than the broker lets it be open."""
        open_ms = self.request.transaction_timeout_ms
        if open_ms is None:
            return FLUSH_TIMEOUT_S
        return min(FLUSH_TIMEOUT_S, open_ms / 1000 + ENDED_LATE_S)

    def transacted(
        self,
        letters: Letters | None,
        corrections: Sequence[LeftOutEntries],
        left_out: list[str],
        given: Sequence[Rows],
    ) -> BatchResult:
        """One transaction. ``left_out``: as in the result; ``given``: what sinks outside Kafka
        took. Raises as `KafkaSink.__call__`, and LetterTooLargeError."""
        ports, request, result = self.sink.ports, self.request, self.result
        ports.reached(BEFORE_TRANSACTION)
        writer = ports.writer(request)
        writer.begin()
        try:
            with timed(result.timings, "write"):
                counts = self._write(writer, letters, corrections)
                writer.send()
                if request.guarantee != EXACTLY_ONCE_V2:
                    # The driver commits the offsets when it is asked.
                    writer.flush(FLUSH_TIMEOUT_S)
                elif letters is not None:
                    # The gate answers a batch once: what letters are refused is known before.
                    writer.flush(self.delivery_s)
            answer = self._commit(writer)
        except GenerationChanged as error:
            # Refused as a whole, nothing committed: the tasks that stay run it again at once (I4).
            _abort(writer)
            return BatchResult(outcome=ABORTED, reason=f"generation: {error}")
        except (RecordTooLargeError, RecordRefusedError) as error:
            _abort(writer)
            if isinstance(error, RecordRefusedError):
                raise refused(error, result, self.sources, letters) from error
            limit = partial(ports.topic_limit, request)
            raise named(error, request, result, self.sources, limit, letters) from error
        except Exception:
            _abort(writer)
            raise
        if not answer.ok:
            _abort(writer)
            return BatchResult(outcome=ABORTED, reason=answer.reason)
        ports.reached(POINT_COMMITTED)
        ports.memory()
        with timed(result.timings, "apply"):
            positions = self._apply(writer.positions())
        return BatchResult(
            outcome=COMMITTED,
            consumed=result.consumed,
            stream_times=result.stream_times,
            positions=positions,
            counts={**counts, RENEWED: writer.renewals, LEFT: result.left},
            dropped=result.dropped,
            deferred_offsets=answer.deferred,
            timings=result.timings,
            blocked_ms=writer.blocked_ms,
            figures=figures_of(result)._replace(rows=[*result.rows, *given]),
            left_out=left_out,
            printed=result.printed,
            remarks=result.remarks,
            silent=request.silent,
            heads=result.heads,
            next=result.next,
            memory=ports.memory(),
        )

    def _write(
        self, writer: SinkWriter, letters: Letters | None, corrections: Sequence[LeftOutEntries]
    ) -> dict[str, int]:
        ports, result, written = self.sink.ports, self.result, Counter[str]()
        watched = ports.watched
        for kind, columns in self._columns(writer, letters, corrections):
            writer.write(*columns)
            written[kind] += len(columns[3])
            if watched and len(columns[3]):
                watched = False
                writer.flush(FLUSH_TIMEOUT_S)
                ports.reached(FIRST_RECORD)  # the first records have reached the broker
        read = (result.consumed[tp] - one.start for tp, one in self.request.ranges.items())
        return {
            "in": sum(read),
            "bytes": result.input_bytes,
            **{kind: written[kind] for kind in ("out", "changelog", "dead_letters")},
        }

    def _columns(
        self, writer: SinkWriter, letters: Letters | None, corrections: Sequence[LeftOutEntries]
    ) -> Iterator[tuple[str, Columns]]:
        for output in self.result.outputs:
            for columns in columns_of(output, writer.partition_count):
                yield "out", columns
        for topic, task, changes in changes_of(self.request, self.result):
            if TopicPartition(topic, task.partition) in self.request.ranges:
                continue  # it is in the topic that was read
            keys, values = as_bytes(changes.keys), as_bytes(changes.values)
            yield "changelog", (topic, keys, values, changes.timestamps, task.partition, None)
        for one in corrections:
            times = np.array([entry.time for entry in one.entries], np.int64)
            packed = as_bytes([entry.packed() for entry in one.entries])
            yield "", (one.topic, as_bytes(one.keys), packed, times, one.partition, None)
        if letters is not None:
            yield "dead_letters", letters.columns()

    def _commit(self, writer: SinkWriter) -> GateAnswer:
        offsets, timings, ports = self._offsets(), self.result.timings, self.sink.ports
        with timed(timings, "gate"):
            answer = ports.ask(self.request, offsets)
        if answer.ok and self.request.guarantee == EXACTLY_ONCE_V2:
            assert answer.group_metadata is not None
            # The records are on their way meanwhile: both belong to the transaction, and nothing
            # counts before its end.
            with timed(timings, "offsets"):
                writer.send_offsets(offsets, answer.group_metadata, OFFSETS_TIMEOUT_S)
            with timed(timings, "delivery"):
                writer.flush(self.delivery_s)
            ports.reached(OFFSETS_SENT)
            with timed(timings, "commit"):
                writer.commit(COMMIT_TIMEOUT_S)
        return answer

    def _offsets(self) -> list[tuple[str, int, int, str]]:
        """All input partitions of every touched task, moved or not, each with batch id, stream
        times and layouts (D5)."""
        moved, batch, layouts = self.result.stream_times, self.request.batch_id, self.sink.layouts
        times: dict[TaskId, Mapping[str, int]] = {
            task.task: {**task.stream_times, **moved.get(task.task, {})}
            for task in self.request.tasks
        }
        return [
            (*tp, self.result.consumed[tp], format_metadata(batch, times.get(task, {}), layouts))
            for tp, task in self.tasks.items()
            if task in self.touched
        ]

    def _apply(self, sent: Mapping[TopicPartition, int]) -> dict[TaskId, dict[str, int]]:
        """Fold committed changes into the stores; all of a touched task get batch id and inputs."""
        request, result = self.request, self.result
        positions: dict[TaskId, dict[str, int]] = {}
        inputs: dict[TaskId, dict[str, int]] = {}
        if request.guarantee == EXACTLY_ONCE_V2:
            for tp, task_id in self.tasks.items():
                inputs.setdefault(task_id, {})[str(tp)] = result.consumed[tp]
        for task in request.tasks:
            if task.task not in self.touched:
                continue
            for name, place in task.stores.items():
                listed = [one for one in result.changes.get(task.task, []) if one.store == name]
                position = None
                if place.changelog is not None:
                    changelog = TopicPartition(place.changelog, task.task.partition)
                    reused = changelog in request.ranges  # the topic that was read is its changelog
                    position = (result.consumed if reused else sent).get(changelog)
                self.sink.ports.apply(
                    place.path,
                    _joined(name, listed),
                    position,
                    Owner(task.incarnation, task.last_batch),
                    request.batch_id,
                    inputs.get(task.task, NO_INPUTS),
                )
                if position is not None:
                    positions.setdefault(task.task, {})[name] = position
        return positions


def _abort(writer: SinkWriter) -> None:
    """Give the transaction up; a writer that cannot even do that is fenced by the driver (D6)."""
    try:
        writer.abort(ABORT_TIMEOUT_S)
    except EverflowError:
        writer.close()


class LeftOutEntries(NamedTuple):
    """Records of one partition of a topic of what was left out."""

    topic: str
    partition: int
    keys: list[bytes]
    entries: list[KeptEntry]


def _left_out_keys(
    request: BatchRequest, result: StepResult, sources: Sources
) -> dict[TopicPartition, dict[bytes, None]]:
    reused = request.reused()
    found = {tp: dict.fromkeys(keys) for tp, keys in result.skipped.items() if tp in reused}
    if result.dead_letters is None or not reused:
        return found
    letters = result.dead_letters
    places = zip(letters.source.tolist(), letters.partition.tolist(), strict=True)
    for (source, partition), key in zip(places, letters.key.to_pylist(), strict=True):
        tp = sources[source].log(partition)
        if tp in reused and key is not None:
            found.setdefault(tp, {})[as_written([key], sources[source].key_serde)[0] or b""] = None
    return found


def left_out_entries(
    request: BatchRequest,
    result: StepResult,
    sources: Sources,
    entry: Callable[[TaskContext, str, bytes], bytes | None],
) -> list[LeftOutEntries]:
    """What tables have behind the batch for keys of records that it leaves out of topics that are
    changelogs, too: those bytes are never state (note 065). ``entry``: a stored one, before."""
    if result.dead_letters is None and not result.skipped:
        return []
    found, reused = [], request.reused()
    for tp, keys in _left_out_keys(request, result, sources).items():
        task, store = reused[tp]
        context = next(one for one in request.tasks if one.task == task)
        changes = [one for one in result.changes.get(task, []) if one.store == store]
        written = fold(_joined(store, changes))
        stored = [written[key] if key in written else entry(context, store, key) for key in keys]
        offset, now_ms = result.consumed[tp] - 1, request.wall_clock_ms
        entries = [KeptEntry.of(offset, one, now_ms) for one in stored]
        topic = left_out_topic(request.application_id, store)
        found.append(LeftOutEntries(topic, tp.partition, list(keys), entries))
    return found


# --- records --------------------------------------------------------------------------------------


def columns_of(output: SinkOutput, partition_count: Callable[[str], int]) -> Iterator[Columns]:
    for topic, rows in _by_topic(output):
        partition: Int64 | None = None
        if output.partitions is not None:
            rows, partition = output.partitions.of(topic, rows, partition_count(topic))
        keys, values, times = output.keys, output.values, output.batch.timestamp
        found = output.batch.headers
        if rows is not None:
            index = pa.array(rows)
            keys, values, times = keys.take(index), values.take(index), times[rows]
            found = None if found is None else found.take(index)
        headers = None
        if found is not None and pc.any(pc.greater(pc.list_value_length(found), 0)).as_py():
            headers = listed_headers(found, len(times))
        yield topic, keys, values, times, partition, headers


def _by_topic(output: SinkOutput) -> Iterator[tuple[str, Int64 | None]]:
    """The records of each topic (None: all), in the order of the topics' first records."""
    if isinstance(output.topics, str):
        yield output.topics, None
        return
    for topic in dict.fromkeys(output.topics):
        mine = [row for row, name in enumerate(output.topics) if name == topic]
        yield topic, np.array(mine, np.int64)


def _joined(store: str, listed: list[StoreChanges]) -> StoreChanges:
    if len(listed) == 1:
        return listed[0]
    keys = [key for changes in listed for key in changes.keys]
    values = [value for changes in listed for value in changes.values]
    times = [changes.timestamps for changes in listed]
    return StoreChanges(
        store, keys, values, np.concatenate(times) if times else np.empty(0, np.int64)
    )
