"""`KStream`: an endless stream of records, and the operators on it that keep no state.

Every operator that takes an expression takes a pyspark Column over ``key, value, timestamp (ms),
topic, partition, offset, headers`` (runs in Catalyst) or a Python function (runs in a step, record
by record). A Python function with one required parameter gets the value, with two the key and the
value; structs arrive as dicts, windowed keys as `Windowed`. Functions that make a new value need
``returns=``: DDL text, an Arrow type, a StructType or a serde.

Streams are immutable descriptions; all calls belong to the thread that builds the topology and
raise TopologyError, with the user's line and the cure, for whatever cannot work.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import Column

from everflow.dsl.builder_call import builder_call
from everflow.dsl.expressions import (
    Edge,
    Expression,
    checked_column,
    fields_from_options,
    fitting_serde,
    is_column,
    is_true,
    predicate,
    result_serde,
    result_type,
    struct_of,
)
from everflow.dsl.functions import key_value_function, refuse_pyspark
from everflow.dsl.graph_builder import GraphBuilder
from everflow.dsl.in_time.versioned_tables import table_stores
from everflow.dsl.lookups.lookup_joins import LookupJoins
from everflow.dsl.options.materialized import Materialized
from everflow.dsl.processing import Processing
from everflow.dsl.topics.printing import Printing
from everflow.dsl.topics.sinks import Partitioner, partitioner_of, target_of
from everflow.errors import TopologyError
from everflow.location import user_line
from everflow.serdes import Serde
from everflow.spark.expressions import analyse
from everflow.topology.graph import (
    PREPARE,
    ColumnExpr,
    EdgeType,
    FunctionNode,
    MergeNode,
    ProjectNode,
    SinkNode,
    StatefulNode,
    UnnestNode,
)
from everflow.topology.types import same_type, type_text
from everflow.windows import Duration

if TYPE_CHECKING:
    from everflow.dsl.branched import BranchedKStream
    from everflow.dsl.grouped import KGroupedStream
    from everflow.dsl.ktable import KTable


class KStream(LookupJoins, Processing, Printing):
    """A stream of records ``(key, value)``; ``edge`` holds their types and serdes.

    ``key_changed``: an operator before may have changed the key, so that a grouping has to
    repartition first.
    """

    def __init__(
        self, graph: GraphBuilder, node: str, edge: Edge, *, key_changed: bool = False
    ) -> None:
        self.graph, self.node, self.edge, self.key_changed = graph, node, edge, key_changed

    def __repr__(self) -> str:
        return (
            f"KStream({self.node}: {type_text(self.edge.type.key)} -> "
            f"{type_text(self.edge.type.value)})"
        )

    # --- one record in, at most one out -----------------------------------------------------------

    @builder_call
    def filter(self, predicate: Expression, *, name: str | None = None) -> KStream:
        """Records for which ``predicate`` is true (a NULL is not). Headers stay."""
        return self._filter("filter", predicate, name, negate=False)

    @builder_call
    def filter_not(self, predicate: Expression, *, name: str | None = None) -> KStream:
        """The records that ``filter`` would leave out. Headers stay."""
        return self._filter("filter_not", predicate, name, negate=True)

    @builder_call
    def map(
        self,
        mapper: Expression | None = None,
        *,
        key: Column | None = None,
        value: Column | None = None,
        returns: tuple[object, object] | None = None,
        name: str | None = None,
    ) -> KStream:
        """New key and value: ``map(key=Column, value=Column)``, a Column ``struct<key, value>``, or
        a function that returns ``(key, value)`` with ``returns=(key type, value type)``. A grouping
        behind it repartitions. Headers stay."""
        where = user_line()
        for part, given in (("key", key), ("value", value)):
            checked_column(given, part, "map", where)
        if mapper is not None and not is_column(mapper, "map", where):
            edge = self._pair_edge("map", mapper, returns, where)
            return self._function(
                "KSTREAM-MAP-", "MAP", "map", mapper, edge, name, where, changes_key=True
            )
        if mapper is not None:
            pair = analyse(mapper, self.edge.type, where)
            _check_pair("map", pair.type, where)
            key, value = mapper.getField("key"), mapper.getField("value")
        if key is None and value is None:
            raise TopologyError("map needs key=, value= or a function of (key, value)", where=where)
        return self._project(
            "KSTREAM-MAP-", "MAP", name, where, key=key, value=value, changes_key=True
        )

    @builder_call
    def map_values(
        self,
        mapper: Expression | None = None,
        *,
        returns: object = None,
        name: str | Column | None = None,
        **fields: Column,
    ) -> KStream:
        """A new value under the same key: a Column, ``field=Column`` arguments (a struct), or a
        function with ``returns=``.

        Fields called ``name`` and ``returns`` are told from the options by being Columns.
        Headers stay.
        """
        where = user_line()
        node_name, returns, fields = fields_from_options(name, returns, fields)
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
        if is_column(mapper, "map_values", where):
            return self._project("KSTREAM-MAPVALUES-", "MAPVALUES", node_name, where, value=mapper)
        edge = self._value_edge("map_values", mapper, returns, where)
        return self._function(
            "KSTREAM-MAPVALUES-", "MAPVALUES", "map_values", mapper, edge, node_name, where
        )

    @builder_call
    def select_key(
        self, mapper: Expression, *, returns: object = None, name: str | None = None
    ) -> KStream:
        """A new key; a grouping behind it repartitions, even where keys turn out equal.
        Headers stay."""
        return self._keyed("select_key", mapper, returns, name, user_line())

    @builder_call
    def peek(self, action: Callable[..., object], *, name: str | None = None) -> KStream:
        """Calls ``action`` for every record and passes it on; may run again after a failure, also
        under exactly-once. Headers stay."""
        where = user_line()
        self._needs_function("peek", action, where)
        return self._function("KSTREAM-PEEK-", "PEEK", "peek", action, self.edge, name, where)

    @builder_call
    def for_each(self, action: Callable[..., object], *, name: str | None = None) -> None:
        """Calls ``action`` for every record and ends the stream; may run again after a failure,
        also under exactly-once."""
        where = user_line()
        self._needs_function("for_each", action, where)
        self._function("KSTREAM-FOREACH-", "FOREACH", "for_each", action, self.edge, name, where)

    # --- one record in, any number out ------------------------------------------------------------

    @builder_call
    def flat_map(
        self,
        mapper: Expression,
        *,
        returns: tuple[object, object] | None = None,
        name: str | None = None,
    ) -> KStream:
        """Any number of records for each: a Column ``array<struct<key, value>>``, or a function
        that returns an iterable of ``(key, value)`` with ``returns=(key type, value type)``. Null
        and empty give none. Headers stay."""
        where = user_line()
        if not is_column(mapper, "flat_map", where):
            edge = self._pair_edge("flat_map", mapper, returns, where)
            return self._function(
                "KSTREAM-FLATMAP-",
                "FLATMAP",
                "flat_map",
                mapper,
                edge,
                name,
                where,
                changes_key=True,
            )
        elements = self._elements("flat_map", mapper, where)
        key, value = _check_pair("flat_map", elements.type.value_type, where)
        return self._unnest(
            "KSTREAM-FLATMAP-", elements, self.edge.with_types(key, value), name, where, keyed=True
        )

    @builder_call
    def flat_map_values(
        self, mapper: Expression, *, returns: object = None, name: str | None = None
    ) -> KStream:
        """Any number of values under the same key: an array Column, or a function that returns an
        iterable of values with ``returns=`` (the type of one value). Headers stay."""
        where = user_line()
        if not is_column(mapper, "flat_map_values", where):
            edge = self._value_edge("flat_map_values", mapper, returns, where)
            label = ("KSTREAM-FLATMAPVALUES-", "FLATMAPVALUES")
            return self._function(*label, "flat_map_values", mapper, edge, name, where)
        elements = self._elements("flat_map_values", mapper, where)
        edge = self.edge.with_types(value=elements.type.value_type)
        return self._unnest("KSTREAM-FLATMAPVALUES-", elements, edge, name, where, keyed=False)

    # --- several streams --------------------------------------------------------------------------

    @builder_call
    def merge(self, *others: KStream, name: str | None = None) -> KStream:
        """The records of all streams, which must have equal types; there is no order between them
        but record time. A stream merged with itself comes once, as in the original. Headers
        stay."""
        where = user_line()
        if not others:
            raise TopologyError("merge needs at least one other stream", where=where)
        for other in others:
            self._check_mergeable(other, where)
        streams = (self, *others)
        key_serde, value_serde = self.edge.key_serde, self.edge.value_serde
        same = all(
            (s.edge.key_serde, s.edge.value_serde) == (key_serde, value_serde) for s in others
        )
        edge = self.edge if same else self.edge.with_default_serdes()
        node_name = self.graph.node_name(name, "KSTREAM-MERGE-", where)
        nodes = tuple(dict.fromkeys(s.node for s in streams))
        node = self.graph.add(MergeNode(node_name, nodes, edge.type, where))
        return KStream(self.graph, node, edge, key_changed=any(s.key_changed for s in streams))

    @builder_call
    def split(self, *, name: str | None = None) -> BranchedKStream:
        """Begin to split the stream: ``.branch(predicate, name=...)`` as often as needed, then
        ``.default_branch(name=...)`` or ``.no_default_branch()``, which give the dict of branches.
        The first predicate that is true takes a record. Headers stay."""
        return self.graph.faces.branched(self, name, user_line())

    @builder_call
    def branch(self, default: str | None = None, **predicates: Expression) -> dict[str, KStream]:
        """``split`` in one call: ``stream.branch(big=F.col("value.n") > 9,
        default="rest")["big"]``. Headers stay."""
        branched = self.graph.faces.branched(self, None, user_line())
        for name, condition in predicates.items():
            branched.branch(condition, name=name)
        return (
            branched.no_default_branch()
            if default is None
            else branched.default_branch(name=default)
        )

    # --- keys, groups, tables ---------------------------------------------------------------------

    @builder_call
    def repartition(
        self,
        *,
        name: str | None = None,
        partitions: int | None = None,
        key: Serde | None = None,
        value: Serde | None = None,
        partitioner: Expression | str | None = None,
    ) -> KStream:
        """Through an internal topic ``<application.id>-<name>-repartition``: equal keys meet in one
        task.

        ``partitions`` fixes the number of partitions, ``partitioner`` says each record's, as in
        `to`. Records with a null key are dropped. Headers stay."""
        where = user_line()
        checked = self.graph.check_repartition_name(name, "repartition", where)
        if partitions is not None and (not isinstance(partitions, int) or partitions < 1):
            raise TopologyError(
                f"repartition: partitions is a number above 0, found {partitions!r}", where=where
            )
        stream = self._with_serdes("repartition", key, value, where)
        chosen = partitions, partitioner_of(partitioner, self.edge, "repartition", where)
        return stream.repartitioned(checked, where, "repartition", chosen)

    @builder_call
    def group_by(
        self,
        key: Expression,
        *,
        name: str | None = None,
        returns: object = None,
        key_serde: Serde | None = None,
    ) -> KGroupedStream:
        """Group by a new key, through the repartition topic
        ``<application.id>-<name>-repartition``. Headers stay."""
        where = user_line()
        checked = self.graph.check_repartition_name(name, "group_by", where)
        keyed = self._keyed("group_by", key, returns, checked, where)
        return self.graph.faces.grouped(
            keyed._with_serdes("group_by", key_serde, None, where), checked
        )

    @builder_call
    def group_by_key(self, *, name: str | None = None) -> KGroupedStream:
        """Group by the key there is. After an operator that changes the key the records go through
        the repartition topic ``<application.id>-<name>-repartition``, and ``name`` is needed.
        Headers stay."""
        where = user_line()
        if self.key_changed:
            name = self.graph.check_repartition_name(name, "group_by_key", where)
        return self.graph.faces.grouped(self, name)

    @builder_call
    def to_table(
        self,
        *,
        store: str | Materialized | None = None,
        key: Serde | None = None,
        value: Serde | None = None,
        ttl: Duration | None = None,
        name: str | None = None,
    ) -> KTable:
        """The stream read as a changelog: the last value of each key; null deletes, records with a
        null key are dropped. ``store``, ``ttl``: as in `StreamsBuilder.table`.

        After an operator that changes the key the records go through a repartition topic named
        after ``name``, or ``store``. Headers stay.
        """
        where = user_line()
        store = self.graph.claim_store(store, "to_table", where)
        node_name = self.graph.node_name(name, "KSTREAM-TOTABLE-", where)
        stream = self._with_serdes("to_table", key, value, where)
        stores, operator = table_stores(self.graph, store, stream.edge, "to_table", where, ttl)
        if self.key_changed:
            topic = self.graph.check_repartition_name(name or store, "to_table", where)
            stream = stream.repartitioned(topic, where, "to_table")
        node = StatefulNode(
            node_name, (stream.node,), stream.edge.type, where, "TOTABLE", operator, stores
        )
        return self.graph.faces.table(self.graph, self.graph.add(node), stream.edge)

    @builder_call
    def to(
        self,
        topic: str | Expression,
        *,
        key: Serde | None = None,
        value: Serde | None = None,
        name: str | None = None,
        partitioner: Expression | str | None = None,
    ) -> None:
        """Write to ``topic``: a name, or a Column or function that gives one per record (those
        topics must exist).

        ``key``, ``value``: serdes, by default those the stream has. ``partitioner``: by
        which hash the key's bytes say its partition, ``murmur2``, ``crc32`` or ``fnv1a`` (see
        `StreamsBuilder.stream`); or a Column, or a function of (topic, key, value, number of
        partitions), that gives each record's partition, several of them, none ([]: it is dropped)
        or NULL: as its key says. Left out it is ``murmur2``, of a windowed key without its window,
        so that all windows of a key lie in one partition. Headers stay.
        """
        where = user_line()
        target = target_of(topic, self.edge, where)
        chosen = partitioner_of(partitioner, self.edge, "to", where, target)
        stream = self._with_serdes("to", key, value, where)
        serdes = stream.edge.serdes("to", where)
        node_name = self.graph.node_name(name, "KSTREAM-SINK-", where)
        node = SinkNode(node_name, (self.node,), self.edge.type, where, target, *serdes)
        self.graph.add(replace(node, partitioner=chosen))

    # --- lowering ---------------------------------------------------------------------------------

    def repartitioned(
        self,
        name: str,
        where: str | None,
        operator: str,
        chosen: tuple[int | None, Partitioner | None] = (None, None),
    ) -> KStream:
        """This stream read back from the new repartition topic ``name`` (already checked)."""
        serdes = self.edge.serdes(operator, where)
        self.graph.burn(3)  # sink, null-key filter, source
        node = self.graph.repartition(name, self.node, self.edge.type, serdes, where, chosen)
        return KStream(self.graph, node, self.edge)

    def derived(self, node: str, edge: Edge, changes_key: bool = False) -> KStream:
        """The stream behind ``node``."""
        return KStream(self.graph, node, edge, key_changed=self.key_changed or changes_key)

    def _with_serdes(
        self, operator: str, key: object | None, value: object | None, where: str | None
    ) -> KStream:
        key_serde = fitting_serde(key, self.edge.type.key, "key", operator, where)
        value_serde = fitting_serde(value, self.edge.type.value, "value", operator, where)
        return self.derived(self.node, self.edge.with_serdes(key_serde, value_serde))

    def _keyed(
        self, operator: str, key: Expression, returns: object, name: str | None, where: str | None
    ) -> KStream:
        label = ("KSTREAM-KEY-SELECT-", "KEY-SELECT")
        if is_column(key, operator, where):
            return self._project(*label, name, where, key=key, changes_key=True)
        edge = self.edge.with_types(key=result_type(returns, key, operator, where)).with_serdes(
            key=result_serde(returns)
        )
        return self._function(*label, "select_key", key, edge, name, where, changes_key=True)

    def _filter(
        self, operator: str, condition: Expression, name: str | None, *, negate: bool
    ) -> KStream:
        where = user_line()
        if not is_column(condition, operator, where):
            return self._function(
                "KSTREAM-FILTER-", "FILTER", operator, condition, self.edge, name, where
            )
        keep = predicate(condition, self.edge, where)  # so that a message names the user's own
        if negate:
            keep = predicate(~is_true(condition), self.edge, where)
        node_name = self.graph.node_name(name, "KSTREAM-FILTER-", where)
        node = ProjectNode(
            name=node_name,
            inputs=(self.node,),
            out=self.edge.type,
            where=where,
            label="FILTER",
            predicate=keep,
        )
        return self.derived(self.graph.add(node), self.edge)

    def _project(
        self,
        prefix: str,
        label: str,
        name: str | None,
        where: str | None,
        *,
        key: Column | None = None,
        value: Column | None = None,
        changes_key: bool = False,
    ) -> KStream:
        new_key = None if key is None else analyse(key, self.edge.type, where)
        new_value = None if value is None else analyse(value, self.edge.type, where)
        edge = self.edge.with_types(new_key and new_key.type, new_value and new_value.type)
        node_name = self.graph.node_name(name, prefix, where)
        node = ProjectNode(
            name=node_name,
            inputs=(self.node,),
            out=edge.type,
            where=where,
            label=label,
            key=new_key,
            value=new_value,
            changes_key=changes_key,
        )
        return self.derived(self.graph.add(node), edge, changes_key)

    def _function(
        self,
        prefix: str,
        label: str,
        op: str,
        fn: Callable[..., Any],
        edge: Edge,
        name: str | None,
        where: str | None,
        *,
        changes_key: bool = False,
    ) -> KStream:
        called = key_value_function(fn, op, where)
        node_name = self.graph.node_name(name, prefix, where)
        node = FunctionNode(
            node_name, (self.node,), edge.type, where, label, op, called, changes_key
        )
        return self.derived(self.graph.add(node), edge, changes_key)

    def _elements(self, operator: str, column: Column, where: str | None) -> ColumnExpr:
        elements = analyse(column, self.edge.type, where)
        if not pa.types.is_list(elements.type):
            raise TopologyError(
                f"{operator} takes an array Column, found {type_text(elements.type)}; use "
                f"F.array(...) or "
                f"{'map' if operator == 'flat_map' else 'map_values'}",
                where=where,
            )
        return elements

    def _unnest(
        self,
        prefix: str,
        elements: ColumnExpr,
        edge: Edge,
        name: str | None,
        where: str | None,
        *,
        keyed: bool,
    ) -> KStream:
        node_name = self.graph.node_name(name, prefix, where)
        listed = EdgeType(self.edge.type.key, elements.type)
        prepared = ProjectNode(
            name=f"{node_name}-elements",
            inputs=(self.node,),
            out=listed,
            where=where,
            label=PREPARE,
            value=elements,
        )
        inputs = (self.graph.add(prepared),)
        node = self.graph.add(
            UnnestNode(node_name, inputs, edge.type, where, keyed, changes_key=keyed)
        )
        return self.derived(node, edge, changes_key=keyed)

    def _value_edge(
        self, operator: str, fn: Callable[..., Any], returns: object, where: str | None
    ) -> Edge:
        return self.edge.with_types(value=result_type(returns, fn, operator, where)).with_serdes(
            value=result_serde(returns)
        )

    def _pair_edge(
        self, operator: str, fn: Callable[..., Any], returns: object, where: str | None
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
        return self.edge.with_types(key, value).with_serdes(
            result_serde(returns[0]), result_serde(returns[1])
        )

    def _needs_function(self, operator: str, action: object, where: str | None) -> None:
        refuse_pyspark(action, operator, where)
        if isinstance(action, Column) or not callable(action):
            raise TopologyError(
                (
                    f"{operator} calls a Python function for its effect, found {action!r}; use "
                    f"map_values for a Column"
                ),
                where=where,
            )

    def _check_mergeable(self, other: object, where: str | None) -> None:
        if not isinstance(other, KStream):
            raise TopologyError(
                f"merge takes streams, found {other!r}; a table gives one with to_stream()",
                where=where,
            )
        if other.graph is not self.graph:
            raise TopologyError("merge takes streams of one StreamsBuilder", where=where)
        for part in ("key", "value"):
            mine, its = getattr(self.edge.type, part), getattr(other.edge.type, part)
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
