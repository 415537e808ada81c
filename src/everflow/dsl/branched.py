"""Splits a stream: a branch takes what its predicate, and no earlier one, takes. NULL is false.

All calls belong to the thread that builds the topology; TopologyError, with the user's line and the
cure, for what cannot work.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable
from typing import Any

from pyspark.sql import Column

from everflow.dsl.builder_call import builder_call
from everflow.dsl.expressions import Expression, is_column, is_true, predicate
from everflow.dsl.functions import FirstOf, key_value_function
from everflow.dsl.graph_builder import GraphBuilder, check_name
from everflow.dsl.kstream import KStream
from everflow.errors import TopologyError, UnknownBranchError
from everflow.foreign_names import Telling
from everflow.location import user_line
from everflow.spark.expressions import analyse
from everflow.topology.graph import PREPARE, FunctionNode, ProjectNode


class Branches(dict[str, KStream]):
    """Branches by name. One that is not there is an UnknownBranchError, which is a KeyError too."""

    def __missing__(self, name: object) -> KStream:
        near = difflib.get_close_matches(str(name), self, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise UnknownBranchError(
            f"no branch is called {name!r}; there are {', '.join(map(repr, self))}{hint}",
            where=user_line(),
        )


class BranchedKStream(Telling):
    """What ``KStream.split`` returns; collects branches until ``default_branch`` or
    ``no_default_branch``.

    Branches are keyed by their ``name``, unnamed ones by their number from 1, an unnamed default by
    ``"0"``. Python predicates run once per branch behind them, so they must not have effects.
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
        self._columns: list[Column] = []
        self._functions: list[Callable[..., Any]] = []
        self._branches = Branches()

    @property
    def graph(self) -> GraphBuilder:
        """The graph that is built."""
        return self._stream.graph

    @builder_call
    def branch(self, condition: Expression, *, name: str | None = None) -> BranchedKStream:
        """Add a branch for the records that no earlier branch took and for which ``condition`` is
        true."""
        where = user_line()
        key = name or str(len(self._branches) + 1)
        if is_column(condition, "branch", where):
            predicate(condition, self._stream.edge, where)
            self._add(key, where, own_column=condition)
            self._columns.append(condition)
        else:
            function = key_value_function(condition, "branch", where)
            self._add(key, where, own_function=function)
            self._functions.append(function)
        return self

    @builder_call
    def default_branch(self, *, name: str | None = None) -> dict[str, KStream]:
        """The branches, with one for the records that no branch took."""
        self._add(name or "0", user_line())
        return self._branches

    @builder_call
    def no_default_branch(self) -> dict[str, KStream]:
        """The branches; records that no branch took are dropped."""
        if not self._branches:
            raise TopologyError(
                "split() without a branch; add .branch(predicate, name=...)", where=user_line()
            )
        return self._branches

    def _add(
        self,
        key: str,
        where: str | None,
        own_column: Column | None = None,
        own_function: Callable[..., Any] | None = None,
    ) -> None:
        graph, edge = self.graph, self._stream.edge
        check_name("branch", key, where)
        if key in self._branches:
            raise TopologyError(
                f"two branches are called {key!r}; give one of them another name", where=where
            )
        graph.burn(1)
        child, source = f"{self._name}{key}", self._splitter
        condition = self._condition(own_column)
        uses_functions = own_function is not None or bool(self._functions)
        if condition is not None or not uses_functions:
            keep = None if condition is None else analyse(condition, edge.type, where)
            name, label = (
                (f"{child}-columns", PREPARE) if uses_functions else (child, "BRANCHCHILD")
            )
            source = graph.add(
                ProjectNode(
                    name=name,
                    inputs=(source,),
                    out=edge.type,
                    where=where,
                    label=label,
                    predicate=keep,
                )
            )
        if uses_functions:
            first = FirstOf(own_function, tuple(self._functions))
            source = graph.add(
                FunctionNode(child, (source,), edge.type, where, "BRANCHCHILD", "filter", first)
            )
        self._branches[key] = self._stream.derived(source, edge)

    def _condition(self, own: Column | None) -> Column | None:
        condition = None if own is None else is_true(own)
        for earlier in self._columns:
            refused = ~is_true(earlier)
            condition = refused if condition is None else condition & refused
        return condition
