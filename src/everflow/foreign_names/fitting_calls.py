"""Refuses calls whose arguments do not fit, with the user's line and what to write.

Python's TypeError has neither. `FittingClass` does that for a class, `fitting` for a function of a
module. Methods of the DSL, which know their graph, have `builder_call` of
`everflow.dsl.graph_builder`. Pure; it runs where somebody wrote the call.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from everflow.errors import TopologyError
from everflow.foreign_names import TellingClass, entry_of
from everflow.user_program import user_line

_Function = TypeVar("_Function", bound=Callable[..., Any])


def fitting(written: str) -> Callable[[_Function], _Function]:
    """For a function of a module that users call: ``written`` is how."""
    return lambda function: _checked(function, written.partition("(")[0], written)


class FittingClass(TellingClass):
    """The class of `Telling` classes whose calls, and those of whose public methods, are checked.
    Their ``_WRITTEN`` is an example, or one for each method, and one for the class by its name."""

    if not TYPE_CHECKING:  # a type checker knows the arguments

        def __new__(cls, name: str, bases: tuple[type, ...], members: dict[str, Any]) -> type:
            for called, member in list(members.items()):
                static = isinstance(member, staticmethod)
                if called.startswith("_") or not (static or inspect.isfunction(member)):
                    continue
                cure = _example(members["_WRITTEN"], called)
                checked = _checked(member.__func__ if static else member, f"{name}.{called}", cure)
                members[called] = staticmethod(checked) if static else checked
            return super().__new__(cls, name, bases, members)

        @property
        def __signature__(cls) -> inspect.Signature:
            """Of the class itself, for tooltips: else they show that of `__call__`."""
            if cls.__init__ is object.__init__:
                return inspect.Signature()
            own = inspect.signature(cls.__init__)
            return own.replace(parameters=list(own.parameters.values())[1:])

        def __call__(cls, *args: Any, **keywords: Any) -> Any:
            try:
                cls.__signature__.bind(*args, **keywords)
            except TypeError as error:
                cure = _example(cls._WRITTEN, cls.__name__)
                raise _misfit(cls.__name__, error, keywords, cure) from None
            return super().__call__(*args, **keywords)


def _example(written: str | Mapping[str, str], called: str) -> str:
    return written if isinstance(written, str) else written[called]


def _checked(function: _Function, name: str, cure: str) -> _Function:
    signature = inspect.signature(function)

    @functools.wraps(function)
    def call(*args: Any, **keywords: Any) -> Any:
        try:
            signature.bind(*args, **keywords)
        except TypeError as error:
            raise _misfit(name, error, keywords, cure) from None
        return function(*args, **keywords)

    return call  # type: ignore[return-value]


def _misfit(called: str, error: TypeError, keywords: Mapping[str, Any], cure: str) -> TopologyError:
    """``keywords`` may have one of Java's names: what it is here is better than an example."""
    owner = called.partition(".")[0]
    said = [
        f"{called} takes no {keyword}=; {entry}"
        for keyword in keywords
        if f"'{keyword}'" in str(error)
        and (entry := entry_of(owner, keyword) or entry_of(owner, f"with_{keyword}"))
    ]
    text = said[0] if said else f"{called}(...): {error}; write {cure}"
    return TopologyError(text, where=user_line())
