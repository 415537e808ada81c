"""Says of each node of a plan where its records are computed, and by which line. Pure.

A node is computed by ``Arrow`` (columns, in the Python worker), by ``Catalyst`` (Spark's generated
code, called from the worker) or by ``Python`` (a function, record by record).
"""

from __future__ import annotations

import inspect
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any, NamedTuple

from everflow.topology.graph import PREPARE, ColumnExpr
from everflow.topology.physical_plan import (
    ARROW,
    PYTHON,
    AskOp,
    Choice,
    ColumnsOp,
    FunctionOp,
    PhysicalPlan,
    PlanOp,
    PrintOp,
    Projection,
    SinkOp,
    StatefulOp,
    TakeOp,
    TimeOp,
    UnnestOp,
    columns_of,
    computed_by,
    why_not_arrow,
)
from everflow.topology.timestamps import TimeFunction

BY_RECORD = "by_record"
"""The kind of a serde of the user that takes one value at a time."""


class Road(NamedTuple):
    """Where a node runs: which of the roads, why, and the line of the program (``file:line``)."""

    node: str
    road: str
    why: str
    where: str | None


def roads(plan: PhysicalPlan) -> list[Road]:
    """The road of every node that does something, in the order in which they run."""
    found = [
        Road(source.node, *_serdes("reads", source.key_serde, source.value_serde), None)
        for source in plan.sources
    ]
    for op in (*plan.times, *plan.ops):
        found += _of_op(op)
    return list(dict.fromkeys(found))  # behind a merge a node is there once per path


def as_text(plan: PhysicalPlan, subtopology_of: Mapping[str, int]) -> str:
    """By sub-topology, one line per node: the road, the node, why, and the line of the program (see
    `roads`)."""
    listed = roads(plan)
    if not listed:
        return "nothing is computed\n"
    wide = max(len(road.node) for road in listed)
    lines = [f"computed in {summary(listed)}"]
    within: dict[int, list[Road]] = {}
    for road in listed:
        within.setdefault(subtopology_of[road.node], []).append(road)
    for number in sorted(within):
        lines.append(f"  Sub-topology {number} (tasks {number}_0, {number}_1, ...)")
        for road in within[number]:
            at = f"  ({road.where})" if road.where else ""
            lines.append(f"    {road.road:<9}  {road.node:<{wide}}  {road.why}{at}")
    return "\n".join(lines) + "\n"


def as_json(plan: PhysicalPlan, subtopology_of: Mapping[str, int]) -> str:
    """The same for programs: a list with an object for each node."""
    found = [{"sub_topology": subtopology_of[road.node], **road._asdict()} for road in roads(plan)]
    return json.dumps(found, indent=2)


def summary(listed: list[Road]) -> str:
    """How many nodes take which road, in a line: ``Arrow 4, Catalyst 2 nodes``."""
    counts = Counter(road.road for road in listed)
    return ", ".join(f"{name} {count}" for name, count in counts.most_common()) + " nodes"


def _of_projection(found: Projection | Choice) -> Road:
    columns = columns_of(found)
    why = ", ".join(_column_text(column) for column, _ in columns)
    if isinstance(found, Projection) and found.node.label == PREPARE:
        why = "prepares values"
    if isinstance(found, Choice):
        why = f"the {found.what} is {why}"
    reasons = list(dict.fromkeys(filter(None, (why_not_arrow(*one) for one in columns))))
    by = computed_by(found)
    if by == PYTHON:
        why, reasons = f"calls functions for columns of records: {why}", []
    return Road(found.node.name, by, "; ".join([why, *reasons]), found.node.where)


def _of_op(op: PlanOp | TimeOp) -> Iterator[Road]:
    match op:
        case ColumnsOp():
            yield from map(_of_projection, op.projections)
        case TimeOp(extractor=TimeFunction() as extractor):
            yield Road(op.name, PYTHON, f"calls {_texts(extractor.fn)} for times", op.where)
        case TimeOp(extractor=extractor) if extractor is not None:
            yield Road(op.name, ARROW, f"times by {type(extractor).__name__}", op.where)
        case FunctionOp():
            yield Road(op.name, PYTHON, f"calls {_texts(op.fn)} for each record", op.where)
        case AskOp():
            yield Road(op.name, PYTHON, f"calls {_texts(op.operator)} for entries", op.where)
        case TakeOp():
            answer = "true" if op.taken else "false"
            yield Road(op.name, ARROW, f"the records whose answer is {answer}", None)
        case UnnestOp():
            yield Road(op.name, ARROW, "a record for each element of a list", None)
        case PrintOp():
            yield Road(op.name, ARROW, f"prints {op.rows} rows of a batch at most", op.where)
        case StatefulOp():
            stores = "store " + ", ".join(
                spec.name for spec in (*op.stores, *op.reads, *op.looks_up)
            )
            called = _texts(op.operator)
            road, why = (PYTHON, f"{stores}: calls {called}") if called else (ARROW, stores)
            yield Road(op.name, road, why, op.where)
        case SinkOp():
            if callable(op.topic):
                why = f"calls {_texts(op.topic)} for each record's topic"
                yield Road(op.name, PYTHON, why, op.where)
            if callable(op.partitioner):
                why = f"calls {_texts(op.partitioner)} for each record's partition"
                yield Road(op.name, PYTHON, why, op.where)
            yield Road(op.name, *_serdes("writes", op.key_serde, op.value_serde), op.where)


def _serdes(verb: str, key: Any, value: Any) -> tuple[str, str]:
    """Python where a serde of the user is called for each record."""
    own = [serde for serde in (key, value) if serde.kind == BY_RECORD]
    if own:
        return PYTHON, f"{verb} by {', '.join(map(repr, own))}, record by record"
    return ARROW, f"{verb} {key!r}, {value!r}"


def _column_text(given: ColumnExpr) -> str:
    text = str(given.column)
    return text.removeprefix("Column<'").removesuffix("'>")


def _functions(found: Any) -> Iterator[Callable[..., Any]]:
    """The user's functions in a node's function or operator, at any depth of our records."""
    if is_dataclass(found) and not isinstance(found, type):
        for field in fields(found):
            if not field.name.endswith("serde"):
                yield from _functions(getattr(found, field.name))
    elif callable(found) and not isinstance(found, type):
        yield found


def _texts(found: Any) -> str:
    return ", ".join(map(_function_text, _functions(found)))


def _function_text(fn: Callable[..., Any]) -> str:
    """Name and, where it is known, file and line."""
    name = getattr(fn, "__qualname__", type(fn).__qualname__)
    code = getattr(inspect.unwrap(fn), "__code__", None)
    return name if code is None else f"{name} ({code.co_filename}:{code.co_firstlineno})"
