"""Wraps each call of the DSL: errors get the user's line, a failure leaves nothing behind."""

from __future__ import annotations

import difflib
import functools
import inspect
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from everflow.dsl.graph_builder import GraphBuilder
from everflow.errors import TopologyError
from everflow.foreign_names import entry_of
from everflow.location import user_line

OTHER_KEYWORDS = {
    "materialized": "store",
    "store_name": "store",
    "named": "name",
    "key_serde": "key",
    "value_serde": "value",
    "keySerde": "key",
    "valueSerde": "value",
    "consumed": "key",
    "produced": "key",
    "return_type": "returns",
    "returnType": "returns",
    "num_partitions": "partitions",
    "numPartitions": "partitions",
}
"""What elsewhere is a keyword, or a class that carries one, and the nearest keyword here."""


class _Builds(Protocol):
    @property
    def graph(self) -> GraphBuilder: ...


_Method = TypeVar("_Method", bound=Callable[..., Any])


def builder_call(method: _Method) -> _Method:
    """A method of a class with ``graph``. It takes effect as a whole, or raises and the graph is as
    before: names, stores, topics and numbers, so that the corrected call gives what it would have
    given at first. TopologyError for arguments that do not fit."""
    signature = inspect.signature(method)

    @functools.wraps(method)
    def call(self: _Builds, *args: Any, **keywords: Any) -> Any:
        try:
            signature.bind(self, *args, **keywords)
        except TypeError:
            said = _misfit(type(self).__name__, method.__name__, signature, args, keywords)
            raise TopologyError(said, where=user_line()) from None
        with self.graph.undone_on_error():
            return method(self, *args, **keywords)

    return call  # type: ignore[return-value]


def _shown(given: object) -> str:
    return f"the function {given.__name__}" if inspect.isfunction(given) else f"{given!r:.100}"


def _misfit(
    owner: str,
    name: str,
    signature: inspect.Signature,
    args: tuple[Any, ...],
    keywords: dict[str, Any],
) -> str:
    """Why the arguments do not fit, and how to write them."""
    parameters = list(signature.parameters.values())[1:]
    by_place = [
        p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
    ]
    by_name = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY]
    known = [*by_place, *by_name]
    for keyword in keywords:
        if keyword not in known:
            near = OTHER_KEYWORDS.get(keyword, "")
            theirs = None if near in known else entry_of("everflow", keyword)
            if theirs is not None:
                return f"{name} takes no {keyword}=; {theirs}"
            close = [near] if near in known else difflib.get_close_matches(keyword, known, n=1)
            hint = (
                f"did you mean {close[0]}=?" if close else f"it takes {_listed(by_place, by_name)}"
            )
            return f"{name} takes no {keyword}=; {hint}"
    if len(args) > len(by_place):
        extra = args[len(by_place)]
        functions = [
            p.name for p in parameters if p.name in by_name and "Callable" in str(p.annotation)
        ]
        given = sum(map(callable, args[len(by_place) :]))
        if callable(extra) and given <= len(functions):
            named = ", ".join(f"{function}=..." for function in functions[:given])
            return (
                f"{name} takes {_listed(by_place, by_name)}; functions are given by name: "
                f"{name}({named})"
            )
        example = entry_of(owner, name)
        like = f", as in {example.advice}" if example is not None and example.here == name else ""
        return (
            f"{name} takes {_listed(by_place, by_name)}; {_shown(extra)} is one too many: give "
            f"it by name{like}"
        )
    doubled = [keyword for keyword in keywords if keyword in by_place[: len(args)]]
    if doubled:
        return f"{name}: {doubled[0]} is given twice, by place and by name"
    return f"{name} takes {_listed(by_place, by_name)}; {by_place[len(args)]} is missing"


def _listed(by_place: list[str], by_name: list[str]) -> str:
    return ", ".join([*by_place, *(f"{name}=" for name in by_name)]) or "no arguments"
