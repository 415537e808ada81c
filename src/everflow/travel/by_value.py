"""Pickles the user's program by value: PySpark's cloudpickle; some modules keep their identity.

cloudpickle alone pickles functions of a module by their name; asked for values, it gives every
function that is not pickled in the same breath globals of its own, sends whole modules or none, and
two closures over one variable get two variables. Here a module of the program becomes a module
again on the other side, which holds what functions use of it; each object exists once.
"""

from __future__ import annotations

import copyreg
import dataclasses
import dis
import functools
import importlib
import importlib.util
import io
import os
import pickle
import sys
import threading
import types
import typing
import weakref
from abc import ABCMeta
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from enum import Enum, EnumMeta
from types import (
    CellType,
    CodeType,
    FunctionType,
    MemberDescriptorType,
    MethodDescriptorType,
    ModuleType,
    WrapperDescriptorType,
)
from typing import Any

from pyspark.cloudpickle import cloudpickle as untyped

from everflow.travel.own_code import MAIN, is_own

cloudpickle: Any = untyped
_MODULE_FACTS = ("__name__", "__package__", "__file__", "__path__", "__doc__")
_ATTRIBUTE_OPS = frozenset({"LOAD_ATTR", "LOAD_METHOD", "IMPORT_FROM"})
_LRU_CACHE = type(functools.lru_cache(lambda: None))


class ByValuePickler(cloudpickle.Pickler):  # type: ignore[misc]
    """Pickles the user's program by value, all else by reference. Raises what an object raises."""

    def __init__(self, file: Any, buffer_callback: Any = None) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL, buffer_callback)
        self._own: dict[str, bool] = {}
        self._spaces: dict[int, dict[str, Any]] = {}
        self._bares: dict[int, _Bare] = {}
        self._begun: set[int] = set()
        self._open: set[int] = set()
        self._later: list[list[tuple[Any, ...]]] = []

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, FunctionType):
            return self._function(obj) if self._travels(obj) else NotImplemented
        if isinstance(obj, ModuleType):
            return self._module(obj) if self._is_own(obj) else NotImplemented
        if isinstance(obj, type):
            return self._class(obj) if self._is_made(obj) else super().reducer_override(obj)
        if isinstance(obj, _Bare):
            return make, making(obj.cls, self._is_made, self._bare)
        if isinstance(obj, _Part):
            return obj.reduce()
        if isinstance(obj, Enum) and self._is_made(type(obj)):
            arguments, state = making_member(obj, self._is_made)
            return make_instance, arguments, state, None, None, fill_member
        if isinstance(obj, CellType):
            return self._filled_later(
                cloudpickle._make_empty_cell, (), tuple(_contents((obj,))), _fill_cell, obj
            )
        if isinstance(obj, _LRU_CACHE):
            if self._travels(obj):
                return _cached, (obj.__wrapped__, obj.cache_parameters())
            return NotImplemented
        if id(type(obj)) in self._open and type(obj) not in self.dispatch_table:
            return making_instance(obj, self._is_made)
        special = _SPECIAL.get(type(obj))
        return NotImplemented if special is None else special(obj)

    def _is_own(self, module: ModuleType) -> bool:
        name = module.__name__
        if name not in self._own:
            self._own[name] = is_own(module)
        return self._own[name]

    def _travels(self, obj: Any) -> bool:
        """By value: what a module of the program holds, and what none holds under its own name."""
        found = cloudpickle._lookup_module_and_qualname(obj)
        return found is None or self._is_own(found[0])

    def _function(self, fn: FunctionType) -> Any:
        state, slots = cloudpickle._function_getstate(fn)
        space = self._space(fn)
        used: list[tuple[ModuleType, dict[str, Any]]] = []
        if isinstance(space, ModuleType) and not self._is_own(space):
            # A closure of an installed module: its globals are that module's, there as here.
            slots["__globals__"] = {}
        else:
            used = list(self._used(fn, slots["__globals__"]).items())
        slots["__closure__"] = None  # the cells are part of the function from its beginning
        in_module = isinstance(space, ModuleType) and vars(space).get(fn.__name__) is fn
        name = fn.__name__ if in_module else None
        made = fn.__code__, space, fn.__closure__
        return self._filled_later(
            _make_function, made, (state, slots, used, name), _fill_function, fn
        )

    def _filled_later(
        self, make: Any, args: tuple[Any, ...], state: tuple[Any, ...], fill: Any, obj: Any
    ) -> Any:
        """``obj`` is made and filled; among a class's methods filled when all of them are made."""
        if not self._later:
            return make, args, state, None, None, fill
        self._later[-1].append((fill, obj, state))
        return make, args

    def _space(self, fn: FunctionType) -> ModuleType | dict[str, Any]:
        """The module whose globals ``fn`` has, or a dict that all functions with these share."""
        module = sys.modules.get(fn.__globals__.get("__name__", ""))
        if isinstance(module, ModuleType) and vars(module) is fn.__globals__:
            return module
        facts = {name: fn.__globals__[name] for name in _MODULE_FACTS if name in fn.__globals__}
        return self._spaces.setdefault(id(fn.__globals__), facts)

    def _used(
        self,
        fn: FunctionType,
        names: Mapping[str, Any],
    ) -> dict[ModuleType, dict[str, Any]]:
        """Modules of the program that ``fn`` reads attributes of, with those: by names alone."""
        attributes, imported = _attributes(fn.__code__)
        reached = [
            *names.values(),
            *_contents(fn.__closure__ or ()),
            *_imported(imported, fn.__globals__),
        ]
        used: dict[ModuleType, dict[str, Any]] = {}
        while reached:
            module = reached.pop()
            if isinstance(module, ModuleType) and module not in used and self._is_own(module):
                used[module] = {
                    name: vars(module)[name] for name in sorted(attributes) if name in vars(module)
                }
                reached += used[module].values()
        return used

    def _module(self, module: ModuleType) -> Any:
        parent = sys.modules.get(module.__name__.rpartition(".")[0])
        facts = {name: vars(module)[name] for name in _MODULE_FACTS if name in vars(module)}
        if "__path__" in facts:
            facts["__path__"] = list(facts["__path__"])  # a namespace package's is computed
        return _make_module, (module.__name__, facts, parent)

    def _is_made(self, cls: type) -> bool:
        """True if a class is made anew on the other side. cloudpickle names some (NoneType ...)."""
        named = cls in cloudpickle._BUILTIN_TYPE_NAMES or cls in (
            type(None),
            type(Ellipsis),
            type(NotImplemented),
        )
        return not named and self._travels(cls)

    def _bare(self, cls: type) -> _Bare:
        return self._bares.setdefault(id(cls), _Bare(cls))

    def _class(self, cls: type) -> Any:
        meta: Any = type(cls)
        family = [
            one
            for one in reversed((*cls.__mro__, *meta.__mro__))
            if id(one) not in self._begun and self._is_made(one)
        ]
        self._begun.update(map(id, family))
        if not family:
            return _first, (self._bare(cls),)
        data = [functools.partial(self._data, one) for one in family]
        parts: list[Callable[[], Any]] = [
            functools.partial(self._methods, family),
            self._left,
            *data,
            functools.partial(self._whole, family),
        ]
        return _first, (self._bare(cls), *(_Part(part) for part in parts))

    def _methods(self, family: list[type]) -> Any:
        self._later.append([])
        self._open.update(map(id, family))
        return _fill_classes, (
            [(self._bare(cls), contents(cls)[0], self._home(cls)) for cls in family],
        )

    def _left(self) -> Any:
        # In turn, and first what a key of a variable needs (__hash__, __eq__, __class__).
        left = sorted(
            self._later.pop(),
            key=lambda reduced: (
                isinstance(reduced[1], FunctionType) and reduced[1].__name__[:2] != "__"
            ),
        )
        return _first, (
            None,
            *(_Part(functools.partial(_as_tuple, reduced[0], reduced[1:])) for reduced in left),
        )

    def _data(self, cls: type) -> Any:
        return _fill_classes, ([(self._bare(cls), contents(cls)[1], None)],)

    def _whole(self, family: list[type]) -> Any:
        self._open.difference_update(map(id, family))
        return tuple, ()

    def _home(self, cls: type) -> ModuleType | None:
        module = sys.modules.get(cls.__module__)
        return module if module is not None and vars(module).get(cls.__name__) is cls else None


@dataclasses.dataclass(frozen=True, eq=False)
class _Bare:
    """Stands for a class while it is pickled, and becomes the class without what it holds."""

    cls: type


@dataclasses.dataclass(frozen=True, eq=False)
class _Part:
    """Something to do on the other side when it is reached there."""

    reduce: Callable[[], Any]


def _as_tuple(*found: Any) -> Any:
    return found


@functools.lru_cache(maxsize=4096)
def _attributes(code: CodeType) -> tuple[frozenset[str], frozenset[str]]:
    """Names of attributes that ``code`` and functions in it read, and of modules they import."""
    attributes, imported = set(), set()
    for instruction in dis.get_instructions(code):
        if instruction.opname in _ATTRIBUTE_OPS:
            attributes.add(str(instruction.argval))
        elif instruction.opname == "IMPORT_NAME":
            imported.add(str(instruction.argval))
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            more, others = _attributes(inner)
            attributes |= more
            imported |= others
    return frozenset(attributes), frozenset(imported)


def attributes_used(fn: FunctionType) -> list[str]:
    return sorted(_attributes(fn.__code__)[0])


def globals_used(fn: FunctionType) -> dict[str, Any]:
    """The global variables that ``fn`` and the functions in it name, and that there are."""
    return {
        name: fn.__globals__[name]
        for name in cloudpickle._extract_code_globals(fn.__code__)
        if name in fn.__globals__
    }


def _contents(cells: Iterable[CellType]) -> Iterator[Any]:
    for cell in cells:
        with suppress(ValueError):  # not bound yet
            yield cell.cell_contents


def _imported(names: Iterable[str], space: Mapping[str, Any]) -> Iterator[ModuleType]:
    """Modules imported already that an import of these names may mean, relative ones included."""
    package = space.get("__package__") or ""
    parents = (
        [package.rsplit(".", up)[0] for up in range(package.count(".") + 1)] if package else []
    )
    for name in names:
        for candidate in (
            name,
            name.partition(".")[0],
            *(f"{parent}.{name}".rstrip(".") for parent in parents),
        ):
            if isinstance(module := sys.modules.get(candidate), ModuleType):
                yield module


def _file(file: io.TextIOWrapper) -> Any:
    if file in (sys.stdout, sys.stderr):
        return NotImplemented
    raise pickle.PicklingError("an open file")  # cloudpickle would send its contents


_SPECIAL: dict[type, Callable[[Any], Any]] = {
    io.TextIOWrapper: _file,
    weakref.WeakKeyDictionary: lambda found: (weakref.WeakKeyDictionary, (dict(found),)),
    weakref.WeakValueDictionary: lambda found: (weakref.WeakValueDictionary, (dict(found),)),
    typing.TypeVar: lambda one: (cloudpickle._make_typevar, cloudpickle._decompose_typevar(one)),
    typing.NewType: lambda found: (typing.NewType, (found.__name__, found.__supertype__)),
    # A thread that is new to it finds it empty anyway.
    threading.local: lambda _: (threading.local, ()),
    type(dataclasses.MISSING): lambda _: "MISSING",  # compared by identity
    # It holds a lock before Python 3.12.
    functools.cached_property: lambda found: (_cached_property, (found.func, found.attrname)),
}


# --- the other side -------------------------------------------------------------------------------


class ProgramModule(ModuleType):
    """A module of the program with what functions use; any other name is imported when asked."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or self.__name__ in MAIN:
            raise AttributeError(
                f"module {self.__name__!r} has no attribute {name!r} in a worker: no function "
                f"names it"
            )
        value = getattr(_imported_anew(self), name)
        setattr(self, name, value)
        return value


def _imported_anew(module: ProgramModule) -> ModuleType:
    name = module.__name__
    present = sys.modules.pop(name, None)
    try:
        if present is not None and present is not module:
            return present  # both sides are one process: the original is here
        found = vars(module).get("__imported__") or _from_its_file(module)
        vars(module)["__imported__"] = found
        return found
    finally:
        if present is not None:
            sys.modules[name] = present
            package, _, tail = name.rpartition(".")
            if package in sys.modules:
                setattr(sys.modules[package], tail, present)  # the import has put the new one there


def _from_its_file(module: ProgramModule) -> ModuleType:
    """``module`` imported; not a library's of its name that comes first on a worker's path."""
    name, file = module.__name__, vars(module).get("__file__")
    is_file = isinstance(file, str) and os.path.isfile(file)
    spec = importlib.util.spec_from_file_location(name, file) if is_file else None
    if spec is None or spec.loader is None:
        return importlib.import_module(name)
    sys.modules[name] = found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


class _Loading(threading.local):
    modules: dict[str, ModuleType] | None = None
    made: set[str] | None = None


_loading = _Loading()


@contextmanager
def loading_into(modules: dict[str, ModuleType], made: set[str] | None = None) -> Iterator[None]:
    """While the block unpickles, the program's modules are here instead of in ``sys.modules``; the
    names of those that are made are added to ``made``."""
    before = _loading.modules, _loading.made
    _loading.modules, _loading.made = modules, made
    try:
        yield
    finally:
        _loading.modules, _loading.made = before


def _make_module(name: str, facts: dict[str, Any], parent: ModuleType | None) -> ModuleType:
    modules = _loading.modules
    assert modules is not None, "pickled objects are opened by PickledObjects"
    module = modules.get(name)
    if not isinstance(module, ProgramModule):
        module = modules[name] = ProgramModule(name)
        if _loading.made is not None:
            _loading.made.add(name)
        vars(module).update(facts)
        if isinstance(parent, ProgramModule):
            setattr(parent, name.rpartition(".")[2], module)
    return module


def _make_function(
    code: CodeType, space: ModuleType | dict[str, Any], cells: tuple[CellType, ...] | None
) -> FunctionType:
    names = vars(space) if isinstance(space, ModuleType) else space
    names.setdefault("__builtins__", __builtins__)
    return FunctionType(code, names, None, None, cells)


def _fill_function(fn: FunctionType, state: tuple[Any, ...]) -> None:
    attributes, slots, used, name = state
    builtins = fn.__globals__["__builtins__"]
    cloudpickle._function_setstate(fn, (attributes, slots))
    fn.__globals__["__builtins__"] = builtins
    for module, values in used:
        vars(module).update(values)
    if name is not None:
        fn.__globals__[name] = fn


def _first(found: Any, *_: Any) -> Any:
    return found


def _fill_classes(classes: list[tuple[type, dict[str, Any], ModuleType | None]]) -> None:
    for cls, state, home in classes:
        fill(cls, state)
        if home is not None:
            vars(home)[cls.__name__] = cls


def _fill_cell(cell: CellType, contents: tuple[Any, ...]) -> None:
    for one in contents:
        cell.cell_contents = one


def _cached(fn: Any, parameters: Mapping[str, Any]) -> Any:
    return functools.lru_cache(**parameters)(fn)


def _cached_property(fn: Any, name: str | None) -> Any:
    made: Any = functools.cached_property(fn)
    made.attrname = name
    return made


# --- classes --------------------------------------------------------------------------------------
# A class of the program is made bare first, then filled. Creating a class runs code (a metaclass,
# ``__init_subclass__``, ``__set_name__``, members of an enum), whose results are pickled anyway: so
# none of it runs again, and a class exists once, whatever refers to it. Methods come before all
# else: an instance that is a key is hashed while it is loaded, and so needs its class before the
# variables that its methods use.

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
    cls: type, by_value: Callable[[type], bool], bare: Callable[[type], object]
) -> tuple[Any, ...]:
    """Arguments by which the other side makes ``cls`` bare; ``bare(other)``: another bare class."""

    def reference(base: Any) -> Any:
        return bare(base) if isinstance(base, type) and by_value(base) else base

    meta: Any = type(cls)
    # An installed metaclass has something to do: pydantic's, ABCMeta. An enum's would make the
    # members anew, and that of typed dictionaries refuses what it made: their base is dict.
    anew = issubclass(meta, EnumMeta) or meta.__name__ == "_TypedDictMeta"
    maker = type if anew else next(one for one in meta.__mro__ if not by_value(one))
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
            # Generic wants to see some; they may hold classes that hold this one.
            names["__orig_bases__"] = ()
        else:
            bases = original  # pydantic asks for them
    registering = [
        base for base in cls.__mro__[1:] if by_value(base) and "__init_subclass__" in vars(base)
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
    """The metaclass's own way to change ``cls``, past its Python code: enums refuse new members."""
    meta: Any = type(cls)
    ways = (vars(one).get(operation) for one in meta.__mro__)
    return next(way for way in ways if isinstance(way, WrapperDescriptorType))


def contents(cls: type) -> tuple[dict[str, Any], dict[str, Any]]:
    """The content of ``cls``: methods and the like, and all else."""
    state = cloudpickle._class_getstate(cls)[0]
    made = [
        name
        for name, value in state.items()
        if isinstance(value, MemberDescriptorType) and value.__objclass__ is cls
    ]
    methods = {
        name: value
        for name, value in state.items()
        if isinstance(value, _METHODS) or name == "__parameters__"
    }
    return methods, {
        name: value for name, value in state.items() if name not in methods and name not in made
    }


def fill(cls: type, state: Mapping[str, Any]) -> None:
    change = _plain(cls, "__setattr__")
    for name, value in state.items():
        if name != "_abc_impl":
            change(cls, name, value)
    if "__firstlineno__" in state:
        # Python 3.13 forgets it when __module__ is set.
        change(cls, "__firstlineno__", state["__firstlineno__"])
    for subclass in state.get("_abc_impl", ()):
        ABCMeta.register(typing.cast("ABCMeta", cls), subclass)


def making_instance(obj: object, by_value: Callable[[type], bool]) -> Any:
    """How ``obj`` is pickled while its class is filled, without the program's ``__new__``."""
    found = obj.__reduce_ex__(pickle.HIGHEST_PROTOCOL)
    if not isinstance(found, tuple) or found[0] is not copyreg.__newobj__:  # type: ignore[attr-defined]
        return found
    cls, *arguments = found[1]
    base = _installed_base(cls, by_value)
    return make_instance, (cls, base, () if base is object else tuple(arguments)), *found[2:]


def making_member(member: Enum, by_value: Callable[[type], bool]) -> tuple[Any, ...]:
    """Arguments by which an enum's member, with attributes, is made without the program's code."""
    cls = type(member)
    data = _installed_base(cls, by_value)
    if hasattr(data, "__getnewargs__"):
        arguments = data.__getnewargs__(member)
    else:
        arguments = data.__reduce__(member)[1] if data.__reduce__ is not object.__reduce__ else ()
    names = copyreg._slotnames(cls)  # type: ignore[attr-defined]
    slots = {name: getattr(member, name) for name in names if hasattr(member, name)}
    return (cls, data, arguments), (dict(vars(member)), slots)


def _installed_base(cls: type, by_value: Callable[[type], bool]) -> Any:
    return next(base for base in cls.__mro__ if not by_value(base) and not issubclass(base, Enum))


def make_instance(cls: type, base: Any, arguments: tuple[Any, ...]) -> Any:
    return base.__new__(cls, *arguments)


def fill_member(member: Any, state: tuple[dict[str, Any], dict[str, Any]]) -> None:
    attributes, slots = state
    vars(member).update(attributes)
    for name, value in slots.items():
        object.__setattr__(member, name, value)
