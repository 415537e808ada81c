"""Names of Kafka Streams' Java API and of PySpark, and what each is called here.

`Telling` makes a class answer an unknown name with it, `telling` a module; the data, ``names.tsv``,
is read when a name was wrong. `FittingClass` and `fitting` refuse calls whose arguments do not fit.
May import layer 0; runs where somebody wrote the name.
"""

from __future__ import annotations

import difflib
import functools
import importlib.util
import inspect
import pkgutil
import sys
from abc import ABCMeta
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from types import FrameType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypeVar

from everflow.errors import (
    TopologyError,
    UnknownImportError,
    UnknownNameError,
    naming_the_line,
)
from everflow.logs import some
from everflow.user_program import user_line

KAFKA_STREAMS, PYSPARK = "Kafka Streams", "PySpark"
"""The other APIs, as the data names them."""


class ForeignName(NamedTuple):
    """What a name of another API is here.

    ``here``: the attribute of the same class that does it, None where there is none. ``advice``:
    with ``here`` one expression as an example, else a sentence: what to do instead, or that it is
    not there yet.
    """

    here: str | None
    advice: str

    def __str__(self) -> str:
        return (
            self.advice
            if self.here is None
            else f"it is {self.here} here, for example {self.advice}"
        )


Names: TypeAlias = Mapping[str, ForeignName]


@cache
def names_of(api: str) -> Mapping[str, Names]:
    """Class or module of ours -> name in ``api`` -> what it is here, in the order of the data."""
    data = pkgutil.get_data(__name__, "names.tsv")
    assert data is not None  # the loader of an installed package reads its files
    found: dict[str, dict[str, ForeignName]] = {}
    for line in data.decode().splitlines()[1:]:
        theirs, owner, name, here, advice = line.split("\t")
        if theirs == api:
            found.setdefault(owner, {})[name] = ForeignName(here or None, advice)
    return found


@cache
def foreign_names() -> Mapping[str, Names]:
    """Both APIs as one; where both know a name, Kafka Streams' meaning holds."""
    java, spark = names_of(KAFKA_STREAMS), names_of(PYSPARK)
    owners = dict.fromkeys((*java, *spark))
    return {owner: {**spark.get(owner, {}), **java.get(owner, {})} for owner in owners}


_OWN: Mapping[str, tuple[str, ...]] = {
    "TimeWindows": ("expand", "is_open"),
    "Topology": ("before", "node", "repartition_topics"),
    "StreamsConfig": (
        *("admin", "assignment", "batches", "consumer", "fields_set", "main_consumer"),
        *("producer", "topic"),
    ),
    "InputTopic": ("rewind", "written"),
    "agg": ("precision_of", "require_comparable", "result_type"),
}
OWN = frozenset(f"{owner}.{name}" for owner, names in _OWN.items() for name in names)
"""Names of public classes and modules that only everflow's own modules call; errors do not offer
them."""


def explain(owner: str, name: str, known: Iterable[str]) -> str:
    entry = entry_of(owner, name)
    if entry is not None:
        return f"{owner} has no {name}: {entry}"
    public = [
        other for other in known if not other.startswith("_") and f"{owner}.{other}" not in OWN
    ]
    here = spelled_here(name, public)
    if here is not None:
        return f"{owner} has no {name}: it is {here} here"
    spelled = {_plain(other): other for other in public}
    near = difflib.get_close_matches(_plain(name), spelled, n=1, cutoff=0.6)
    hint = f"did you mean {spelled[near[0]]}?" if near else f"it has {some(sorted(public), 12)}"
    return f"{owner} has no {name}; {hint}"


def spelled_here(name: str, known: Iterable[str]) -> str | None:
    """The name among ``known`` that is ``name`` in snake_case (``fetchAll``: ``fetch_all``), None
    if there is none."""
    return next((other for other in known if _plain(other) == _plain(name)), None)


def entry_of(owner: str, name: str) -> ForeignName | None:
    """The entry for ``name`` of another API on ``owner``, also in snake_case or other capitals."""
    names = foreign_names().get(owner, {})
    if name in names:
        return names[name]
    return next((entry for other, entry in names.items() if _plain(other) == _plain(name)), None)


def _plain(name: str) -> str:
    return name.replace("_", "").replace(".", "").lower()


def _unknown(owner: str, name: str, known: Iterable[str]) -> AttributeError:
    """Python asks for names of its own (``__copy__``, IPython's, pickle's), and for what a getter
    could not give."""
    known = list(known)
    if name.startswith("_") or name in known:
        return AttributeError(f"{owner!r} object has no attribute {name!r}")
    return UnknownNameError(explain(owner, name, known), name=name, where=user_line())


class TellingClass(ABCMeta):
    if not TYPE_CHECKING:  # a type checker knows the names

        def __getattr__(cls, name: str) -> Any:
            raise _unknown(cls.__name__, name, dir(cls))


class Telling(metaclass=TellingClass):
    """A class whose objects, and itself, tell by UnknownNameError what an unknown name is here."""

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            raise _unknown(type(self).__name__, name, dir(type(self)))


def telling(module: str, names: Callable[[], Iterable[str]]) -> Callable[[str], Any]:
    """A module's ``__getattr__``: the same for ``import module; module.Name`` and ``from module
    import Name``.

    ``names`` gives the module's public names, when they are needed.
    """

    def __getattr__(name: str) -> Any:
        owner = module.rpartition(".")[2]
        if (
            _in_import_statement()
            and not name.startswith("_")
            and importlib.util.find_spec(f"{module}.{name}") is None
        ):
            # An AttributeError would become Python's own "cannot import name", without a word of
            # ours.
            raise UnknownImportError(explain(owner, name, names()), where=user_line())
        raise _unknown(owner, name, names())

    return __getattr__


def _in_import_statement() -> bool:
    """True inside ``from module import ...``, which looks names up in a function of importlib's."""
    caller: FrameType | None = sys._getframe(1)
    while caller is not None and caller.f_code.co_name == "__getattr__":
        caller = caller.f_back
    return caller is not None and caller.f_code.co_name == "_handle_fromlist"


_Function = TypeVar("_Function", bound=Callable[..., Any])


def fitting(written: str) -> Callable[[_Function], _Function]:
    """Check calls of a module's function; ``written`` is an example of a call."""
    return lambda function: _checked(function, written.partition("(")[0], written)


class FittingClass(TellingClass):
    """The class of `Telling` classes whose calls, and those of whose public methods, are checked.
    Their ``_WRITTEN`` is an example, or one for each method, and one for the class by its name.
    ``_FOR_OPERATORS``: methods that are called for each batch, unchecked."""

    if not TYPE_CHECKING:  # a type checker knows the arguments

        def __new__(
            cls,
            name: str,
            bases: tuple[type, ...],
            members: dict[str, Any],
        ) -> type:
            for called, member in list(members.items()):
                static = isinstance(member, staticmethod)
                if called.startswith("_") or not (static or inspect.isfunction(member)):
                    continue
                if called in members.get("_FOR_OPERATORS", ()):
                    continue
                cure = _example(members["_WRITTEN"], called)
                checked = _checked(member.__func__ if static else member, f"{name}.{called}", cure)
                members[called] = staticmethod(checked) if static else checked
            return super().__new__(cls, name, bases, members)

        @property
        def __signature__(cls) -> inspect.Signature:
            """The signature of the class, for tooltips, which would show that of `__call__`."""
            if cls.__init__ is object.__init__:
                return inspect.Signature()
            own = inspect.signature(cls.__init__)
            return own.replace(parameters=list(own.parameters.values())[1:])

        @naming_the_line
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

    return naming_the_line(call)  # type: ignore[return-value]


def _misfit(
    called: str,
    error: TypeError,
    keywords: Mapping[str, Any],
    cure: str,
) -> TopologyError:
    """``keywords`` may have one of Java's names: what it is here is better than an example."""
    owner = called.partition(".")[0]
    said = [
        f"{called} takes no {keyword}=; {entry}"
        for keyword in keywords
        if f"'{keyword}'" in str(error)
        and (entry := entry_of(owner, keyword) or entry_of(owner, f"with_{keyword}"))
    ]
    text = said[0] if said else f"{called}(...): {error}; write {cure}"
    return TopologyError(text)
