"""Streams that end in sinks outside Kafka (note 072)."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Collection, Iterable, Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import pyarrow as pa
from pyspark.sql import Column
from pyspark.sql.datasource import DataSource

from everflow.dsl.expressions import (
    check_name,
    function_name,
    refuse_awaited,
    refuse_pyspark,
    required_parameters,
)
from everflow.dsl.graph_builder import Stream
from everflow.dsl.lowering.tables import emit_each_update
from everflow.errors import SetupError, TopologyError
from everflow.serdes.arrow_types import type_text
from everflow.sinks.batch import Sink
from everflow.sinks.data_source import DataSourceSink
from everflow.sinks.function import BatchFunction
from everflow.sinks.history import ADDED
from everflow.topology.graph import EdgeType, WriteNode, same_type
from everflow.user_program import did_you_mean
from everflow.windows import Duration, checked_ms

FORMATS: Mapping[str, tuple[str, str]] = {
    "postgresql": ("everflow.sinks.postgresql", "PostgresSink"),
    "delta": ("everflow.sinks.delta", "DeltaSink"),
    "iceberg": ("everflow.sinks.iceberg", "IcebergSink"),
    "parquet": ("everflow.sinks.files", "ParquetSink"),
    "http": ("everflow.sinks.http_service", "HttpSink"),
}
"""Module and class of each."""
UPSERT, VERSIONS = "upsert", "scd2"
"""Modes of which a row is that of its key; the second keeps each version of it."""


def written(
    stream: Stream,
    kind: str | type,
    name: str,
    key: str | Iterable[str] | None,
    every: Duration | None,
    options: Mapping[str, Any],
) -> None:
    check_name("sink", name)
    node_name = stream.graph.node_name(name, "KSTREAM-SINK-")
    columns = _key_columns(stream.edge.type, key)
    sink: Sink
    if isinstance(kind, type) and issubclass(kind, DataSource):
        texts = {option: option_text(value) for option, value in options.items()}
        sink = DataSourceSink(source=kind, options=texts)
    else:
        sink = _built_in(kind, options)
    _check_mode(sink, columns)
    mode = getattr(sink, "mode", "")
    _check_columns(stream.edge.type, columns, mode)
    if mode == VERSIONS:
        emit_each_update(stream.graph, stream.node)
    _add(stream, node_name, sink, columns, 0 if every is None else checked_ms(every, "every", 1))


def called_for_batch(stream: Stream, action: Callable[..., Any], name: str | None) -> None:
    refuse_pyspark(action, "for_each_batch")
    if isinstance(action, Column) or not callable(action):
        raise TopologyError(f"for_each_batch calls a Python function, found {action!r}")
    refuse_awaited(action, "for_each_batch")
    takes = required_parameters(action)
    if takes not in (1, 2, None):
        raise TopologyError(
            f"for_each_batch calls its function with (rows) or (rows, batch); "
            f"{function_name(action)} takes {takes} arguments"
        )
    frame = _annotated(action)
    if frame.startswith("pyspark."):
        raise TopologyError(
            f"for_each_batch: {function_name(action)} takes a DataFrame of PySpark, which a worker "
            f"has no session for: annotate it pyarrow.Table or pandas.DataFrame, or build what "
            f"Spark is to do with Columns in front"
        )
    node_name = stream.graph.node_name(name, "KSTREAM-FOREACHBATCH-")
    of_pandas = frame.startswith("pandas.") or frame in ("pd.DataFrame", "DataFrame")
    _add(stream, node_name, BatchFunction(action, takes or 1, of_pandas), None)


def _add(
    stream: Stream, name: str, sink: Sink, key: tuple[str, ...] | None, every_ms: int = 0
) -> None:
    stream.graph.add(
        WriteNode(
            name=name,
            inputs=(stream.node,),
            out=stream.edge.type,
            sink=sink,
            key=key,
            one_input=isinstance(sink, DataSourceSink),
            every_ms=every_ms,
        )
    )


def _annotated(action: Callable[..., Any]) -> str:
    """Module and name of the first parameter's annotation, or its text; empty without one."""
    try:
        first = next(iter(inspect.signature(action).parameters.values()), None)
    except (TypeError, ValueError):
        return ""
    if first is None or first.annotation is first.empty:
        return ""
    found = first.annotation
    if isinstance(found, str):
        return found
    return f"{getattr(found, '__module__', '')}.{getattr(found, '__qualname__', '')}"


def _built_in(kind: object, options: Mapping[str, Any]) -> Sink:
    made = format_class("write_stream", kind, FORMATS)
    check_options("write_stream", kind, made, options)
    sink: Sink = made(**options)
    return sink


def format_class(operator: str, kind: object, formats: Mapping[str, tuple[str, str]]) -> Any:
    """The class of a built-in format. TopologyError for another word."""
    if not isinstance(kind, str) or kind not in formats:
        raise TopologyError(
            f"{operator}: format is one of {', '.join(formats)}, or a DataSource class of PySpark "
            f"(the class, not its name), found {kind!r}{did_you_mean(kind, formats)}"
        )
    module, name = formats[kind]
    return getattr(import_module(module), name)


def check_options(
    operator: str, kind: object, made: Any, options: Mapping[str, Any], own: Collection[str] = ()
) -> None:
    """SetupError without the package of ``made``, a dataclass; TopologyError for options that are
    not its fields, or are one of its ``own``, and for those that are missing."""
    if find_spec(getattr(made, "PACKAGE", "json")) is None:
        raise SetupError(
            f"{operator}({kind!r}) needs {made.PACKAGE}: pip install 'everflow[{made.EXTRA}]'"
        )
    fields = dataclasses.fields(made)
    known = {one.name: one for one in fields if one.init and one.name not in own}
    for option in options:
        if option not in known:
            raise TopologyError(
                f"{operator}: {kind} has no option {option!r}; it has {', '.join(known)}"
                f"{did_you_mean(option, known)}"
            )
    missing = [
        one.name
        for one in known.values()
        if one.name not in options
        and one.default is dataclasses.MISSING
        and one.default_factory is dataclasses.MISSING
    ]
    if missing:
        raise TopologyError(f"{operator}: {kind} needs {', '.join(missing)}")


def _key_columns(edge: EdgeType, key: str | Iterable[str] | None) -> tuple[str, ...]:
    if key is None:
        return ()
    names = (key,) if isinstance(key, str) else tuple(key)
    count = edge.key.num_fields if pa.types.is_struct(edge.key) else 1
    if len(names) != count or not all(isinstance(one, str) and one for one in names):
        raise TopologyError(
            f"write_stream: the key is {type_text(edge.key)}: key= names {count} column(s), found "
            f"{key!r}"
        )
    return names


def _check_mode(sink: Any, key: tuple[str, ...]) -> None:
    mode, modes = getattr(sink, "mode", None), getattr(sink, "MODES", ())
    if mode is not None and mode not in modes:
        raise TopologyError(f"write_stream: mode is one of {', '.join(modes)}, found {mode!r}")
    if mode in (UPSERT, VERSIONS) and not key:
        raise TopologyError(f"write_stream: mode={mode!r} needs key=, the columns of the key")


def _check_columns(edge: EdgeType, key: tuple[str, ...], mode: str) -> None:
    """TopologyError for two columns of one name, unless one is the key's and the other a field of
    the value of the same type: that is taken for a copy of it, as in a row of change data, and the
    column is the key's (`WriteNode`)."""
    struct = pa.types.is_struct(edge.value) and edge.value.num_fields
    of_key = [one.type for one in edge.key] if pa.types.is_struct(edge.key) else [edge.key]
    of_value = {one.name: one.type for one in edge.value} if struct else {}
    for name, type_ in zip(key, of_key, strict=False):
        if name in of_value and not same_type(of_value[name], type_):
            raise TopologyError(
                f"write_stream: column {name} would be the key's ({type_text(type_)}) and the "
                f"value's ({type_text(of_value[name])}), which may differ. If they are the same "
                f"field, declare one type for both, or leave the value's out with map_values; else "
                f"name the key's otherwise with key="
            )
    names = [*key, *((name for name in of_value if name not in key) if struct else ("value",))]
    names += ADDED if mode == VERSIONS else ()
    if twice := {name for name in names if names.count(name) > 1}:
        raise TopologyError(
            f"write_stream: two columns are called {', '.join(sorted(twice))}; name the key's "
            f"otherwise with key=, or leave the field out with map_values"
        )


def option_text(value: object) -> str:
    """As Spark writes the values of options."""
    return str(value).lower() if isinstance(value, bool) else str(value)
