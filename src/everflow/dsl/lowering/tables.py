"""Tables: how operators read them; what a stream becomes, filtered and mapped ones; whole ones.

A table without a store of its own is made of those that have one (Kafka Streams' value getters,
note 035). Tables with a history, those whose entries end, global ones and those that Spark loads:
notes 028, 030, 026 and 033.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeAlias, cast

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from everflow.dsl.expressions import (
    Edge,
    Expression,
    TableFilter,
    TableMapper,
    default_serde,
    is_column,
    is_true,
    key_value_function,
    predicate,
    struct_of,
    unless_deleted,
)
from everflow.dsl.graph_builder import GraphBuilder, Stream, bytes_store, store_spec
from everflow.dsl.lowering.processors import TRANSFORMERS, ProcessorCall, Transformer
from everflow.dsl.stores import Materialized, Store, Suppressed
from everflow.errors import TopologyError
from everflow.operators.aggregates.aggregate import AggregateSpec, PythonAggregateSpec
from everflow.operators.aggregates.sliding_aggregate import SlidingAggregateSpec
from everflow.operators.aggregates.windowed_aggregate import CountWindowSpec, SessionAggregateSpec
from everflow.operators.joins import JoinedTable, TableTableJoin
from everflow.operators.joins.joined_table import MappedTable, TableOfBoth, TableRead
from everflow.operators.suppress import SuppressSpec
from everflow.operators.table import (
    Changes,
    LatestUpdates,
    TableSpec,
    VersionedTableSpec,
    VisibleUpdates,
)
from everflow.operators.time_to_live import TimeToLiveSpec
from everflow.serdes import Serde
from everflow.serdes.arrow_types import normal_type, type_text
from everflow.serdes.debezium_serde import envelope_type
from everflow.spark.expressions import analyse, arrow_type, without_error_log
from everflow.state.store import VERSIONED, StoreSpec
from everflow.topology.graph import (
    PREPARE,
    ColumnExpr,
    EdgeType,
    FunctionNode,
    LoadedTableNode,
    Node,
    Part,
    ProcessorOperator,
    ProjectNode,
    StatefulNode,
    TableOperator,
    WholeTableNode,
    same_type,
)
from everflow.user_program import user_line
from everflow.windows import Duration, checked_ms, duration_ms


def checked_ttl(ttl: Any, operator: str) -> int:
    return checked_ms(ttl, f"{operator}: ttl", 1, "; write for example ttl='30 days'")


def with_ttl(
    graph: GraphBuilder,
    operator: AggregateSpec | PythonAggregateSpec | TableSpec,
    store: StoreSpec,
    ttl_ms: int,
    called: str,
) -> tuple[TimeToLiveSpec, tuple[StoreSpec, ...]]:
    """The operator whose entries end, and its stores: the entries, and when they end."""
    spec = TimeToLiveSpec(layout=operator, ttl_ms=ttl_ms)
    index = graph.claim_beside(spec.index, store.name, called)
    return spec, (store, bytes_store(index))


def has_history(graph: GraphBuilder, store: str) -> bool:
    options = graph.options.get(store)
    return options is not None and options.history is not None


def table_stores(
    graph: GraphBuilder,
    name: str,
    edge: Edge,
    operator: str,
    ttl: Duration | None = None,
    *,
    partial: bool = False,
) -> tuple[tuple[StoreSpec, ...], TableSpec | VersionedTableSpec | TimeToLiveSpec]:
    options = graph.options.get(name)
    history = None if options is None else options.history
    ttl_ms = None if ttl is None else checked_ttl(ttl, operator)
    if ttl_ms is not None and history is not None:
        raise TopologyError(
            f"{operator} takes Materialized(history=) or ttl=: a table that keeps what its values "
            "were forgets none of its keys; leave one of them out"
        )
    written = edge.serdes(operator)
    if history is not None:
        history_ms = duration_ms(history)
        spec = store_spec(name, written, VERSIONED, retention_ms=history_ms)
        return (spec,), VersionedTableSpec(name, *written, history_ms)
    spec, table = store_spec(name, written), TableSpec(name, *written, partial=partial)
    if ttl_ms is None:
        return (spec,), table
    ending, stores = with_ttl(graph, table, spec, ttl_ms, operator)
    return stores, ending


def is_versioned(graph: GraphBuilder, name: str) -> bool:
    node = graph.nodes[name]
    transformed = isinstance(node, StatefulNode) and isinstance(node.operator, ProcessorOperator)
    if isinstance(node, StatefulNode) and node.stores and not transformed:
        return node.stores[0].versioned
    if transformed or isinstance(node, ProjectNode | FunctionNode):
        return is_versioned(graph, node.inputs[0])
    return False


def latest_updates(graph: GraphBuilder, node_name: str, name: str, operator: str) -> str:
    """The node of a table's updates that are the latest when they come (KIP-914): those of a table
    that is not versioned all are. ``name``: of what reads them."""
    node, called = graph.nodes[node_name], f"{node_name}-latest-for-{name}"
    if not is_versioned(graph, node_name) or called in graph.nodes:
        return called if called in graph.nodes else node_name
    if is_stateless(node):
        parent = latest_updates(graph, node.inputs[0], name, operator)
        made: Any = node
        return graph.add(replace(made, name=called, inputs=(parent,), label=PREPARE))
    looked_up = stored_table(graph, node_name, operator)
    latest = LatestUpdates(looked_up)
    reads = (looked_up.spec,)
    return graph.add(
        StatefulNode(
            called,
            (node_name,),
            node.out,
            PREPARE,
            latest,
            reads=reads,
        )
    )


# --- stores ---------------------------------------------------------------------------------------


def stored_table(graph: GraphBuilder, name: str, operator: str) -> JoinedTable:
    """The table of a node as an operator behind it looks up its entries; a store that was left out
    is made. TopologyError for one without a store."""
    graph.keep(name)
    node = graph.nodes[name]
    if isinstance(node, StatefulNode) and isinstance(node.operator, SuppressSpec):
        raise TopologyError(
            f"{operator} looks entries up in the table's store, and suppress keeps only what it "
            f"holds back; keep its results: .to_stream().to_table(store='a-name')"
        )
    found = store_of(graph, name)
    if found is None:
        raise TopologyError(
            f"{operator} looks entries up in the table's store, and {name} has none; "
            f"give it one: store='a-name' in the call that makes it"
        )
    assert isinstance(node, StatefulNode)
    results: Any = node.operator
    return JoinedTable(found, results.results, node.out.value)


def store_of(graph: GraphBuilder, name: str) -> StoreSpec | None:
    """The store that has the entries of a table's node, or, of final results, of what they are
    results of; None: there is none."""
    node = graph.nodes[name]
    if (
        not isinstance(node, StatefulNode)
        or not node.stores
        or isinstance(node.operator, ProcessorOperator)
    ):
        return None
    if isinstance(node.operator, SuppressSpec):
        return store_of(graph, node.inputs[0]) if node.operator.headers_of_last else None
    return node.stores[0]


# --- tables that may have no store ----------------------------------------------------------------

_OF_THE_RECORD = frozenset({"topic", "partition", "offset", "headers"})


def is_stateless(node: Node) -> bool:
    """True if a table's node makes a value of each entry alone."""
    if isinstance(node, StatefulNode):
        return node.operator.asked is not None
    return isinstance(node, ProjectNode | FunctionNode) and node.label != "TOSTREAM"


def read_table(
    table: Stream,
    operator: str,
    sides: list[str],
    comes: str,
    called: str = "",
    *,
    as_of: bool = False,
) -> TableRead:
    """How an operator looks a table up. ``sides``: the nodes that it reads, to which those of the
    tables' updates are added; ``comes``: the node whose records ask; ``called``: of what reads
    latest updates. ``as_of``: a table with a history is asked as of the record's time; what a join
    of tables made has none (KIP-914). TopologyError for a table whose entries nobody has."""
    graph = table.graph

    def read(name: str, as_of: bool) -> TableRead:
        graph.keep(name)
        node = graph.nodes[name]
        found = node.operator if isinstance(node, StatefulNode) else None
        if is_stateless(node):
            _require_entries(node, operator)
            return mapped(read(node.inputs[0], as_of), node)
        if isinstance(found, VisibleUpdates | LatestUpdates):
            return read(node.inputs[0], as_of)
        if isinstance(found, TableTableJoin):
            left, right = (read(one, False) for one in node.inputs[:2])
            return TableOfBoth(left, right, found.kind, node.out.value)
        joined, updates = stored_table(graph, name, operator), name
        emit_each_update(graph, name)
        if not as_of:  # what is there now is the latest
            updates = latest_updates(graph, name, called, operator)
        if updates not in sides:
            sides.append(updates)
        first = graph.reaches_first(name, comes)
        return replace(joined, side=sides.index(updates), first=first, as_of=as_of)

    return read(table.node, as_of)


def _require_entries(node: Node, operator: str) -> None:
    value = node.value if isinstance(node, ProjectNode) else None
    read = sorted(_OF_THE_RECORD & (frozenset() if value is None else value.uses))
    if read:
        raise TopologyError(
            f"{operator} asks {node.name} for what it makes of an entry, and its Column reads "
            f"{', '.join(read)}, which only the entry's record had; keep what it gives: "
            "store='a-name' in the call that makes it"
        )


def mapped(table: TableRead, node: Node) -> MappedTable:
    if isinstance(table, MappedTable):
        return MappedTable(table.source, (*table.nodes, node.name), node.out.value)
    return MappedTable(table, (node.name,), node.out.value)


def specs_of(*tables: TableRead) -> tuple[StoreSpec, ...]:
    return tuple({one.spec.name: one.spec for table in tables for one in table.stored}.values())


def tells_old(graph: GraphBuilder, name: str, *, forced: bool = False) -> bool:
    """True where the table, or what it is made of, has a store, which knows what entries were.
    ``forced``: a store that was left out as nobody asked is made."""
    if forced:
        graph.keep(name)
    node = graph.nodes[name]
    if is_stateless(node):
        return tells_old(graph, node.inputs[0], forced=forced)
    if not isinstance(node, StatefulNode):
        return False
    operator = node.operator
    if isinstance(operator, SuppressSpec):
        return operator.by_window
    if operator.old_from or isinstance(operator, LatestUpdates):
        return True
    return (
        bool(node.stores) and isinstance(operator, TableOperator) and not node.stores[0].versioned
    )


# --- tables of tables -----------------------------------------------------------------------------


def table_of(
    stream: Stream,
    store: Store | None,
    key: Serde | None,
    value: Serde | None,
    ttl: Duration | None,
    name: str | None,
) -> Stream:
    graph = stream.graph
    claimed = graph.claim_store(store, "to_table")
    node_name = graph.node_name(name, "KSTREAM-TOTABLE-")
    stream = stream.with_serdes("to_table", key, value)
    stores, operator = table_stores(graph, claimed, stream.edge, "to_table", ttl)
    if stream.key_changed:
        topic = graph.check_repartition_name(name or claimed, "to_table")
        stream = stream.repartitioned(topic, "to_table")
    return stream.kept(node_name, "TOTABLE", operator, stores)


@dataclass(frozen=True)
class TableCall:
    """A call, of the ``operator``, that makes a table of another."""

    table: Stream
    operator: str
    store: Store | None
    name: str | None

    def filtered(self, condition: Expression) -> Stream:
        edge, negate = self.table.edge, self.operator == "filter_not"
        if not is_column(condition, self.operator):
            fails = TableFilter(key_value_function(condition, self.operator), negate)
            return self._made("FILTER", fails, edge)
        predicate(condition, edge)
        keep = ~is_true(condition) if negate else condition
        value = analyse(F.when(keep, F.col("value")), edge.type)
        return self._made("FILTER", replace(value, skips_null=True), edge)

    def mapped(
        self, mapper: Expression | None, fields: dict[str, Column], returns: object
    ) -> Stream:
        if bool(fields) == (mapper is not None):
            raise TopologyError(
                "map_values needs either one Column or Python function, or field=Column arguments"
            )
        if fields:
            mapper = struct_of(fields, "map_values")
        assert mapper is not None
        edge = self.table.edge
        if is_column(mapper, "map_values"):
            value = unless_deleted(mapper, edge)
            return self._made("MAPVALUES", value, edge.with_types(value=value.type))
        edge = edge.returning("map_values", mapper, value=returns)
        called = TableMapper(key_value_function(mapper, "map_values"))
        return self._made("MAPVALUES", called, edge)

    def transformed(
        self, transformer: Transformer, returns: object, stores: Iterable[StoreSpec | str]
    ) -> Stream:
        table, graph = self.table, self.table.graph
        call = ProcessorCall("transform_values", transformer, stores, self.name)
        edge = table.edge
        if returns is not None:
            edge = edge.returning("transform_values", call.named, value=returns)
        name = graph.node_name(self.name, "KTABLE-TRANSFORMVALUES-")
        if self.store is None:
            call.node(table, name, edge, TRANSFORMERS, label="TRANSFORMVALUES")
            return table.behind(name, edge)
        made = call.node(table, f"{name}-values", edge, TRANSFORMERS, label=PREPARE)
        result = stored(table.behind(made.name, edge), name, self.store, self.operator)
        if made.stores + made.reads:
            both = graph.nodes[result.node]
            assert isinstance(both, StatefulNode)
            names = [spec.name for spec in (*both.stores, *made.stores, *made.reads)]
            part = Part(name, (table.node,), tuple(names))
            graph.nodes[name] = replace(both, parts=(part,))
        return result

    def _made(self, kind: str, value: ColumnExpr | Callable[..., Any], edge: Edge) -> Stream:
        """The table of new values, in a store where one is asked for; a filter without one emits no
        deletion of what was not there."""
        table, graph = self.table, self.table.graph
        node_name = graph.node_name(self.name, f"KTABLE-{kind}-")
        hides = kind == "FILTER" and not is_versioned(graph, table.node)
        compares = hides and self.store is None and tells_old(graph, table.node)
        name, label = node_name, kind
        if compares or self.store is not None:
            name, label = f"{node_name}-{'new' if compares else 'values'}", PREPARE
        if isinstance(value, ColumnExpr):
            made = table.projected(name, label, edge, value=value)
        else:
            made = table.called(name, label, "map_values", value, edge)
        if compares:
            return made.kept(node_name, kind, VisibleUpdates())
        if self.store is None:
            return made
        return stored(made, node_name, self.store, self.operator, only_visible=hides)


def stored(
    table: Stream, name: str, store: object, operator: str, *, only_visible: bool = False
) -> Stream:
    """The table in a ``store`` that the node ``name`` keeps; ``only_visible``: see `TableSpec`."""
    claimed = table.graph.claim_store(store, operator)
    node = kept_node(table, name, claimed, operator, only_visible=only_visible)
    return table.behind(table.graph.add(node), table.edge)


def kept_node(
    table: Stream, name: str, store: str, operator: str, *, only_visible: bool = False
) -> StatefulNode:
    """As of `stored`, not added to the graph."""
    written, out = table.edge.serdes(operator), table.edge.type
    kept = TableSpec(store, *written, only_visible=only_visible)
    stores = (store_spec(store, written),)
    return StatefulNode(name, (table.node,), out, "MATERIALIZED", kept, stores)


# --- changes of a table as Debezium writes them (note 071) ----------------------------------------


def enveloped(table: Stream, operator: str) -> Stream:
    """The table's changes as envelopes, with what each entry was."""
    graph = table.graph
    node = graph.new_name("KTABLE-CHANGES-")
    updates = latest_updates(graph, table.node, node, operator)
    if not tells_old(graph, updates, forced=True):
        stored_table(graph, table.node, operator)  # says what it lacks
        raise AssertionError("a table that can be asked knows what it was")
    made = envelope_type(table.edge.type.value)
    source, edge = table.behind(updates, table.edge), table.edge.with_types(value=made)
    return source.kept(node, "CHANGES", Changes(edge.type.value), edge=edge)


# --- ``KTable.suppress``, and results of windows that close: buffered in a store (KIP-328) --------


def suppressed(
    table: Stream,
    strategy: object,
    store: Store | None,
    name: str | None,
) -> Stream:
    if not isinstance(strategy, Suppressed):
        raise TopologyError(
            f"suppress takes Suppressed.until_window_closes() or "
            f"Suppressed.until_time_limit('1 minute'), found {strategy!r}"
        )
    graph, bounds = table.graph, strategy.buffer.bounds
    if is_versioned(graph, table.node):
        raise TopologyError(
            "suppress holds back the updates of a table's latest values, and this table keeps "
            "its history, whose updates come in any order; suppress a table without history="
        )
    by_window = strategy.wait_ms is None
    if by_window and bounds.limited and not bounds.stops:
        raise TopologyError(
            "a buffer that gives entries early has results that are not final; write "
            "BufferConfig.unbounded(), or BufferConfig.max_records(...).shut_down_when_full()"
        )
    wait_ms = strategy.wait_ms
    if wait_ms is None:
        wait_ms = closes_after_ms(graph, table.node)
    if wait_ms is None and _by_numbers(graph, table.node):
        raise TopologyError(
            "count windows close with their last record, not by time; give one result of each with "
            "windowed.emit_strategy(EmitStrategy.on_window_close()) in front of count(...), "
            "reduce(...) or aggregate(...)"
        )
    if wait_ms is None:
        raise TopologyError(
            "until_window_closes is for tables of windows: "
            "stream.group_by_key().windowed_by(TimeWindows.of_size('1 minute')).count(...); other "
            "tables take Suppressed.until_time_limit('1 minute')"
        )
    if not by_window:
        emit_each_update(graph, table.node)
    node_name = graph.node_name(name, "KTABLE-SUPPRESS-")
    claimed = graph.claim_store(store, "suppress")
    return buffered(
        table,
        node_name,
        claimed,
        wait_ms=wait_ms,
        by_window=by_window,
        bounds=bounds,
        span_ms=span_ms(graph, table.node) if by_window else 0,
    )


def buffered(table: Stream, name: str, store: str, **how: Any) -> Stream:
    """The table behind a node with the buffer ``store``; ``how``: of `SuppressSpec`."""
    key_serde, value_serde = table.edge.serdes("suppress")
    spec = SuppressSpec(
        store=store,
        where=user_line(),
        key_serde=key_serde,
        value_serde=value_serde,
        **how,
    )
    return table.kept(name, "SUPPRESS", spec, (bytes_store(store, private=True),))


def closes_after_ms(graph: GraphBuilder, name: str) -> int | None:
    """How far stream time has to be behind window ends, the longest of the table's; None: none."""
    node = graph.nodes[name]
    operator: Any = node.operator if isinstance(node, StatefulNode) else None
    if isinstance(operator, SessionAggregateSpec):
        return operator.windows.retention_ms
    if isinstance(operator, SlidingAggregateSpec):
        return operator.windows.grace_ms
    if isinstance(operator, AggregateSpec | PythonAggregateSpec) and operator.window is not None:
        return operator.window.grace_ms
    found = [closes_after_ms(graph, each) for each in node.inputs]
    known = [wait_ms for wait_ms in found if wait_ms is not None]
    return max(known) if found and len(known) == len(found) else None


def span_ms(graph: GraphBuilder, name: str) -> int:
    """How far before a window's end the time of its entry may lie, at the most; a session's is its
    end."""
    node = graph.nodes[name]
    operator: Any = node.operator if isinstance(node, StatefulNode) else None
    if isinstance(operator, SessionAggregateSpec):
        return 0
    if isinstance(operator, SlidingAggregateSpec):
        return operator.windows.difference_ms
    if isinstance(operator, AggregateSpec | PythonAggregateSpec) and operator.window is not None:
        return operator.window.size_ms
    return max((span_ms(graph, each) for each in node.inputs), default=0)


def _by_numbers(graph: GraphBuilder, name: str) -> bool:
    node = graph.nodes[name]
    if isinstance(node, StatefulNode) and isinstance(node.operator, CountWindowSpec):
        return True
    return any(_by_numbers(graph, each) for each in node.inputs)


def emit_each_update(graph: GraphBuilder, name: str) -> None:
    node = graph.nodes[name]
    if isinstance(node, StatefulNode):
        graph.nodes[node.name] = node.giving_every_update()
    elif isinstance(node, ProjectNode | FunctionNode):
        for each in node.inputs:
            emit_each_update(graph, each)


# --- global tables --------------------------------------------------------------------------------


def whole_table(table: Stream) -> JoinedTable:
    node = table.graph.nodes[table.node]
    assert isinstance(node, WholeTableNode)
    return JoinedTable(node.store, node.store.value_serde, table.edge.type.value)


Frame: TypeAlias = DataFrame | Callable[[], DataFrame]
Key: TypeAlias = str | Column | Sequence[str]


def frame_rows(
    source: Frame,
    key: Column,
    type_: EdgeType,
) -> Iterator[tuple[pa.Array, pa.Array]]:
    """Keys and values of a `LoadedTableNode`, in the types of its edge; called on the instance's
    own thread. Raises what Spark and the user's function raise; ValueError where the DataFrame has
    other columns than when the program was built."""
    frame = source if isinstance(source, DataFrame) else source()
    selected = _selected(frame, key)
    found = _edge_type(selected)
    for part, name in (("key", "key"), ("value", "row")):
        now, then = getattr(found, part), getattr(type_, part)
        if not same_type(now, then):
            raise ValueError(
                f"the {name} is {type_text(now)}, and was {type_text(then)} when the program "
                f"was built"
            )
    for batch in selected.toArrow().to_batches():
        yield batch.column(0).cast(type_.key), batch.column(1).cast(type_.value)


def loaded_table(
    graph: GraphBuilder,
    frame: object,
    key: object,
    refresh: Duration | None,
    store: object,
    name: str | None,
) -> Stream:
    if isinstance(store, Materialized):
        raise TopologyError(
            f"global_table_from takes the name of its store alone, store={store.name!r}: Spark "
            f"loads it when an instance starts, on its disk, without a changelog, so none of "
            f"Materialized's options is for it"
        )
    kept = graph.claim_store(store, "global_table_from")
    refresh_ms = None if refresh is None else checked_ms(refresh, "global_table_from: refresh", 1)
    column = _key_column(key)
    source, found = _frame_source(frame)
    if found.isStreaming:
        raise TopologyError(
            "global_table_from takes a DataFrame of rows that are there; a streaming one is "
            "written to a topic first, for builder.global_table"
        )
    try:
        with without_error_log():
            selected = _selected(found, column)
        type_ = _edge_type(selected)
    except TopologyError:
        raise
    except Exception as error:
        raise TopologyError(
            f"global_table_from: the key is no column of the DataFrame, which has "
            f"{', '.join(found.columns)} ({str(error).splitlines()[0]})"
        ) from None
    edge = Edge(type_, default_serde(type_.key), default_serde(type_.value))
    written = edge.serdes("global_table_from")
    node_name = graph.node_name(name, "KTABLE-FRAME-")
    node = LoadedTableNode(
        name=node_name,
        inputs=(),
        out=edge.type,
        source=f"{node_name}-rows",
        store=store_spec(kept, written, logging=False),
        rows=partial(frame_rows, source, column, type_),
        refresh_ms=refresh_ms,
    )
    return Stream(graph, graph.add(node), edge)


def _frame_source(frame: object) -> tuple[Frame, DataFrame]:
    found = frame() if callable(frame) else frame
    if isinstance(found, DataFrame):
        return found if found is frame else cast(Frame, frame), found
    verb = "which returned" if callable(frame) else "found"
    raise TopologyError(
        "global_table_from takes a DataFrame, or a function without arguments that returns one, "
        f"{verb} {found!r}"
    )


def _key_column(key: object) -> Column:
    if isinstance(key, Column):
        return key
    names = [key] if isinstance(key, str) else key
    if isinstance(names, Sequence) and names and all(isinstance(one, str) for one in names):
        return F.col(names[0]) if isinstance(key, str) else F.struct(*names)
    raise TopologyError(
        f"global_table_from: key= is a Column, the name of one or a list of names, found {key!r}"
    )


def _selected(frame: DataFrame, key: Column) -> DataFrame:
    quoted = [f"`{name.replace('`', '``')}`" for name in frame.columns]  # a dot is part of a name
    return frame.select(key.alias("key"), F.struct(*quoted).alias("value"))


def _edge_type(selected: DataFrame) -> EdgeType:
    key, value = (
        normal_type(arrow_type(field.dataType, f"the {part} of the DataFrame"))
        for part, field in zip(("key", "row"), selected.schema.fields, strict=True)
    )
    return EdgeType(key, value)
