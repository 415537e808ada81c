"""Splits a stream: a branch takes what its predicate, and no earlier one, takes. NULL is false.

All calls belong to the thread that builds the topology; TopologyError, with the user's line and the
cure, for what cannot work.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable
from typing import Any

import pyarrow as pa
from pyspark.sql import Column
from pyspark.sql import functions as F

from everflow.dsl.builder_call import builder_call
from everflow.dsl.expressions import Expression, is_column, is_true, predicate
from everflow.dsl.functions import key_value_function
from everflow.dsl.graph_builder import GraphBuilder, check_name
from everflow.dsl.kstream import KStream
from everflow.errors import TopologyError, UnknownBranchError
from everflow.foreign_names import Telling
from everflow.location import user_line
from everflow.spark.expressions import analyse
from everflow.topology.graph import (
    PREPARE,
    EdgeType,
    FunctionNode,
    ProjectNode,
    TakeNode,
    beside,
)


class Branches(dict[str, KStream]):
    """Branches by name. One that is not there is an UnknownBranchError, which is a KeyError too.

    ``prefix``: the name of their split, which stands before theirs in Kafka Streams' keys."""

    def __init__(self, prefix: str) -> None:
        super().__init__()
        self._prefix = prefix

    def __missing__(self, name: object) -> KStream:
        alone = str(name).removeprefix(self._prefix)
        near = [alone] if alone in self else difflib.get_close_matches(str(name), self, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise UnknownBranchError(
            f"no branch is called {name!r}; there are {', '.join(map(repr, self))}{hint}",
            where=user_line(),
        )


class BranchedKStream(Telling):
    """What ``KStream.split`` returns; collects branches until ``default_branch`` or
    ``no_default_branch``.

    Branches are keyed by their ``name``, unnamed ones by their number from 1, an unnamed default by
    ``"0"``, without the name of the split, which only their nodes have in front. A Python
    predicate, or one whose Column calls Python, is asked once about a record, and only if no branch
    before took it.
    """

    def __init__(self, stream: KStream, name: str | None, where: str | None) -> None:
        self._stream, self._where = stream, where
        self._name = stream.graph.node_name(name, "KSTREAM-BRANCH-", where)
        self._splitter = stream.graph.add(
            ProjectNode(
                name=self._name,
                inputs=(stream.node,),
                out=stream.edge.type,
                where=where,
                label="BRANCH",
            )
        )
        self._rest = self._splitter
        """The node behind which are the records that no branch before ``_columns`` took."""
        self._columns: list[Column] = []
        """Predicates, of branches of `_rest`, that may be computed again for each later one."""
        self._branches = Branches(self._name)

    @property
    def graph(self) -> GraphBuilder:
        """The graph that is built."""
        return self._stream.graph

    @builder_call
    def branch(self, condition: Expression, *, name: str | None = None) -> BranchedKStream:
        """Add a branch for the records that no earlier branch took and for which ``condition`` is
        true. Headers stay."""
        where = user_line()
        key = name or str(len(self._branches) + 1)
        child = self._claimed(key, where)
        if not is_column(condition, "branch", where):
            self._ask_once(child, key_value_function(condition, "branch", where), where)
        elif predicate(condition, self._stream.edge, where).calls:
            self._ask_once(child, condition, where)
        else:
            self._project(child, self._condition(condition), where)
            self._columns.append(condition)
        self._branches[key] = self._stream.derived(child, self._stream.edge)
        return self

    @builder_call
    def default_branch(self, *, name: str | None = None) -> dict[str, KStream]:
        """The branches, with one for the records that no branch took. Headers stay."""
        where = user_line()
        key = name or "0"
        child = self._claimed(key, where)
        self._project(child, self._condition(), where)
        self._branches[key] = self._stream.derived(child, self._stream.edge)
        return self._branches

    @builder_call
    def no_default_branch(self) -> dict[str, KStream]:
        """The branches; records that no branch took are dropped."""
        if not self._branches:
            raise TopologyError(
                "split() without a branch; add .branch(predicate, name=...)", where=user_line()
            )
        return self._branches

    def _claimed(self, key: str, where: str | None) -> str:
        """The name of the node of the branch ``key``."""
        check_name("branch", key, where)
        if key in self._branches:
            raise TopologyError(
                f"two branches are called {key!r}; give one of them another name", where=where
            )
        self.graph.burn(1)
        return f"{self._name}{key}"

    def _project(
        self, name: str, condition: Column | None, where: str | None, label: str = "BRANCHCHILD"
    ) -> str:
        """A node with those of the rest for which ``condition`` is true (None = all)."""
        edge = self._stream.edge
        return self.graph.add(
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
        graph, edge = self.graph, self._stream.edge.type
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
