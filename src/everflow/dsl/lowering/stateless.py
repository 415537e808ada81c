"""Operators on one stream that keep no state, splits, and what ends a stream: sinks and prints."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pyarrow as pa
from pyspark.sql import Column
from pyspark.sql import functions as F

from everflow.columns.key_partitions import BY_HASH
from everflow.dsl.expressions import (
    ONE_BY_ONE,
    CallOptions,
    Edge,
    Expression,
    bound_serdes,
    call_limits,
    check_name,
    check_parameters,
    default_serde,
    is_column,
    is_true,
    key_value_function,
    predicate,
    refuse_calls,
    refuse_pyspark,
    struct_of,
)
from everflow.dsl.graph_builder import Stream
from everflow.errors import TopologyError
from everflow.serdes import Serde
from everflow.serdes.arrow_types import type_text
from everflow.serdes.debezium_serde import reads_only
from everflow.spark.expressions import analyse
from everflow.topology.graph import (
    PREPARE,
    CallLimits,
    ColumnExpr,
    FunctionExpr,
    MergeNode,
    Partitioner,
    PrintNode,
    SinkNode,
    TakeNode,
    UnnestNode,
    beside,
    same_type,
)

MOST_ROWS = 1_000
"""Of a micro-batch that is printed."""


def filtered(
    stream: Stream,
    operator: str,
    condition: Expression,
    name: str | None,
    *,
    negate: bool,
    calls: CallOptions = ONE_BY_ONE,
) -> Stream:
    limits = call_limits(condition, operator, calls)
    if not is_column(condition, operator):
        edge = stream.edge
        return _function(stream, "FILTER", operator, condition, edge, name, calls=limits)
    keep = predicate(condition, stream.edge)  # so that a message names the user's own
    if negate:
        keep = predicate(~is_true(condition), stream.edge)
    node_name = stream.graph.node_name(name, "KSTREAM-FILTER-")
    return stream.projected(node_name, "FILTER", predicate=keep)


def mapped(
    stream: Stream,
    mapper: Expression | None,
    pair: tuple[Column | None, Column | None],
    returns: object,
    name: str | None,
) -> Stream:
    label, (key, value) = "MAP", pair
    if mapper is not None and not is_column(mapper, "map"):
        edge = _pair_edge(stream, "map", mapper, returns)
        return _function(stream, label, "map", mapper, edge, name, changes_key=True)
    if mapper is not None:
        made = analyse(mapper, stream.edge.type)
        _check_pair("map", made.type)
        key, value = mapper.getField("key"), mapper.getField("value")
    if key is None and value is None:
        raise TopologyError("map needs key=, value= or a function of (key, value)")
    return _project(stream, label, name, key=key, value=value, changes_key=True)


def values_mapped(
    stream: Stream,
    mapper: Expression | None,
    fields: dict[str, Column],
    returns: object,
    name: str | None,
    calls: CallOptions = ONE_BY_ONE,
) -> Stream:
    limits = call_limits(mapper, "map_values", calls)
    if fields:
        if mapper is not None:
            raise TopologyError(
                "map_values takes one expression or field=Column arguments, not both"
            )
        mapper = struct_of(fields, "map_values")
    if mapper is None:
        raise TopologyError(
            "map_values needs a Column, field=Column arguments or a Python function"
        )
    label = "MAPVALUES"
    if is_column(mapper, "map_values"):
        return _project(stream, label, name, value=mapper)
    edge = stream.edge.returning("map_values", mapper, value=returns)
    return _function(stream, label, "map_values", mapper, edge, name, calls=limits)


def keyed(
    stream: Stream, operator: str, key: Expression, returns: object, name: str | None
) -> Stream:
    label = "KEY-SELECT"
    if is_column(key, operator):
        return _project(stream, label, name, key=key, changes_key=True)
    edge = stream.edge.returning(operator, key, key=returns)
    return _function(stream, label, "select_key", key, edge, name, changes_key=True)


def called_for_effect(
    stream: Stream,
    label: str,
    operator: str,
    action: object,
    name: str | None,
    calls: CallOptions,
) -> Stream:
    refuse_pyspark(action, operator)
    if isinstance(action, Column) or not callable(action):
        raise TopologyError(
            f"{operator} calls a Python function for its effect, found {action!r}; use "
            f"map_values for a Column"
        )
    limits = call_limits(action, operator, calls)
    return _function(stream, label, operator, action, stream.edge, name, calls=limits)


def flat_mapped(
    stream: Stream,
    mapper: Expression,
    returns: object,
    name: str | None,
) -> Stream:
    label = "FLATMAP"
    if not is_column(mapper, "flat_map"):
        edge = _pair_edge(stream, "flat_map", mapper, returns)
        return _function(stream, label, "flat_map", mapper, edge, name, changes_key=True)
    elements = _elements(stream, "flat_map", mapper)
    key, value = _check_pair("flat_map", elements.type.value_type)
    edge = stream.edge.with_types(key, value)
    return _unnest(stream, label, elements, edge, name, keyed=True)


def values_flat_mapped(
    stream: Stream,
    mapper: Expression,
    returns: object,
    name: str | None,
    calls: CallOptions,
) -> Stream:
    label = "FLATMAPVALUES"
    limits = call_limits(mapper, "flat_map_values", calls)
    if not is_column(mapper, "flat_map_values"):
        edge = stream.edge.returning("flat_map_values", mapper, value=returns)
        return _function(stream, label, "flat_map_values", mapper, edge, name, calls=limits)
    elements = _elements(stream, "flat_map_values", mapper)
    edge = stream.edge.with_types(value=elements.type.value_type)
    return _unnest(stream, label, elements, edge, name, keyed=False)


def merged(streams: tuple[Stream, ...], name: str | None) -> Stream:
    first, *others = streams
    for other in others:
        _check_mergeable(first, other)
    key_serde, value_serde = first.edge.key_serde, first.edge.value_serde
    same = all((s.edge.key_serde, s.edge.value_serde) == (key_serde, value_serde) for s in others)
    edge, type_ = first.edge, first.edge.type
    if not same:
        edge = Edge(type_, default_serde(type_.key), default_serde(type_.value))
    node_name = first.graph.node_name(name, "KSTREAM-MERGE-")
    nodes = tuple(dict.fromkeys(s.node for s in streams))
    node = first.graph.add(MergeNode(node_name, nodes, edge.type))
    return Stream(first.graph, node, edge, any(s.key_changed for s in streams))


def changes_of(table: Stream, name: str | None) -> Stream:
    node_name = table.graph.node_name(name, "KTABLE-TOSTREAM-")
    return table.projected(node_name, "TOSTREAM")


def written(
    stream: Stream,
    topic: str | Expression,
    serdes: tuple[Serde | None, Serde | None],
    partitioner: Expression | str | None,
    name: str | None,
) -> None:
    target = target_of(topic, stream.edge)
    chosen = partitioner_of(partitioner, stream.edge, "to", target)
    used = bound_serdes(stream.with_serdes("to", *serdes).edge.serdes("to"), target)
    for part, serde in zip(("key", "value"), used, strict=True):
        if why := reads_only(serde):
            raise TopologyError(f"to: {part}: {why}")
    node_name = stream.graph.node_name(name, "KSTREAM-SINK-")
    node = SinkNode(node_name, (stream.node,), stream.edge.type, target, *used)
    stream.graph.add(replace(node, partitioner=chosen))


def printed(stream: Stream, title: str | None, rows: int, name: str | None) -> None:
    if not isinstance(rows, int) or isinstance(rows, bool) or not 1 <= rows <= MOST_ROWS:
        raise TopologyError(
            f"print_table: rows is a number from 1 to {MOST_ROWS:,}, found {rows!r}; to take "
            f"all records write them: .to('a-topic')"
        )
    if title is not None and not isinstance(title, str):
        raise TopologyError(f"print_table: title is a text, found {title!r}")
    node_name = stream.graph.node_name(name, "KSTREAM-PRINTER-")
    stream.graph.add(
        PrintNode(
            name=node_name,
            inputs=(stream.node,),
            out=stream.edge.type,
            title=stream.node if title is None else title,
            rows=rows,
        )
    )


class Split:
    """A stream while it is split, as `BranchedKStream` says; NULL is false."""

    def __init__(self, stream: Stream, name: str | None) -> None:
        self.name = stream.graph.node_name(name, "KSTREAM-BRANCH-")
        self._stream = stream
        self._rest = stream.projected(self.name, "BRANCH")
        """The records that no branch before ``_columns`` took."""
        self._columns: list[Column] = []
        """Predicates, of branches of `_rest`, that may be computed again for each later one."""

    def branch(self, child: str, condition: Expression) -> Stream:
        stream = self._stream
        if not is_column(condition, "branch"):
            return self._ask_once(child, key_value_function(condition, "branch"))
        if predicate(condition, stream.edge).calls:
            return self._ask_once(child, condition)
        taken = self._where(child, self._condition(condition))
        self._columns.append(condition)
        return taken

    def rest(self, child: str) -> Stream:
        return self._where(child, self._condition())

    def _where(
        self,
        name: str,
        condition: Column | None,
        label: str = "BRANCHCHILD",
    ) -> Stream:
        wanted = None if condition is None else predicate(condition, self._stream.edge)
        return self._rest.projected(name, label, predicate=wanted)

    def _ask_once(self, child: str, asked: Column | Callable[..., Any]) -> Stream:
        """The branch of a predicate that is asked once: the answer is kept beside the value."""
        stream, edge = self._rest, self._stream.edge
        if self._columns:
            stream = self._where(f"{child}-columns", self._condition(), PREPARE)
        answered = with_answer(stream, f"{child}-answer", "branch", asked, pa.bool_()).node
        taken = TakeNode(child, (answered,), edge.type, "BRANCHCHILD", taken=True)
        rest = TakeNode(f"{child}-rest", (answered,), edge.type, PREPARE, taken=False)
        behind = stream.behind(stream.graph.add(taken), edge)
        self._rest, self._columns = stream.behind(stream.graph.add(rest), edge), []
        return behind

    def _condition(self, own: Column | None = None) -> Column | None:
        condition = None if own is None else is_true(own)
        for earlier in self._columns:
            refused = ~is_true(earlier)
            condition = refused if condition is None else condition & refused
        return condition


def with_answer(
    stream: Stream,
    name: str,
    op: str,
    asked: Column | Callable[..., Any],
    type_: pa.DataType,
) -> Stream:
    """The records with a predicate's or a function's answer, of a ``type_``, `beside` the value."""
    edge = stream.edge.type
    out = Edge.inside(edge.key, beside(type_, edge.value))
    if not isinstance(asked, Column):
        return stream.called(name, PREPARE, op, asked, out)
    both = F.struct(asked.alias("answer"), F.col("value").alias("value"))
    value = replace(analyse(both, edge), type=out.type.value)
    return stream.projected(name, PREPARE, out, value=value)


def _project(
    stream: Stream,
    label: str,
    name: str | None,
    *,
    key: Column | None = None,
    value: Column | None = None,
    changes_key: bool = False,
) -> Stream:
    new_key = None if key is None else analyse(key, stream.edge.type)
    new_value = None if value is None else analyse(value, stream.edge.type)
    edge = stream.edge.with_types(new_key and new_key.type, new_value and new_value.type)
    node_name = stream.graph.node_name(name, f"KSTREAM-{label}-")
    return stream.projected(
        node_name, label, edge, key=new_key, value=new_value, changes_key=changes_key
    )


def _function(
    stream: Stream,
    label: str,
    op: str,
    fn: Callable[..., Any],
    edge: Edge,
    name: str | None,
    *,
    changes_key: bool = False,
    calls: CallLimits | None = None,
) -> Stream:
    called = key_value_function(fn, op, awaited=calls is not None)
    node_name = stream.graph.node_name(name, f"KSTREAM-{label}-")
    return stream.called(node_name, label, op, called, edge, changes_key=changes_key, calls=calls)


def _elements(stream: Stream, operator: str, column: Column) -> ColumnExpr:
    elements = analyse(column, stream.edge.type)
    if not pa.types.is_list(elements.type):
        raise TopologyError(
            f"{operator} takes an array Column, found {type_text(elements.type)}; use F.array(...) "
            f"or {'map' if operator == 'flat_map' else 'map_values'}"
        )
    return elements


def _unnest(
    stream: Stream, label: str, elements: ColumnExpr, edge: Edge, name: str | None, *, keyed: bool
) -> Stream:
    node_name = stream.graph.node_name(name, f"KSTREAM-{label}-")
    listed = Edge.inside(stream.edge.type.key, elements.type)
    lists = stream.projected(f"{node_name}-elements", PREPARE, listed, value=elements)
    node = UnnestNode(node_name, (lists.node,), edge.type, keyed, changes_key=keyed)
    return stream.behind(stream.graph.add(node), edge, changes_key=keyed)


def _pair_edge(
    stream: Stream,
    operator: str,
    fn: Callable[..., Any],
    returns: object,
) -> Edge:
    if not isinstance(returns, tuple) or len(returns) != 2:
        raise TopologyError(
            f"{operator}: the function returns a key and a value; name both types, e.g. "
            f"returns=('string', 'double')"
        )
    return stream.edge.returning(operator, fn, key=returns[0], value=returns[1])


def _check_mergeable(first: Stream, other: Stream) -> None:
    if other.graph is not first.graph:
        raise TopologyError("merge takes streams of one StreamsBuilder")
    for part in ("key", "value"):
        mine, its = getattr(first.edge.type, part), getattr(other.edge.type, part)
        if not same_type(mine, its):
            raise TopologyError(
                f"merge takes streams of equal types; the {part}s are {type_text(mine)} and "
                f"{type_text(its)}; bring one to the other's type with map or map_values"
            )


def _check_pair(operator: str, type_: pa.DataType) -> tuple[pa.DataType, pa.DataType]:
    names = [field.name.lower() for field in type_] if pa.types.is_struct(type_) else []
    if names != ["key", "value"]:  # in any case, as Spark takes names
        raise TopologyError(
            f"{operator} takes struct<key, value>, found {type_text(type_)}; write "
            "F.struct((...).alias('key'), (...).alias('value'))"
        )
    return type_.field(0).type, type_.field(1).type


# --- where records are written --------------------------------------------------------------------


def key_partitioner_of(partitioner: object, operator: str) -> str | FunctionExpr | None:
    part = f"{operator}: partitioner"
    if partitioner is None:
        return None
    if not callable(partitioner):
        return _by_hash(partitioner, part, "or")
    check_parameters(partitioner, ("topic", "key", "value", "partitions"), part)
    return FunctionExpr(partitioner, pa.int64())


def target_of(topic: str | Expression, edge: Edge) -> str | ColumnExpr | FunctionExpr:
    """``topic`` of ``to``, checked."""
    if isinstance(topic, str):
        check_name("topic", topic)
        return topic
    if is_column(topic, "to"):
        target = analyse(topic, edge.type, expected=pa.string())
        refuse_calls(target, "to: the topic")
        return target
    return FunctionExpr(key_value_function(topic, "to"), pa.string())


def partitioner_of(
    partitioner: object, edge: Edge, operator: str, topic: object = ""
) -> Partitioner | None:
    if partitioner is None:
        return None
    part = f"{operator}: partitioner"
    if isinstance(partitioner, str):
        return _by_hash(partitioner, part, f"a Column, F.col({partitioner!r}), or")
    if not is_column(partitioner, part):
        assert callable(partitioner)
        check_parameters(partitioner, ("topic", "key", "value", "partitions"), part)
        return FunctionExpr(partitioner, pa.list_(pa.int64()))
    if isinstance(topic, ColumnExpr):
        raise TopologyError(
            f"{part} and topic are both Columns; give one of them as a function, as in "
            f"partitioner=lambda topic, key, value, partitions: ..."
        )
    found = analyse(partitioner, edge.type)
    if found.calls:
        raise TopologyError(
            f"{part} cannot be a Column that calls Python functions; pass a function of (topic, "
            f"key, value, partitions)"
        )
    if pa.types.is_integer(found.type):
        is_long = pa.types.is_int64(found.type)
        return found if is_long else analyse(partitioner.cast("bigint"), edge.type)
    if pa.types.is_list(found.type) and pa.types.is_integer(found.type.value_type):
        return analyse(partitioner.cast("array<bigint>"), edge.type)
    raise TopologyError(
        f"{part}: {found.column} is {type_text(found.type)}; it is the number of a partition, e.g. "
        f"F.pmod(F.col('value.customer'), F.lit(4)).cast('int'), or an array of numbers"
    )


def _by_hash(partitioner: object, part: str, others: str) -> str:
    if isinstance(partitioner, str) and partitioner in BY_HASH:
        return partitioner
    raise TopologyError(
        f"{part} is one of {', '.join(BY_HASH)}, {others} a function of (topic, key, value, number "
        f"of partitions) that gives a partition, found {partitioner!r}; 'crc32' is "
        f"confluent-kafka's (librdkafka's consistent_random), 'murmur2' Java's"
    )
