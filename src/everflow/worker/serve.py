"""The resident step: one Spark task that serves many micro-batches, as a job for each would cost
more than the work of a small one (design note 004). And its ports: producer, the driver's gate,
stores on disk.

The gate is asked before anything is committed (D6). Every failure to get an answer is an "abort": a
worker without a driver must not commit.

`RetainedPages` bounds the memory that LMDB holds for stores: a copy of each page that a transaction
changes, kept until the store is closed.
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, closing
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO

from everflow.clock import in_utc
from everflow.config import EXACTLY_ONCE_V2
from everflow.errors import EverflowError, RetriableError
from everflow.kafka.admin import ClusterAdmin
from everflow.kafka.reading.range_reader import RangeReader
from everflow.kafka.reading.record_columns import LogColumns
from everflow.kafka.writing.record_writer import RecordWriter
from everflow.memory import SpareMemory, Taken, of_this_process, trim_of_libc
from everflow.protocol.messages import (
    FAILED,
    LEFT,
    BatchRequest,
    BatchResult,
    GateAnswer,
    TaskContext,
    WorkerClients,
    as_line,
    from_line,
    timed,
)
from everflow.records import StoreChanges, TopicPartition
from everflow.serdes.registered import warm_up
from everflow.sockets import MOST_LINE_BYTES, TooLargeError, read_line, require_size
from everflow.state.lmdb_env import DATA_FILE
from everflow.state.lmdb_store import LmdbStore
from everflow.state.store import StoreSpec
from everflow.state.store_meta import Owner
from everflow.state.task_directory import distrust
from everflow.topology.batches import BatchInput
from everflow.topology.plan import SinkOp
from everflow.travel.pickled_objects import PickledObjects
from everflow.worker.calls import SideBySide, close_event_loop, keep_calls
from everflow.worker.certain_times import not_done
from everflow.worker.columns import ColumnClient
from everflow.worker.crash_points import ENVIRONMENT_VARIABLE, reached
from everflow.worker.decode import LogDecoder
from everflow.worker.failures import failure_of
from everflow.worker.isolation import Isolated, Trial, stores_of, trial_of
from everflow.worker.stores import FollowedView
from everflow.worker.task_step import TaskStep

# --- LMDB's memory --------------------------------------------------------------------------------


PAGE_BYTES = 4096


class RetainedPages:
    """The memory of one process, by the stores' folders. Not thread-safe."""

    def __init__(self) -> None:
        self._bytes: dict[str, int] = {}
        self._sum = 0

    def wrote(self, path: str, changes: int, file_bytes: int, most_bytes: int) -> list[str]:
        """Notes a transaction; the stores to close, fullest first, for ``most_bytes`` at most."""
        more = min(changes * PAGE_BYTES, file_bytes) - self._bytes.get(path, 0)
        if more <= 0:
            return []
        self._bytes[path] = self._bytes.get(path, 0) + more
        self._sum += more
        full: list[str] = []
        while self._sum > most_bytes:
            full.append(max(self._bytes, key=self._bytes.__getitem__))
            self._sum -= self._bytes.pop(full[-1])
        return full


# --- the gate -------------------------------------------------------------------------------------


class GateClient:
    """One connection to the gate; not shared between threads."""

    def __init__(self, path: str, timeout_s: float = 30.0) -> None:
        self._path = path
        self._timeout_s = timeout_s
        self._socket: socket.socket | None = None
        self._lines: BinaryIO | None = None

    def wanted(self, batch: str) -> bool:
        """Whether ``batch`` may take its time; False: its thread has a task to hand over, or is to
        stop, or the driver is gone."""
        return bool(self._ask({"op": "wanted", "batch": batch}).get("ok"))

    def clients(self) -> WorkerClients:
        """Settings of the clients that this process opens. ConnectionError where the driver is
        gone."""
        answer = self._ask({"op": "clients"})
        if not answer.get("ok"):
            raise ConnectionError(str(answer.get("reason")))
        return WorkerClients(answer["reader"], answer["producer"])

    def commit(self, batch: str, offsets: Sequence[tuple[str, int, int, str]]) -> GateAnswer:
        """May ``batch`` commit, and at least once these ``(topic, partition, offset, metadata)``?
        Answered once per batch id."""
        return GateAnswer.of(
            self._ask(
                {"op": "commit", "batch": batch, "offsets": [list(offset) for offset in offsets]}
            )
        )

    def close(self) -> None:
        """Close the connection; the next question opens a new one."""
        for opened in (self._lines, self._socket):
            if opened is not None:
                opened.close()
        self._socket = self._lines = None

    def _ask(self, question: dict[str, Any]) -> dict[str, Any]:
        data = json.dumps(question, separators=(",", ":")).encode() + b"\n"
        try:
            require_size(len(data), "the question to the commit gate", MOST_LINE_BYTES)
            connection, lines = self._connect()
            connection.sendall(data)
            line = read_line(lines, "the commit gate's answer")
            if not line.endswith(b"\n"):
                raise ConnectionError("the gate closed the connection")
            answer: dict[str, Any] = json.loads(line)
            return answer
        except TooLargeError as error:
            self.close()
            return {"ok": False, "reason": f"too large: {error}"}
        except (OSError, ValueError) as error:
            self.close()
            return {"ok": False, "reason": f"driver gone: {error}"}

    def _connect(self) -> tuple[socket.socket, BinaryIO]:
        if self._socket is None or self._lines is None:
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            connection.settimeout(self._timeout_s)
            try:
                connection.connect(self._path)
            except OSError:
                connection.close()
                raise
            self._socket, self._lines = connection, connection.makefile("rb")
        return self._socket, self._lines


# --- ports ----------------------------------------------------------------------------------------


CONFIG_TIMEOUT_S = 5.0


class BatchUnwantedError(RetriableError):
    """The driver is gone; nothing was written."""

    code = "EF-BATCH-UNWANTED"


@dataclass(frozen=True)
class LmdbAccess:
    """Snapshots of the LMDB stores whose folders the request names."""

    def view(
        self,
        task: TaskContext,
        spec: StoreSpec,
    ) -> AbstractContextManager[FollowedView]:
        return LmdbStore.open(task.stores[spec.name].path).snapshot()

    def distrust(self, task: TaskContext, spec: StoreSpec, reason: str) -> None:
        """See `StoreAccess`: the recovery after this batch finds the mark."""
        place = task.stores[spec.name]
        if place.changelog is not None:
            distrust(Path(place.path), reason)


def wanted(request: BatchRequest) -> bool:
    """See `GateClient.wanted`."""
    return _gate(request.gate).wanted(request.batch_id)


_retained = RetainedPages()
_gates: dict[int, tuple[str, GateClient]] = {}
"""Process -> its gate and the connection there: an instance's socket serves all of its batches."""


def _gate(path: str) -> GateClient:
    """This process's connection; for its main thread. A fork makes its own."""
    known = _gates.get(os.getpid())
    if known is None or known[0] != path:
        if known is not None:
            known[1].close()
        _gates.clear()
        _gates[os.getpid()] = known = (path, GateClient(path))
    return known[1]


@lru_cache(maxsize=1)
def clients_of(gate: str) -> WorkerClients:
    """Settings of the clients that serve an instance's batches. BatchUnwantedError where its driver
    is gone."""
    try:
        return _gate(gate).clients()
    except ConnectionError as error:
        raise BatchUnwantedError(f"{error}; nothing was written") from error


@dataclass(frozen=True)
class WorkerPorts:
    """`sink.SinkPorts` of this process; ``most_retained_bytes``: see `RetainedPages`."""

    most_retained_bytes: int

    @property
    def watched(self) -> bool:
        return ENVIRONMENT_VARIABLE in os.environ

    def reached(self, point: str) -> None:
        reached(point)

    def writer(self, request: BatchRequest) -> RecordWriter:
        return RecordWriter.get(
            clients_of(request.gate).producer,
            request.transactional_id if request.guarantee == EXACTLY_ONCE_V2 else None,
        )

    def ask(
        self, request: BatchRequest, offsets: Sequence[tuple[str, int, int, str]]
    ) -> GateAnswer:
        # Under exactly once they go into the transaction, not through the driver.
        told = () if request.guarantee == EXACTLY_ONCE_V2 else offsets
        return _gate(request.gate).commit(request.batch_id, told)

    def apply(
        self,
        path: str,
        changes: StoreChanges,
        position: int | None,
        expected: Owner,
        batch: str,
        inputs: Mapping[str, int],
    ) -> None:
        LmdbStore.open(path).apply(
            changes,
            position=position,
            expected=expected,
            batch=batch,
            inputs=inputs,
            now_ms=int(time.time() * 1000),
            reached=reached,
        )
        size = os.stat(f"{path}/{DATA_FILE}").st_size
        for full in _retained.wrote(path, len(changes), size, self.most_retained_bytes):
            LmdbStore.close_at(full)

    def entry(self, path: str, key: bytes) -> bytes | None:
        with LmdbStore.open(path).snapshot() as view:
            return view.get_many([key])[0]

    def memory(self) -> Taken | None:
        return of_this_process(os.getpid()).taken()

    def topic_limit(self, request: BatchRequest, topic: str) -> int | None:
        admin = ClusterAdmin.beside(clients_of(request.gate).producer)
        try:
            return int(admin.topic_configs([topic], CONFIG_TIMEOUT_S)[topic]["max.message.bytes"])
        except (EverflowError, KeyError, ValueError):
            return None
        finally:
            admin.close()


# --- the resident step ----------------------------------------------------------------------------


READ_TIMEOUT_S = 30.0
QUIET_S = 10.0
"""How long a partition that does not answer may hold up tasks beside its own."""
STOP = b"stop\n"


@dataclass(kw_only=True)
class Arrivals:
    """Of one batch: `isolation.Arriving`. ``read``: all that was read of its logs; ``bounds``:
    where its ranges may end at the latest."""

    reader: RangeReader
    read: dict[TopicPartition, LogColumns]
    ends: dict[TopicPartition, int]
    bounds: Mapping[TopicPartition, int]
    left_bytes: int
    unanswered: bool = False
    """The batch has ended before records whose calls have no answer yet."""
    _closed: bool = False

    def here(self) -> bool:
        """Whether records have come behind those that were read; they are read now."""
        open_ = {tp: end for tp, end in self.bounds.items() if self.ends[tp] < end}
        if self._closed or self.left_bytes <= 0 or not open_:
            return False
        came = self.reader.further(open_, self.left_bytes)
        self.ends.update(came.ends)
        for tp, columns in came.columns.items():
            self.read[tp] = LogColumns.concat([self.read[tp], columns])
            self.left_bytes -= columns.nbytes
        return any(map(len, came.columns.values()))

    def joined(
        self, request: BatchRequest, read: Mapping[TopicPartition, LogColumns]
    ) -> tuple[BatchRequest, Mapping[TopicPartition, LogColumns]]:
        """See `isolation.Arriving`."""
        return request.ending(self.ends), dict(self.read)

    def close(self, calls: bool) -> None:
        """See `isolation.Arriving`."""
        self._closed = True
        self.unanswered |= calls


def _lines_to_driver(connection: socket.socket, path: str) -> Any:
    """The first line tells the driver which process serves its batches, so that it can be killed
    after a failure (scenario 34)."""
    connection.connect(path)
    lines = connection.makefile("rwb")
    lines.write(b"%d\n" % os.getpid())
    lines.flush()
    return lines


@dataclass(kw_only=True)
class ResidentStep:
    """The only task of the long-running job; picklable. ``ahead_bytes``: how much is fetched ahead
    of the next request (`WorkerMemory.ahead`). ``columns``: the socket where Spark's code computes
    Columns; empty where none needs it."""

    step: TaskStep
    decoder: LogDecoder
    read_committed: bool
    ahead_bytes: int
    columns: str
    _reader: RangeReader | None = field(default=None, init=False)

    def __call__(self, path: str) -> None:
        """Serve the requests from this socket until the driver stops it, or one has failed: the
        driver then ends this process."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            lines = _lines_to_driver(connection, path)
            with in_utc(), closing(ColumnClient(self.columns)) as columns, ExitStack() as opened:
                opened.callback(close_event_loop)
                spare = SpareMemory(trim_of_libc())
                while line := read_line(lines, "the driver's request for a batch"):
                    if line == STOP:
                        break
                    before_s = time.process_time()
                    try:
                        result = self._result(from_line(line), columns, opened)
                    except Exception as error:
                        result = BatchResult(outcome=FAILED, failure=failure_of(error))
                    spent_ms = (time.process_time() - before_s) * 1000
                    lines.write(as_line(replace(result, processor_ms=spent_ms)))
                    lines.flush()
                    if result.outcome == FAILED:
                        break
                    spare.trim_if_due()

    def _result(
        self, request: BatchRequest, columns: ColumnClient, opened: ExitStack
    ) -> BatchResult:
        memory, timings = of_this_process(os.getpid()), {"began": time.time() * 1000}
        with timed(timings, "read"):
            reader = self._connected(request, opened)
            if not request.tasks:  # the thread has none yet, so no record waits
                reader.warm_up({source.topic for source in self.decoder.sources}, READ_TIMEOUT_S)
                self._warm_up_serdes()
            request, read = self._read(reader, request)
            memory.begin(sum(found.nbytes for found in read.values()))
        arrivals = self._arrivals(reader, request, read)
        outliving = self.step
        if arrivals is not None:
            outliving = replace(self.step, calls=SideBySide(wanted, arrivals.here))

        def compute(
            request: BatchRequest,
            decoded: BatchInput,
            trial: Trial | None,
        ) -> BatchResult:
            step = outliving if trial is None else trial_of(self.step, trial)
            return step.run(request, decoded, columns, timings)

        isolated = Isolated(self.decoder, stores_of(self.step), timings, arriving=arrivals)
        result = isolated.run(request, read, compute)
        if arrivals is not None and result.committed:
            left = reader.give_back(arrivals.read, result.consumed)
            if arrivals.unanswered:
                result = replace(result, counts={**result.counts, LEFT: left})
        elif result.committed and request.times is not None:
            reader.give_back(read, result.consumed)
        if not request.ranges:
            memory.settle()  # the process holds no records
        return result

    def _warm_up_serdes(self) -> None:
        sources = [(one.key_serde, one.value_serde) for one in self.decoder.sources]
        sinks = [(op.key_serde, op.value_serde) for op in self.step.ops if isinstance(op, SinkOp)]
        for key, value in (*sources, *sinks):
            warm_up(key)
            warm_up(value)

    def _arrivals(
        self,
        reader: RangeReader,
        request: BatchRequest,
        read: Mapping[TopicPartition, LogColumns],
    ) -> Arrivals | None:
        """None where no operator makes calls side by side; else calls that earlier batches have
        left to this one are kept."""
        if not self.step.side_by_side:
            return None
        keep_calls({tp: wanted.start for tp, wanted in request.ranges.items()})
        return Arrivals(
            reader=reader,
            read=dict(read),
            ends={tp: wanted.end for tp, wanted in request.ranges.items()},
            bounds={tp: end for tp, end in request.latest_ends.items() if tp in read},
            left_bytes=request.most_bytes - sum(found.nbytes for found in read.values()),
        )

    def _connected(self, request: BatchRequest, opened: ExitStack) -> RangeReader:
        """The first request opens it, since it names the gate, which has the settings."""
        if self._reader is None:
            client = clients_of(request.gate).reader
            reader = self._reader = RangeReader(
                client, self.read_committed, self.decoder.headers, ahead_bytes=self.ahead_bytes
            )
            opened.callback(reader.close)
        return self._reader

    def _read(
        self, reader: RangeReader, request: BatchRequest
    ) -> tuple[BatchRequest, Mapping[TopicPartition, LogColumns]]:
        """The request with the ranges that were read, and their records. Raises what
        `RangeReader.read` raises."""
        quiet_s = None if request.patient else QUIET_S
        read = reader.read(
            request.ranges,
            READ_TIMEOUT_S,
            request.most_bytes,
            quiet_s,
            request.latest_ends,
            request.topic_ids,
        )
        asked = request.ending(read.ends, silent=read.silent)
        return asked, not_done(read.columns, self.decoder.sources, asked)


@dataclass(frozen=True)
class PackedResident:
    """A `ResidentStep`, serialised as one object: its functions share the program's variables. A
    Spark task opens and calls it."""

    work: PickledObjects
    path: str
    """Of the socket where it reads requests."""

    def __call__(self) -> None:
        try:
            resident: ResidentStep = self.work.open()
        except EverflowError as error:  # this worker lacks something that it needs
            self._refuse(error)
        else:
            resident(self.path)

    def _refuse(self, error: EverflowError) -> None:
        """Answers the first request with ``error``: there is no step that could serve it."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            lines = _lines_to_driver(connection, self.path)
            if read_line(lines, "the driver's first request") != STOP:
                lines.write(as_line(BatchResult(outcome=FAILED, failure=failure_of(error))))
                lines.flush()
