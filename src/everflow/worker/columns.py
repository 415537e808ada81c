"""Computes the Columns of a plan in a worker: by Arrow expressions, by Spark's code, by Python
functions (notes 014 and 016).

Spark's code runs in the instance's JVM, over a socket; Python functions run by PySpark's worker.
"""

from __future__ import annotations

import io
import json
import socket
import struct
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from multiprocessing.connection import Client
from types import SimpleNamespace
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import serializers as untyped_serializers
from pyspark import worker as untyped_worker

from everflow.columns.computation import ArrowExpression, LeftToSpark
from everflow.errors import RetriableError
from everflow.operators.user_code import failing_rows, require_users
from everflow.records import EdgeBatch, no_headers
from everflow.sockets import MOST_MESSAGE_BYTES, TooLargeError, require_size
from everflow.topology.batches import readable, spread
from everflow.topology.plan import Call, Chain, Compute, Stage, Ticket
from everflow.topology.sources import Source
from everflow.worker.failures import (
    FailedRows,
    Failures,
    RecordFailure,
    Sources,
    SparkSays,
    record_at,
)
from everflow.worker.order import Records

# --- calls of Python functions --------------------------------------------------------------------


serializers: Any = untyped_serializers
worker: Any = untyped_worker

_INFO: Any = None
with suppress(ModuleNotFoundError):  # Spark 4.2
    _INFO = import_module("pyspark.worker_message").UDFInfo

SLICE = 10_000
"""Records that a function over Series or arrays gets at once, at most: Spark's default."""


def results_of(call: Call, inputs: pa.RecordBatch, client: ColumnClient) -> list[pa.Array]:
    """A column for each chain. Raises what the functions and ``client`` raise, PySparkException for
    a result that does not fit."""
    functions = (function for chain in call.chains for function in chain.functions)
    # For the serializer from which PySpark reads functions: they are there already.
    stand_in = SimpleNamespace(_read_with_length=lambda _: next(functions))
    function, _, reader, writer = worker.read_udfs(
        stand_in,
        _described(call),
        call.eval_type,
        worker.RunnerConf(_settings(call.settings)),
        worker.EvalConf(_settings({"input_type": call.input_type})),
    )
    source, made = _stream(inputs), io.BytesIO()
    if call.pickled is not None:
        source = io.BytesIO(client.ask(call.pickled[0], inputs.serialize()))
    writer.dump_stream(function(0, reader.load_stream(source)), made)
    if call.pickled is not None:
        answer = client.ask(call.pickled[1], made.getbuffer())
        table = pa.Table.from_batches([pa.ipc.read_record_batch(pa.py_buffer(answer), call.made)])
    else:
        made.seek(0)
        serializers.read_int(made)  # "here begins an Arrow stream"
        table = pa.ipc.open_stream(made).read_all()
    if table.num_rows != inputs.num_rows:
        raise ValueError(f"{inputs.num_rows} rows became {table.num_rows}")
    return [
        pa.concat_arrays(column.chunks).cast(field.type)
        for column, field in zip(table.columns, call.made, strict=True)
    ]


def _described(call: Call) -> Any:
    """The JVM's description of the calls. Spark 4.2 reads it at its use, 4.3 has read it before."""
    if _INFO is not None:
        return [_info(chain) for chain in call.chains]
    message = io.BytesIO()
    serializers.write_int(len(call.chains), message)
    for chain in call.chains:
        _describe(chain, message)
    message.seek(0)
    return message


def _info(chain: Chain) -> Any:
    return _INFO(
        udfs=[None] * len(chain.functions),
        args=[place for name, place in chain.arguments if name is None],
        kwargs={name: place for name, place in chain.arguments if name is not None},
        result_id=0,
    )


def _describe(chain: Chain, message: io.BytesIO) -> None:
    serializers.write_int(len(chain.arguments), message)
    for name, place in chain.arguments:
        serializers.write_int(place, message)
        message.write(b"\0" if name is None else b"\1")
        if name is not None:
            serializers.write_with_length(name.encode(), message)
    serializers.write_int(len(chain.functions), message)
    serializers.write_long(0, message)  # a number for PySpark's profiler


def _settings(settings: Mapping[str, str]) -> io.BytesIO:
    message = io.BytesIO()
    serializers.write_int(len(settings), message)
    for name, value in settings.items():
        serializers.write_with_length(name.encode(), message)
        serializers.write_with_length(value.encode(), message)
    message.seek(0)
    return message


def _stream(inputs: pa.RecordBatch) -> io.BytesIO:
    stream = io.BytesIO()
    with pa.ipc.new_stream(stream, inputs.schema) as rows:
        for start in range(0, inputs.num_rows, SLICE):
            rows.write_batch(inputs.slice(start, SLICE))
    stream.seek(0)
    return stream


# --- Spark's code ---------------------------------------------------------------------------------


_NUMBERS = struct.Struct(">ii")
_NUMBER = struct.Struct(">i")
_FAILED = -1
SLICE_BYTES = 8_000_000


class ColumnsFailed(Exception):
    """Spark could not compute a row. ``text`` is the JVM's; ``row`` None: it is no row's fault."""

    def __init__(self, text: str, row: int | None) -> None:
        super().__init__(text.partition("\n")[0])
        self.text, self.row = text, row


class ColumnClient:
    """One connection, made when it is first needed; owned by one thread. ``path``: where; empty
    where only tickets are asked for. RetriableError where the JVM has hung up: whether it comes
    back is for the driver to know."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._numbers: dict[Ticket, int] = {}
        self._connection: socket.socket | None = None
        self._answers: BinaryIO | None = None

    def close(self) -> None:
        for opened in (self._answers, self._connection):
            if opened is not None:
                opened.close()

    def run(self, number: int | Ticket, rows: pa.RecordBatch, made: pa.Schema) -> pa.Table:
        """The result for ``rows`` in slices: the JVM holds each some times over. ColumnsFailed."""
        if isinstance(number, Ticket):
            number = self._redeemed(number)
        size = max(1, SLICE_BYTES * rows.num_rows // max(1, rows.nbytes))
        answers = []
        for start in range(0, rows.num_rows, size):
            try:
                answer = self.ask(number, rows.slice(start, size).serialize())
                answers.append(pa.ipc.read_record_batch(pa.py_buffer(answer), made))
            except ColumnsFailed as failure:
                row = None if failure.row is None else start + failure.row
                raise ColumnsFailed(failure.text, row) from None
        return pa.Table.from_batches(answers, made)

    def ask(self, number: int, message: pa.Buffer | memoryview) -> bytes:
        data = memoryview(message)
        try:
            require_size(data.nbytes, "what is sent to the JVM that computes Columns")
        except TooLargeError as error:
            raise ColumnsFailed(f"{error}; a record is too large for them", None) from error
        try:
            connection = self._connected()
            connection.sendall(_NUMBERS.pack(number, data.nbytes))
            connection.sendall(message)
            (size,) = _NUMBER.unpack(self._read(_NUMBER.size))
            if size != _FAILED:
                return self._read(size)
            row, size = _NUMBERS.unpack(self._read(_NUMBERS.size))
            text = self._read(size).decode()
        except TooLargeError as error:
            raise RetriableError(
                f"the JVM that computes Columns is not understood: {error}"
            ) from error
        except OSError as error:
            said = f"the JVM that computes Columns has hung up: {error}"
            raise RetriableError(said) from error
        raise ColumnsFailed(text, None if row == _FAILED else row)

    def _redeemed(self, ticket: Ticket) -> int:
        """The number that the driver gives for it; blocks while that is prepared."""
        if ticket in self._numbers:
            return self._numbers[ticket]
        try:
            with Client(ticket.door, "AF_UNIX") as door:
                door.send_bytes(b"%d" % ticket.number)
                text, number = json.loads(door.recv_bytes(MOST_MESSAGE_BYTES))
        except (OSError, EOFError, ValueError) as error:
            raise RetriableError(f"the driver has hung up: {error}") from error
        if number is None:
            raise ColumnsFailed(text, None)
        self._path = text
        return self._numbers.setdefault(ticket, number)

    def _connected(self) -> socket.socket:
        if self._connection is None:
            self._connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            self._connection.connect(self._path)
            self._answers = self._connection.makefile("rb")
        return self._connection

    def _read(self, size: int) -> bytes:
        assert self._answers is not None
        require_size(size, "an answer")
        found = self._answers.read(size)
        if len(found) < size:
            raise ConnectionResetError(f"{len(found)} of {size} bytes came")
        return found


# --- the three ways -------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Selection:
    """Columns of a node: each by its Arrow expression, or all by stages over columns that a user
    sees (``reads``). Without stages Arrow leaves none to Spark; without ``arrow`` one has none."""

    made: pa.Schema
    arrow: tuple[ArrowExpression, ...] = ()
    reads: pa.Schema
    stages: tuple[Stage, ...] = ()


@dataclass(frozen=True, kw_only=True)
class NodeColumns:
    """The Columns of one node, from slot ``input`` to slot ``output``, which see the records that
    reach the node and no others. Where a function fails, halves of the batch tell the records.

    ``made`` gives ``key``, ``value`` or both; or what is said of each record beside its value,
    which becomes ``struct<WHAT, value>``. ``skips_null``: records with a null value keep it.
    """

    name: str
    where: str | None
    input: int
    output: int
    predicate: Selection | None = None
    made: Selection | None = None
    skips_null: bool = False
    sources: tuple[Source, ...]

    def run(self, records: Records, client: ColumnClient) -> None:
        """Raises RecordFailure or SparkSays naming the record on which a function or a Column
        fails."""
        batch = records[self.input]
        if self.predicate is not None:
            (kept,) = self._computed(self.predicate, batch, client)
            if kept.null_count:
                kept = kept.fill_null(False)
            if kept.true_count < len(batch):
                batch = batch.take(np.flatnonzero(kept.to_numpy(zero_copy_only=False)))
        records[self.output] = batch if self.made is None else self._made(self.made, batch, client)

    def _made(
        self,
        selection: Selection,
        batch: EdgeBatch,
        client: ColumnClient,
    ) -> EdgeBatch:
        called, index = batch, None
        if self.skips_null and batch.value.null_count:
            index = np.flatnonzero(batch.value.is_valid().to_numpy(zero_copy_only=False))
            called = batch.take(index)
        columns = self._computed(selection, called, client)
        if index is not None:
            columns = [spread(column, index, len(batch)) for column in columns]
        made = dict(zip(selection.made.names, columns, strict=True))
        for what in made.keys() - {"key", "value"}:
            made["value"] = pa.StructArray.from_arrays([made[what], batch.value], [what, "value"])
        return batch.with_columns(made.get("key"), made.get("value"))

    def _computed(
        self, selection: Selection, batch: EdgeBatch, client: ColumnClient
    ) -> list[pa.Array]:
        count = len(batch)
        try:
            if selection.arrow:
                return [
                    one.run(seen(batch, one.reads, self.sources), count) for one in selection.arrow
                ]
        except LeftToSpark:
            if not selection.stages:
                raise
        kinds = selection.made.types
        if not count:
            return [pa.array([], kind) for kind in kinds]
        try:
            inputs = seen(batch, selection.reads, self.sources)
            columns = computed(selection.stages, inputs, count, client)
        except ColumnsFailed as failure:
            where = () if self.where is None else (self.where,)
            record = None
            if failure.row is not None:
                record = record_at(batch, failure.row, self.sources, self.name)
            raise SparkSays(failure.text, record, where) from failure
        except FailedRows as failure:
            error = failure.__cause__
            assert error is not None
            if not failure.rows:
                raise RecordFailure(None, self.where, error) from error
            Failures(self, self.sources, batch).raise_of(failure.rows)
        return [readable(one).cast(kind) for one, kind in zip(columns, kinds, strict=True)]


@dataclass(frozen=True)
class PreparedColumns:
    """A `ColumnsOp`, ready to run; picklable. ``outputs``: the slots that are read behind it."""

    nodes: tuple[NodeColumns, ...]
    outputs: tuple[int, ...]

    def __call__(self, records: Records, client: ColumnClient) -> None:
        """Adds the slots that it makes to ``records``. Raises as `NodeColumns.run`."""
        kept = {*records, *self.outputs}
        for node in self.nodes:
            node.run(records, client)
        for slot in records.keys() - kept:
            del records[slot]


def computed(
    stages: Sequence[Stage], columns: list[pa.Array], count: int, client: ColumnClient
) -> list[pa.Array]:
    """The stages' result of ``count`` rows. ColumnsFailed; FailedRows with the error chained."""
    for stage in stages:
        if isinstance(stage, Compute):
            rows = _batch(columns, count)
            table = client.run(stage.number, rows, stage.made).combine_chunks()
            columns = [pa.concat_arrays(column.chunks) for column in table.columns]
        elif isinstance(stage, Call):
            made = _called(stage, _batch(columns[stage.kept :], count), client)
            columns = [*columns[: stage.kept], *made]
        else:
            columns = [_picked(columns, path) for path in stage.paths]
    return columns


def _batch(columns: list[pa.Array], count: int) -> pa.RecordBatch:
    """Without columns a batch would have no rows either."""
    if not columns:
        return pa.RecordBatch.from_struct_array(pa.array([{}] * count, pa.struct([])))
    return pa.RecordBatch.from_arrays(columns, [f"_{i}" for i in range(len(columns))])


def _picked(columns: list[pa.Array], path: tuple[int, ...]) -> pa.Array:
    root = columns[path[0]]
    return pc.struct_field(root, list(path[1:])) if len(path) > 1 else root


def _called(call: Call, rows: pa.RecordBatch, client: ColumnClient) -> list[pa.Array]:
    def failure(start: int, end: int) -> BaseException | None:
        try:
            results_of(call, rows.slice(start, end - start), client)
        except (ColumnsFailed, RetriableError):
            raise
        except BaseException as error:
            require_users(error)
            return error
        return None

    try:
        return results_of(call, rows, client)
    except (ColumnsFailed, RetriableError):
        raise
    except BaseException as error:
        require_users(error)
        raise FailedRows(failing_rows(rows.num_rows, failure)) from error


def seen(batch: EdgeBatch, reads: pa.Schema, sources: Sources) -> list[pa.Array]:
    columns = []
    for name, kind in zip(reads.names, reads.types, strict=True):
        column = _SEEN[name](batch, sources)
        columns.append(column if column.type.equals(kind) else column.cast(kind))
    return columns


def _topics(batch: EdgeBatch, sources: Sources) -> pa.Array:
    names = [source.topic for source in sources]
    return pa.array([names[index] for index in batch.source.tolist()], pa.string())


def _partitions(batch: EdgeBatch, sources: Sources) -> pa.Array:
    firsts = np.array([source.first for source in sources], np.int32)
    lie = batch.partition + firsts[batch.source] if firsts.any() else batch.partition
    return pa.array(lie, pa.int32())


_SEEN: Mapping[str, Callable[[EdgeBatch, Sources], pa.Array]] = {
    "key": lambda batch, _: batch.key,
    "value": lambda batch, _: batch.value,
    "timestamp": lambda batch, _: pa.array(batch.timestamp, pa.int64()),
    "topic": _topics,
    "partition": _partitions,
    "offset": lambda batch, _: pa.array(batch.offset, pa.int64()),
    "headers": lambda batch, _: no_headers(len(batch)) if batch.headers is None else batch.headers,
    "left": lambda batch, _: pc.struct_field(batch.value, "left"),
    "right": lambda batch, _: pc.struct_field(batch.value, "right"),
}
"""What a user sees of records, by name."""
