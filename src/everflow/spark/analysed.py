"""Reads an analysed plan of Spark in one call, as the JSON that Spark makes of it.

Asking the JVM node by node costs a round trip for each, some milliseconds a Column.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple


class ExpressionNode(NamedTuple):
    """An expression: the name of its class in Catalyst, the fields that Spark ``says``, and what it
    is made of."""

    kind: str
    says: Mapping[str, Any]
    children: tuple[ExpressionNode, ...]

    def walk(self) -> Iterator[ExpressionNode]:
        """It and all below it, each before its children."""
        yield self
        for child in self.children:
            yield from child.walk()


class AnalysedPlan(NamedTuple):
    """``operators``: the names of the plan's nodes, the last one first. ``expressions`` of all of
    them; of a selection its Columns, in order."""

    operators: tuple[str, ...]
    expressions: tuple[ExpressionNode, ...]

    @staticmethod
    def of(plan: str) -> AnalysedPlan:
        """Of a logical plan as Spark's JSON."""
        nodes = json.loads(plan)
        return AnalysedPlan(
            tuple(_class_name(node) for node in nodes),
            tuple(_tree(iter(each)) for node in nodes for each in _listed(node)),
        )

    def walk(self) -> Iterator[ExpressionNode]:
        """All expressions."""
        for expression in self.expressions:
            yield from expression.walk()


def reads_column(node: ExpressionNode) -> bool:
    """Whether it reads one of the columns in sight, which are called as `column_read` says."""
    return node.kind == "AttributeReference"


def column_read(node: ExpressionNode) -> str:
    """The name of the column that it reads. Spark resolves names in any case (``F.col("KEY")``,
    unless ``spark.sql.caseSensitive`` says otherwise), and says them as the program wrote them; all
    columns in sight have small letters."""
    return str(node.says["name"]).lower()


def _listed(node: Mapping[str, Any]) -> Iterator[list[Mapping[str, Any]]]:
    """A plan node's expressions: each a list of nodes, each with its class. What a leaf gives is
    none of them."""
    for name, value in node.items():
        if name == "output" or not isinstance(value, list):
            continue
        for found in [value, *value]:
            if isinstance(found, list) and found and "class" in _mapping(found[0]):
                yield found


def _mapping(found: object) -> Mapping[str, Any]:
    return found if isinstance(found, dict) else {}


def _tree(nodes: Iterator[Mapping[str, Any]]) -> ExpressionNode:
    says = next(nodes)
    children = tuple(_tree(nodes) for _ in range(says["num-children"]))
    return ExpressionNode(_class_name(says), says, children)


def _class_name(node: Mapping[str, Any]) -> str:
    return str(node["class"]).rpartition(".")[2].rstrip("$")
