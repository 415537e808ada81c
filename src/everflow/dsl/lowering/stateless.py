"""Operators on one stream that keep no state, splits, and what ends a stream: sinks and prints."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pyarrow as pa
from pyspark.sql import Column
from pyspark.sql import functions as F

from everflow.dsl.expressions import (
    Edge,
    Expression,
    is_column,
    is_true,
    key_value_function,
    predicate,
    refuse_pyspark,
    result_serde,
    result_type,
    struct_of,
)
from everflow.dsl.lowering.stream import Stream
from everflow.dsl.topics import partitioner_of, target_of
from everflow.errors import TopologyError
from everflow.serdes import Serde
from everflow.serdes.arrow_types import type_text
from everflow.spark.expressions import analyse
from everflow.topology.graph import (
    PREPARE,
    ColumnExpr,
    EdgeType,
    FunctionNode,
    MergeNode,
    PrintNode,
    ProjectNode,
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
    where: str | None,
    *,
    negate: bool,
) -> Stream:
    """The records for which the condition is true."""
    if not is_column(condition, operator, where):
        return _function(
            stream, ("KSTREAM-FILTER-", "FILTER"), operator, condition, stream.edge, name, where
        )
    keep = predicate(condition, stream.edge, where)  # so that a message names the user's own
    if negate:
        keep = predicate(~is_true(condition), stream.edge, where)
    node_name = stream.graph.node_name(name, "KSTREAM-FILTER-", where)
    node = ProjectNode(
        name=node_name,
        inputs=(stream.node,),
        out=stream.edge.type,
        where=where,
        label="FILTER",
        predicate=keep,
    )
    return stream.behind(stream.graph.add(node), stream.edge)


def mapped(
    stream: Stream,
    mapper: Expression | None,
    pair: tuple[Column | None, Column | None],
    returns: object,
    name: str | None,
    where: str | None,
) -> Stream:
    """New keys and values: of a ``mapper``, or of a ``pair`` of Columns."""
    label, (key, value) = ("KSTREAM-MAP-", "MAP"), pair
    if mapper is not None and not is_column(mapper, "map", where):
        edge = _pair_edge(stream, "map", mapper, returns, where)
        return _function(stream, label, "map", mapper, edge, name, where, changes_key=True)
    if mapper is not None:
        given = analyse(mapper, stream.edge.type, where)
        _check_pair("map", given.type, where)
        key, value = mapper.getField("key"), mapper.getField("value")
    if key is None and value is None:
        raise TopologyError("map needs key=, value= or a function of (key, value)", where=where)
    return _project(stream, label, name, where, key=key, value=value, changes_key=True)


def values_mapped(
    stream: Stream,
    mapper: Expression | None,
    fields: dict[str, Column],
    returns: object,
    name: str | None,
    where: str | None,
) -> Stream:
    """New values under the same keys."""
    if fields:
        if mapper is not None:
            raise TopologyError(
                "map_values takes one expression or field=Column arguments, not both",
                where=where,
            )
        mapper = struct_of(fields, "map_values", where)
    if mapper is None:
        raise TopologyError(
            "map_values needs a Column, field=Column arguments or a Python function",
            where=where,
        )
    label = ("KSTREAM-MAPVALUES-", "MAPVALUES")
    if is_column(mapper, "map_values", where):
        return _project(stream, label, name, where, value=mapper)
    edge = _value_edge(stream, "map_values", mapper, returns, where)
    return _function(stream, label, "map_values", mapper, edge, name, where)


def keyed(
    stream: Stream,
    operator: str,
    key: Expression,
    returns: object,
    name: str | None,
    where: str | None,
) -> Stream:
    """The same values under new keys."""
    label = ("KSTREAM-KEY-SELECT-", "KEY-SELECT")
    if is_column(key, operator, where):
        return _project(stream, label, name, where, key=key, changes_key=True)
    edge = stream.edge.with_types(key=result_type(returns, key, operator, where)).with_serdes(
        key=result_serde(returns)
    )
    return _function(stream, label, "select_key", key, edge, name, where, changes_key=True)


def called_for_effect(
    stream: Stream,
    label: tuple[str, str],
    operator: str,
    action: object,
    name: str | None,
    where: str | None,
) -> Stream:
    """The records, for each of which a function is called for its effect; ``label``: the prefix of
    the node's name, and its label."""
    refuse_pyspark(action, operator, where)
    if isinstance(action, Column) or not callable(action):
        raise TopologyError(
            (
                f"{operator} calls a Python function for its effect, found {action!r}; use "
                f"map_values for a Column"
            ),
            where=where,
        )
    return _function(stream, label, operator, action, stream.edge, name, where)


def flat_mapped(
    stream: Stream, mapper: Expression, returns: object, name: str | None, where: str | None
) -> Stream:
    """Any number of records for each."""
    label = ("KSTREAM-FLATMAP-", "FLATMAP")
    if not is_column(mapper, "flat_map", where):
        edge = _pair_edge(stream, "flat_map", mapper, returns, where)
        return _function(stream, label, "flat_map", mapper, edge, name, where, changes_key=True)
    elements = _elements(stream, "flat_map", mapper, where)
    key, value = _check_pair("flat_map", elements.type.value_type, where)
    edge = stream.edge.with_types(key, value)
    return _unnest(stream, label[0], elements, edge, name, where, keyed=True)


def values_flat_mapped(
    stream: Stream, mapper: Expression, returns: object, name: str | None, where: str | None
) -> Stream:
    """Any number of values under the same key."""
    label = ("KSTREAM-FLATMAPVALUES-", "FLATMAPVALUES")
    if not is_column(mapper, "flat_map_values", where):
        edge = _value_edge(stream, "flat_map_values", mapper, returns, where)
        return _function(stream, label, "flat_map_values", mapper, edge, name, where)
    elements = _elements(stream, "flat_map_values", mapper, where)
    edge = stream.edge.with_types(value=elements.type.value_type)
    return _unnest(stream, label[0], elements, edge, name, where, keyed=False)


def merged(streams: tuple[Stream, ...], name: str | None, where: str | None) -> Stream:
    """The records of all streams. TopologyError for those of other types or builders."""
    first, *others = streams
    for other in others:
        _check_mergeable(first, other, where)
    key_serde, value_serde = first.edge.key_serde, first.edge.value_serde
    same = all((s.edge.key_serde, s.edge.value_serde) == (key_serde, value_serde) for s in others)
    edge = first.edge if same else first.edge.with_default_serdes()
    node_name = first.graph.node_name(name, "KSTREAM-MERGE-", where)
    nodes = tuple(dict.fromkeys(s.node for s in streams))
    node = first.graph.add(MergeNode(node_name, nodes, edge.type, where))
    return Stream(first.graph, node, edge, any(s.key_changed for s in streams))


def changes_of(table: Stream, name: str | None, where: str | None) -> Stream:
    """The updates of a table as a stream."""
    node_name = table.graph.node_name(name, "KTABLE-TOSTREAM-", where)
    node = ProjectNode(
        name=node_name, inputs=(table.node,), out=table.edge.type, where=where, label="TOSTREAM"
    )
    return Stream(table.graph, table.graph.add(node), table.edge)


def written(
    stream: Stream,
    topic: str | Expression,
    serdes: tuple[Serde | None, Serde | None],
    partitioner: Expression | str | None,
    name: str | None,
    where: str | None,
) -> None:
    """The sink of a stream."""
    target = target_of(topic, stream.edge, where)
    chosen = partitioner_of(partitioner, stream.edge, "to", where, target)
    used = stream.with_serdes("to", *serdes, where).edge.serdes("to", where)
    node_name = stream.graph.node_name(name, "KSTREAM-SINK-", where)
    node = SinkNode(node_name, (stream.node,), stream.edge.type, where, target, *used)
    stream.graph.add(replace(node, partitioner=chosen))


def printed(
    stream: Stream, title: str | None, rows: int, name: str | None, where: str | None
) -> None:
    """What ends a stream in front of people."""
    if not isinstance(rows, int) or isinstance(rows, bool) or not 1 <= rows <= MOST_ROWS:
        raise TopologyError(
            f"print_table: rows is a number from 1 to {MOST_ROWS:,}, found {rows!r}; to take "
            f"all records write them: .to('a-topic')",
            where=where,
        )
    if title is not None and not isinstance(title, str):
        raise TopologyError(f"print_table: title is a text, found {title!r}", where=where)
    node_name = stream.graph.node_name(name, "KSTREAM-PRINTER-", where)
    stream.graph.add(
        PrintNode(
            name=node_name,
            inputs=(stream.node,),
            out=stream.edge.type,
            where=where,
            title=stream.node if title is None else title,
            rows=rows,
        )
    )


class Split:
    """A stream while it is split: a branch takes what its predicate, and no earlier one, takes.
    NULL is false.

    A Python predicate, or one whose Column calls Python, is asked once about a record, and only if
    no branch before took it.
    """

    def __init__(self, stream: Stream, name: str | None, where: str | None) -> None:
        self.name = stream.graph.node_name(name, "KSTREAM-BRANCH-", where)
        self._stream = stream
        self._rest = stream.graph.add(
            ProjectNode(
                name=self.name,
                inputs=(stream.node,),
                out=stream.edge.type,
                where=where,
                label="BRANCH",
            )
        )
        """The node behind which are the records that no branch before ``_columns`` took."""
        self._columns: list[Column] = []
        """Predicates, of branches of `_rest`, that may be computed again for each later one."""

    def branch(self, child: str, condition: Expression, where: str | None) -> Stream:
        """The records that no earlier branch took and for which ``condition`` is true."""
        stream = self._stream
        if not is_column(condition, "branch", where):
            self._ask_once(child, key_value_function(condition, "branch", where), where)
        elif predicate(condition, stream.edge, where).calls:
            self._ask_once(child, condition, where)
        else:
            self._project(child, self._condition(condition), where)
            self._columns.append(condition)
        return stream.behind(child, stream.edge)

    def rest(self, child: str, where: str | None) -> Stream:
        """The records that no branch took."""
        self._project(child, self._condition(), where)
        return self._stream.behind(child, self._stream.edge)

    def _project(
        self, name: str, condition: Column | None, where: str | None, label: str = "BRANCHCHILD"
    ) -> str:
        """A node with those of the rest for which ``condition`` is true (None = all)."""
        edge = self._stream.edge
        return self._stream.graph.add(
            ProjectNode(
                name=name,
                inputs=(self._rest,),
                out=edge.type,
                where=where,
                label=label,
                predicate=None if condition is None else analyse(condition, edge.type, where),
            )
        )

    def _ask_once(self, child: str, asked: Column | Callable[..., Any], where: str | None) -> None:
        """The branch, and the rest, of a predicate whose second answer may be another one: the
        first is kept beside the value."""
        graph, edge = self._stream.graph, self._stream.edge.type
        rest = self._rest
        if self._columns:
            rest = self._project(f"{child}-columns", self._condition(), where, PREPARE)
        out = EdgeType(edge.key, beside(pa.bool_(), edge.value))
        name, inputs = f"{child}-answer", (rest,)
        if isinstance(asked, Column):
            kept = F.struct(asked.alias("answer"), F.col("value").alias("value"))
            value = analyse(kept, edge, where)
            graph.add(
                ProjectNode(
                    name=name, inputs=inputs, out=out, where=where, label=PREPARE, value=value
                )
            )
        else:
            graph.add(FunctionNode(name, inputs, out, where, PREPARE, "branch", asked))
        graph.add(TakeNode(child, (name,), edge, where, "BRANCHCHILD", taken=True))
        rest = graph.add(TakeNode(f"{child}-rest", (name,), edge, where, PREPARE, taken=False))
        self._rest, self._columns = rest, []

    def _condition(self, own: Column | None = None) -> Column | None:
        """``own``, and none of the Columns of earlier branches of the rest."""
        condition = None if own is None else is_true(own)
        for earlier in self._columns:
            refused = ~is_true(earlier)
            condition = refused if condition is None else condition & refused
        return condition


def _project(
    stream: Stream,
    label: tuple[str, str],
    name: str | None,
    where: str | None,
    *,
    key: Column | None = None,
    value: Column | None = None,
    changes_key: bool = False,
) -> Stream:
    new_key = None if key is None else analyse(key, stream.edge.type, where)
    new_value = None if value is None else analyse(value, stream.edge.type, where)
    edge = stream.edge.with_types(new_key and new_key.type, new_value and new_value.type)
    node_name = stream.graph.node_name(name, label[0], where)
    node = ProjectNode(
        name=node_name,
        inputs=(stream.node,),
        out=edge.type,
        where=where,
        label=label[1],
        key=new_key,
        value=new_value,
        changes_key=changes_key,
    )
    return stream.behind(stream.graph.add(node), edge, changes_key)


def _function(
    stream: Stream,
    label: tuple[str, str],
    op: str,
    fn: Callable[..., Any],
    edge: Edge,
    name: str | None,
    where: str | None,
    *,
    changes_key: bool = False,
) -> Stream:
    called = key_value_function(fn, op, where)
    node_name = stream.graph.node_name(name, label[0], where)
    node = FunctionNode(
        node_name, (stream.node,), edge.type, where, label[1], op, called, changes_key
    )
    return stream.behind(stream.graph.add(node), edge, changes_key)


def _elements(stream: Stream, operator: str, column: Column, where: str | None) -> ColumnExpr:
    elements = analyse(column, stream.edge.type, where)
    if not pa.types.is_list(elements.type):
        raise TopologyError(
            f"{operator} takes an array Column, found {type_text(elements.type)}; use "
            f"F.array(...) or "
            f"{'map' if operator == 'flat_map' else 'map_values'}",
            where=where,
        )
    return elements


def _unnest(
    stream: Stream,
    prefix: str,
    elements: ColumnExpr,
    edge: Edge,
    name: str | None,
    where: str | None,
    *,
    keyed: bool,
) -> Stream:
    node_name = stream.graph.node_name(name, prefix, where)
    listed = EdgeType(stream.edge.type.key, elements.type)
    prepared = ProjectNode(
        name=f"{node_name}-elements",
        inputs=(stream.node,),
        out=listed,
        where=where,
        label=PREPARE,
        value=elements,
    )
    inputs = (stream.graph.add(prepared),)
    node = stream.graph.add(
        UnnestNode(node_name, inputs, edge.type, where, keyed, changes_key=keyed)
    )
    return stream.behind(node, edge, changes_key=keyed)


def _value_edge(
    stream: Stream, operator: str, fn: Callable[..., Any], returns: object, where: str | None
) -> Edge:
    return stream.edge.with_types(value=result_type(returns, fn, operator, where)).with_serdes(
        value=result_serde(returns)
    )


def _pair_edge(
    stream: Stream, operator: str, fn: Callable[..., Any], returns: object, where: str | None
) -> Edge:
    if not isinstance(returns, tuple) or len(returns) != 2:
        raise TopologyError(
            (
                f"{operator}: the function returns a key and a value; name both types, e.g. "
                f"returns=('string', 'double')"
            ),
            where=where,
        )
    key, value = (result_type(part, fn, operator, where) for part in returns)
    return stream.edge.with_types(key, value).with_serdes(
        result_serde(returns[0]), result_serde(returns[1])
    )


def _check_mergeable(first: Stream, other: Stream, where: str | None) -> None:
    if other.graph is not first.graph:
        raise TopologyError("merge takes streams of one StreamsBuilder", where=where)
    for part in ("key", "value"):
        mine, its = getattr(first.edge.type, part), getattr(other.edge.type, part)
        if not same_type(mine, its):
            raise TopologyError(
                f"merge takes streams of equal types; the {part}s are {type_text(mine)} and "
                f"{type_text(its)}; "
                "bring one to the other's type with map or map_values",
                where=where,
            )


def _check_pair(
    operator: str, type_: pa.DataType, where: str | None
) -> tuple[pa.DataType, pa.DataType]:
    names = [field.name.lower() for field in type_] if pa.types.is_struct(type_) else []
    if names != ["key", "value"]:  # in any case, as Spark takes names
        raise TopologyError(
            f"{operator} takes struct<key, value>, found {type_text(type_)}; write "
            "F.struct((...).alias('key'), (...).alias('value'))",
            where=where,
        )
    return type_.field(0).type, type_.field(1).type
