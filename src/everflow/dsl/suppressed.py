"""``KTable.suppress``: what it may be told, and how it is lowered (KIP-328).

All calls belong to the thread that builds the topology; TopologyError, with the user's line and the
cure, for what cannot work.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, ClassVar

from everflow import serdes
from everflow.dsl.graph_builder import GraphBuilder
from everflow.dsl.in_time.versioned_tables import is_versioned
from everflow.dsl.joins import Side
from everflow.dsl.options.materialized import Materialized
from everflow.errors import TopologyError
from everflow.foreign_names import Telling
from everflow.foreign_names.fitting_calls import FittingClass
from everflow.location import user_line
from everflow.operators.aggregate import AggregateSpec
from everflow.operators.count_windows import CountWindowSpec
from everflow.operators.python_aggregate import PythonAggregateSpec
from everflow.operators.session_aggregate import SessionAggregateSpec, SessionFunctionSpec
from everflow.operators.sliding.sliding_aggregate import SlidingAggregateSpec, SlidingFunctionSpec
from everflow.operators.suppress import BufferBounds, EarlyResults, SuppressSpec
from everflow.state.store import StoreSpec
from everflow.topology.graph import FunctionNode, Node, ProjectNode, StatefulNode
from everflow.windows import Duration, duration_ms


@dataclass(frozen=True)
class BufferConfig(Telling, metaclass=FittingClass):
    """How much a task may hold back, and what happens when that is too little. Kafka Streams'
    ``Suppressed.BufferConfig``."""

    bounds: BufferBounds = field(default_factory=BufferBounds)

    _WRITTEN: ClassVar[str] = "BufferConfig.max_records(100_000).shut_down_when_full()"
    """An example, for messages."""

    @staticmethod
    def unbounded() -> BufferConfig:
        """As much as there is: the buffer is a store on disk."""
        return BufferConfig()

    @staticmethod
    def max_records(count: int) -> BufferConfig:
        """At most ``count`` keys in a task; the oldest is given early."""
        return BufferConfig().with_max_records(count)

    @staticmethod
    def max_bytes(count: int) -> BufferConfig:
        """At most ``count`` bytes of keys and values in a task, and 8 a key; the oldest is given
        early."""
        return BufferConfig().with_max_bytes(count)

    def with_max_records(self, count: int) -> BufferConfig:
        """The same, and at most ``count`` keys."""
        return BufferConfig(replace(self.bounds, records=_positive(count, "max_records")))

    def with_max_bytes(self, count: int) -> BufferConfig:
        """The same, and at most ``count`` bytes."""
        return BufferConfig(replace(self.bounds, bytes=_positive(count, "max_bytes")))

    def emit_early_when_full(self) -> BufferConfig:
        """The oldest entry is given before its time; not for windows, whose result would not be the
        final one."""
        return BufferConfig(replace(self.bounds, stops=False))

    def shut_down_when_full(self) -> BufferConfig:
        """The instance ends with `BufferFullError`."""
        return BufferConfig(replace(self.bounds, stops=True))

    def with_no_bound(self) -> BufferConfig:
        """The same, with room for as much as there is."""
        return BufferConfig()


@dataclass(frozen=True)
class Suppressed(Telling, metaclass=FittingClass):
    """When ``KTable.suppress`` lets an entry out. ``wait_ms`` None: when its window closes."""

    wait_ms: int | None
    buffer: BufferConfig = field(default_factory=BufferConfig)

    _WRITTEN: ClassVar[Mapping[str, str]] = MappingProxyType(
        {
            "Suppressed": "Suppressed.until_window_closes()",
            "until_window_closes": "Suppressed.until_window_closes()",
            "until_time_limit": "Suppressed.until_time_limit('1 minute')",
        }
    )

    @staticmethod
    def until_window_closes(buffer: BufferConfig | None = None) -> Suppressed:
        """The final result of each window, once stream time has reached its end and grace; nothing
        before."""
        return Suppressed(None, BufferConfig() if buffer is None else buffer)

    @staticmethod
    def until_time_limit(limit: Duration, buffer: BufferConfig | None = None) -> Suppressed:
        """The last update of each key, ``limit`` (stream time) after the first that was held
        back."""
        wait_ms = duration_ms(limit)
        if wait_ms < 0:
            raise TopologyError(
                f"a time limit may not be negative, found {wait_ms} ms", where=user_line()
            )
        return Suppressed(wait_ms, BufferConfig() if buffer is None else buffer)


@dataclass(frozen=True)
class EmitStrategy(Telling, metaclass=FittingClass):
    """When windows give results (KIP-825): ``windowed.emit_strategy(...)``.

    ``final``: not each update; then ``early`` says what else is given than the final result.
    """

    final: bool = False
    early: EarlyResults | None = None

    _WRITTEN: ClassVar[str] = (
        "EmitStrategy.on_window_close(), or EmitStrategy.every('10 seconds') for early results, too"
    )
    """An example, for messages."""

    @staticmethod
    def on_window_update() -> EmitStrategy:
        """With every batch that changes a window: the default."""
        return EmitStrategy()

    @staticmethod
    def on_window_close() -> EmitStrategy:
        """Once, when stream time has reached the window's end and grace."""
        return EmitStrategy(final=True)

    @staticmethod
    def every(amount: int | Duration) -> EmitStrategy:
        """Early results and the final one: with every ``amount``-th record that a window takes
        (``every(100)``), or when stream time is ``amount`` behind the first record that was not
        shown (``every("10 seconds")``); and what was not shown when the window closes. No result is
        given twice, and none depends on where a micro-batch was cut."""
        if isinstance(amount, int) and not isinstance(amount, bool):
            return EmitStrategy(True, EarlyResults(records=_positive(amount, "every")))
        wait_ms = duration_ms(amount)
        if wait_ms <= 0:
            raise TopologyError(
                f"every takes a time above zero, found {wait_ms} ms; write "
                "EmitStrategy.every('10 seconds'), or every(100) for a number of records",
                where=user_line(),
            )
        return EmitStrategy(True, EarlyResults(wait_ms=wait_ms))


def _positive(count: object, what: str) -> int:
    if isinstance(count, int) and not isinstance(count, bool) and count > 0:
        return count
    raise TopologyError(f"{what} takes a number above zero, found {count!r}", where=user_line())


def suppressed(
    table: Side,
    given: object,
    store: str | Materialized | None,
    name: str | None,
    where: str | None,
) -> str:
    """The node behind ``table`` that holds its updates back."""
    if not isinstance(given, Suppressed):
        raise TopologyError(
            f"suppress takes Suppressed.until_window_closes() or "
            f"Suppressed.until_time_limit('1 minute'), found {given!r}",
            where=where,
        )
    graph, bounds = table.graph, given.buffer.bounds
    if is_versioned(graph, table.node):
        raise TopologyError(
            "suppress holds back the updates of a table's latest values, and this table keeps "
            "its history, whose updates come in any order; suppress a table without history=",
            where=where,
        )
    by_window = given.wait_ms is None
    if by_window and bounds.given and not bounds.stops:
        raise TopologyError(
            "a buffer that gives entries early has results that are not final; write "
            "BufferConfig.unbounded(), or BufferConfig.max_records(...).shut_down_when_full()",
            where=where,
        )
    wait_ms = given.wait_ms
    if wait_ms is None:
        wait_ms = closes_after_ms(graph, table.node)
    if wait_ms is None and _by_numbers(graph, table.node):
        raise TopologyError(
            "count windows close with their last record, not by time; give one result of each with "
            "windowed.emit_strategy(EmitStrategy.on_window_close()) in front of count(...), "
            "reduce(...) or aggregate(...)",
            where=where,
        )
    if wait_ms is None:
        raise TopologyError(
            "until_window_closes is for tables of windows: "
            "stream.group_by_key().windowed_by(TimeWindows.of_size('1 minute')).count(...); other "
            "tables take Suppressed.until_time_limit('1 minute')",
            where=where,
        )
    if not by_window:
        emit_each_update(graph, table.node)
    node_name = graph.node_name(name, "KTABLE-SUPPRESS-", where)
    claimed = graph.claim_store(store, "suppress", where)
    return graph.add(suppress_node(table, node_name, claimed, wait_ms, by_window, bounds, where))


def suppress_node(
    table: Side,
    name: str,
    store: str,
    wait_ms: int,
    by_window: bool,
    bounds: BufferBounds,
    where: str | None,
) -> StatefulNode:
    """The node ``name``, whose buffer is the store ``store``."""
    key_serde, value_serde = table.edge.serdes("suppress", where)
    spec = SuppressSpec(
        store=store,
        where=where,
        table_key_serde=key_serde,
        table_value_serde=value_serde,
        result_key=table.edge.type.key,
        result=table.edge.type.value,
        wait_ms=wait_ms,
        by_window=by_window,
        bounds=bounds,
    )
    kept = StoreSpec(
        name=store,
        kind="key_value",
        key_serde=serdes.bytes_(),
        value_serde=serdes.bytes_(),
        where=where,
        private=True,
    )
    return StatefulNode(name, (table.node,), table.edge.type, where, "SUPPRESS", spec, (kept,))


def early_node(closed: StatefulNode, graph: GraphBuilder, early: EarlyResults) -> StatefulNode:
    """The node ``closed`` that gives final results, with early ones too."""
    for given in closed.inputs:
        emit_each_update(graph, given)
    return replace(closed, operator=replace(closed.operator, early=early, by_window=False))


def closes_after_ms(graph: GraphBuilder, name: str) -> int | None:
    """How far behind a window's end stream time has to be for no record to change it any more: the
    longest of all windows that the table is made of; None where there are none."""
    node = graph.node(name)
    operator: Any = node.operator if isinstance(node, StatefulNode) else None
    if isinstance(operator, SessionAggregateSpec | SessionFunctionSpec):
        return operator.windows.retention_ms
    if isinstance(operator, SlidingAggregateSpec | SlidingFunctionSpec):
        return operator.windows.grace_ms
    if isinstance(operator, AggregateSpec | PythonAggregateSpec) and operator.window is not None:
        return operator.window.grace_ms
    found = [closes_after_ms(graph, given) for given in node.inputs]
    known = [wait_ms for wait_ms in found if wait_ms is not None]
    return max(known) if found and len(known) == len(found) else None


def _by_numbers(graph: GraphBuilder, name: str) -> bool:
    """Whether the table is made of count windows."""
    node = graph.node(name)
    if isinstance(node, StatefulNode) and isinstance(node.operator, CountWindowSpec):
        return True
    return any(_by_numbers(graph, given) for given in node.inputs)


def emit_each_update(graph: GraphBuilder, name: str) -> None:
    """Whoever counts updates, or goes by the first one, needs all of them from the table's
    operators."""
    node: Node = graph.node(name)
    if isinstance(node, StatefulNode) and hasattr(node.operator, "emit_every_update"):
        every: Any = node.operator
        graph.replace(replace(node, operator=replace(every, emit_every_update=True)))
        if graph.has(f"{name}-before"):  # row by row what those were
            emit_each_update(graph, f"{name}-before")
    elif isinstance(node, ProjectNode | FunctionNode):
        for given in node.inputs:
            emit_each_update(graph, given)
