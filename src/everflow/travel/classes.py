"""How classes of the program travel: made bare first, then filled with what they hold.

Creating a class runs code (a metaclass, ``__init_subclass__``, ``__set_name__``, members of an
enum), and what that did travels by itself. So none of the program's is run again, and a class is
there once, whatever is reached from it. Methods come before all else: an instance that is a key is
hashed while it is loaded, and so needs its class before the variables that its methods use.
"""

from __future__ import annotations

import copyreg
import functools
import pickle
import types
import typing
from abc import ABCMeta
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from enum import Enum, EnumMeta
from types import FunctionType, MemberDescriptorType, MethodDescriptorType, WrapperDescriptorType
from typing import Any

from pyspark.cloudpickle import cloudpickle as untyped

cloudpickle: Any = untyped
_METHODS = (
    FunctionType,
    MethodDescriptorType,
    WrapperDescriptorType,
    classmethod,
    functools.cached_property,
    property,
    staticmethod,
    type(None),  # __hash__
)


def making(
    cls: type, travels: Callable[[type], bool], bare: Callable[[type], object]
) -> tuple[Any, ...]:
    """How the other side makes ``cls`` without what it holds. ``bare(other)`` stands for another
    class, made so too."""

    def reference(base: Any) -> Any:
        return bare(base) if isinstance(base, type) and travels(base) else base

    meta: Any = type(cls)
    # An installed metaclass has something to do: pydantic's, ABCMeta. An enum's would make the
    # members anew, and that of typed dictionaries refuses what it made: they have dict as their
    # base.
    anew = issubclass(meta, EnumMeta) or meta.__name__ == "_TypedDictMeta"
    maker = type if anew else next(one for one in meta.__mro__ if not travels(one))
    names: dict[str, Any] = {
        **cloudpickle._class_getnewargs(cls)[3],
        "__qualname__": cls.__qualname__,
    }
    if "__slots__" in vars(cls):
        slots = [
            name for name, value in vars(cls).items() if isinstance(value, MemberDescriptorType)
        ]
        names["__slots__"] = (
            *slots,
            *(name for name in ("__dict__", "__weakref__") if name in vars(cls)),
        )
    bases = cls.__bases__
    if original := vars(cls).get("__orig_bases__"):
        if maker in (type, ABCMeta):
            names[
                "__orig_bases__"
            ] = ()  # Generic wants to see some; they may hold classes that hold this one
        else:
            bases = original  # pydantic asks for them
    registering = [
        base for base in cls.__mro__[1:] if travels(base) and "__init_subclass__" in vars(base)
    ]
    return (
        reference(meta),
        maker,
        cls.__name__,
        tuple(map(reference, bases)),
        names,
        tuple(map(reference, registering)),
    )


def make(
    meta: type,
    maker: Any,
    name: str,
    bases: tuple[Any, ...],
    names: dict[str, Any],
    registering: tuple[type, ...],
) -> type:
    """The class that `making` means."""
    resolved = types.resolve_bases(bases)
    if resolved != bases:
        names = {**names, "__orig_bases__": bases}
    space = maker.__prepare__(name, resolved)
    space.update(names)
    with _silent(registering):
        made: type = maker.__new__(meta, name, resolved, space)
        maker.__init__(made, name, resolved, space)
    return made


@contextmanager
def _silent(classes: Iterable[type]) -> Iterator[None]:
    hooks = [
        (cls, vars(cls)["__init_subclass__"]) for cls in classes if "__init_subclass__" in vars(cls)
    ]
    for cls, _ in hooks:
        _plain(cls, "__delattr__")(cls, "__init_subclass__")
    try:
        yield
    finally:
        for cls, hook in hooks:
            _plain(cls, "__setattr__")(cls, "__init_subclass__", hook)


def _plain(cls: type, operation: str) -> Callable[..., None]:
    """The metaclass's own way to change ``cls``, without what Python code makes of it: an enum
    refuses new members."""
    meta: Any = type(cls)
    ways = (vars(one).get(operation) for one in meta.__mro__)
    return next(way for way in ways if isinstance(way, WrapperDescriptorType))


def contents(cls: type) -> tuple[dict[str, Any], dict[str, Any]]:
    """What ``cls`` holds: methods and the like, and all else."""
    held = cloudpickle._class_getstate(cls)[0]
    made = [
        name
        for name, value in held.items()
        if isinstance(value, MemberDescriptorType) and value.__objclass__ is cls
    ]
    methods = {
        name: value
        for name, value in held.items()
        if isinstance(value, _METHODS) or name == "__parameters__"
    }
    return methods, {
        name: value for name, value in held.items() if name not in methods and name not in made
    }


def fill(cls: type, held: Mapping[str, Any]) -> None:
    """Give ``cls`` a part of its `contents`."""
    change = _plain(cls, "__setattr__")
    for name, value in held.items():
        if name != "_abc_impl":
            change(cls, name, value)
    if "__firstlineno__" in held:
        # Python 3.13 forgets it when __module__ is set.
        change(cls, "__firstlineno__", held["__firstlineno__"])
    for subclass in held.get("_abc_impl", ()):
        ABCMeta.register(typing.cast("ABCMeta", cls), subclass)


# --- instances ------------------------------------------------------------------------------------


def making_instance(obj: object, travels: Callable[[type], bool]) -> Any:
    """How ``obj`` is pickled while its class is still filled (a singleton in a variable of the
    class): without the program's ``__new__``, which may use what is not there yet."""
    found = obj.__reduce_ex__(pickle.HIGHEST_PROTOCOL)
    if not isinstance(found, tuple) or found[0] is not copyreg.__newobj__:  # type: ignore[attr-defined]
        return found
    cls, *arguments = found[1]
    base = _installed_base(cls, travels)
    return make_instance, (cls, base, () if base is object else tuple(arguments)), *found[2:]


def making_member(member: Enum, travels: Callable[[type], bool]) -> tuple[Any, ...]:
    """How the other side makes a member of an enum without its attributes, and those: neither the
    program's ``__new__`` nor its ``__init__`` is called again, and no member is looked up by its
    value."""
    cls = type(member)
    data = _installed_base(cls, travels)
    if hasattr(data, "__getnewargs__"):
        arguments = data.__getnewargs__(member)
    else:
        arguments = data.__reduce__(member)[1] if data.__reduce__ is not object.__reduce__ else ()
    names = copyreg._slotnames(cls)  # type: ignore[attr-defined]
    slots = {name: getattr(member, name) for name in names if hasattr(member, name)}
    return (cls, data, arguments), (dict(vars(member)), slots)


def _installed_base(cls: type, travels: Callable[[type], bool]) -> Any:
    return next(base for base in cls.__mro__ if not travels(base) and not issubclass(base, Enum))


def make_instance(cls: type, base: Any, arguments: tuple[Any, ...]) -> Any:
    """An instance without its attributes, made by an installed base of its class."""
    return base.__new__(cls, *arguments)


def fill_member(member: Any, state: tuple[dict[str, Any], dict[str, Any]]) -> None:
    """Give a member of an enum its attributes."""
    attributes, slots = state
    vars(member).update(attributes)
    for name, value in slots.items():
        object.__setattr__(member, name, value)
