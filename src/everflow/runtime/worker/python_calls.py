"""Calls the Python functions of Columns by PySpark's own worker code.

So types, nulls and what becomes of a result are what they are in a Spark job.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from contextlib import suppress
from importlib import import_module
from typing import Any

import pyarrow as pa
from pyspark import serializers as untyped_serializers
from pyspark import worker as untyped_worker

from everflow.runtime.step.task_step import ColumnComputer
from everflow.topology.plan import Call, Chain

serializers: Any = untyped_serializers
worker: Any = untyped_worker

_INFO: Any = None
with suppress(ModuleNotFoundError):  # Spark 4.2
    _INFO = import_module("pyspark.worker_message").UDFInfo

SLICE = 10_000
"""Records that a function over Series or arrays gets at once, at most: Spark's default."""


def results_of(call: Call, inputs: pa.RecordBatch, columns: ColumnComputer) -> list[pa.Array]:
    """A column for each chain of the call. Raises what the functions raise, PySparkException for a
    result that does not fit, and what ``columns`` raises."""
    function, _, reader, writer = worker.read_udfs(
        _Functions(call),
        _described(call),
        call.eval_type,
        worker.RunnerConf(_settings(call.settings)),
        worker.EvalConf(_settings({"input_type": call.given})),
    )
    given, made = _stream(inputs), io.BytesIO()
    if call.pickled is not None:
        given = io.BytesIO(columns.ask(call.pickled[0], inputs.serialize()))
    writer.dump_stream(function(0, reader.load_stream(given)), made)
    if call.pickled is not None:
        answer = columns.ask(call.pickled[1], made.getbuffer())
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


class _Functions:
    """Stands for the serializer from which PySpark's worker reads pickled functions: they are there
    already."""

    def __init__(self, call: Call) -> None:
        self._functions: Iterator[Any] = (
            function for chain in call.chains for function in chain.functions
        )

    def _read_with_length(self, _: object) -> Any:
        return next(self._functions)


def _described(call: Call) -> Any:
    """What the JVM tells a worker of the calls, but the functions themselves. Spark 4.2 reads it
    where it uses it; 4.3 has read it before."""
    if _INFO is not None:
        return [_info(chain) for chain in call.chains]
    told = io.BytesIO()
    serializers.write_int(len(call.chains), told)
    for chain in call.chains:
        _describe(chain, told)
    told.seek(0)
    return told


def _info(chain: Chain) -> Any:
    return _INFO(
        udfs=[None] * len(chain.functions),
        args=[place for name, place in chain.arguments if name is None],
        kwargs={name: place for name, place in chain.arguments if name is not None},
        result_id=0,
    )


def _describe(chain: Chain, told: io.BytesIO) -> None:
    serializers.write_int(len(chain.arguments), told)
    for name, place in chain.arguments:
        serializers.write_int(place, told)
        told.write(b"\0" if name is None else b"\1")
        if name is not None:
            serializers.write_with_length(name.encode(), told)
    serializers.write_int(len(chain.functions), told)
    serializers.write_long(0, told)  # a number for PySpark's profiler


def _settings(settings: Mapping[str, str]) -> io.BytesIO:
    told = io.BytesIO()
    serializers.write_int(len(settings), told)
    for name, value in settings.items():
        serializers.write_with_length(name.encode(), told)
        serializers.write_with_length(value.encode(), told)
    told.seek(0)
    return told


def _stream(inputs: pa.RecordBatch) -> io.BytesIO:
    stream = io.BytesIO()
    with pa.ipc.new_stream(stream, inputs.schema) as rows:
        for start in range(0, inputs.num_rows, SLICE):
            rows.write_batch(inputs.slice(start, SLICE))
    stream.seek(0)
    return stream
