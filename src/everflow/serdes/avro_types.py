"""Avro schemas as values: parsed, as Arrow types, and which branch of a union reads a type."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import pyarrow as pa

from everflow.serdes.arrow_types import field_step
from everflow.serdes.base import SerdeError
from everflow.serdes.schema import TIMESTAMP

_PRIMITIVES: dict[str, pa.DataType] = {
    "null": pa.null(),
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
}
_LOGICAL: dict[tuple[str, str], pa.DataType] = {
    ("int", "date"): pa.date32(),
    ("long", "timestamp-millis"): TIMESTAMP,
    ("long", "timestamp-micros"): TIMESTAMP,
    ("long", "local-timestamp-millis"): pa.timestamp("us"),
    ("long", "local-timestamp-micros"): pa.timestamp("us"),
}
"""Other logical types than these and decimal keep the type that they stand on: nanoseconds, say, do
not fit into a timestamp."""
PROMOTED: dict[str, tuple[str, ...]] = {
    "int": ("long", "float", "double"),
    "long": ("float", "double"),
    "float": ("double",),
    "string": ("bytes",),
    "bytes": ("string",),
}
"""What a reader may have for a writer's type, beside the same (Avro's specification)."""
_MERGED = {
    frozenset({"int", "long"}): "long",
    frozenset({"float", "double"}): "double",
}
_NAMED = ("record", "error", "enum", "fixed")
_DECIMAL_DIGITS = 38
_MOST_LEVELS = 200
NO_DEFAULT = "\x00"
"""No JSON text."""


@dataclass(frozen=True)
class Avro:
    """A type of a schema. ``kind``: a primitive's name, ``record``, ``enum``, ``fixed``, ``array``,
    ``map`` or ``union``; ``name``: with its namespace, of a named type."""

    kind: str
    name: str = ""
    fields: tuple[Field, ...] = ()
    symbols: tuple[str, ...] = ()
    default: str | None = None
    """Of an enum: the symbol for those that a reader does not have."""
    size: int = 0
    parts: tuple[Avro, ...] = ()
    """The items of an array, the values of a map, the branches of a union."""
    logical: str = ""
    precision: int = 0
    scale: int = 0

    @property
    def takes_no_bytes(self) -> bool:
        if self.kind == "record":
            return all(field.type.takes_no_bytes for field in self.fields)
        return self.kind == "null" or (self.kind == "fixed" and self.size == 0)

    def __str__(self) -> str:
        if self.kind == "union":
            return f"[{', '.join(map(str, self.parts))}]"
        word = self.name or self.kind
        if self.logical == "decimal":
            return f"{word} (decimal({self.precision},{self.scale}))"
        return f"{word} ({self.logical})" if self.logical else word


@dataclass(frozen=True)
class Field:
    name: str
    type: Avro
    default: str = NO_DEFAULT
    """JSON text."""
    aliases: tuple[str, ...] = ()


# --- parsing --------------------------------------------------------------------------------------


@lru_cache(maxsize=1024)
def parsed(text: str, references: tuple[str, ...] = ()) -> Avro:
    """The schema of ``text``; ``references``: texts of those that it names, each after those that
    it names itself. SerdeError names the place of what is no schema, of a schema that contains
    itself, and of a type that no column has."""
    names: dict[str, Avro | None] = {}
    for one in references:
        _Parser(names).type(_loaded(one), "", "")
    found = _Parser(names).type(_loaded(text), "", "")
    arrow_of(found)
    return found


def _loaded(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        word = text.strip()
        if word in _PRIMITIVES:  # the registry's own form of a primitive has quotes
            return word
        raise SerdeError(f"the Avro schema is no JSON: {error}") from None
    except RecursionError:
        raise SerdeError("the Avro schema is nested too deeply") from None


@dataclass(frozen=True)
class _Parser:
    names: dict[str, Avro | None]
    """None: the definition is not complete, so whoever names it contains itself."""

    def type(self, found: Any, namespace: str, path: str) -> Avro:
        if path.count(".") + path.count("[") > _MOST_LEVELS:
            raise _wrong(path, "is nested too deeply")
        if isinstance(found, list):
            return self.union(found, namespace, path)
        if isinstance(found, str):
            return self.named(found, namespace, path)
        if not isinstance(found, Mapping) or "type" not in found:
            raise _wrong(path, f"is no schema: {found!r:.100}")
        kind = found["type"]
        if kind in _NAMED:
            return self.definition(found, namespace, path)
        if kind in ("array", "map"):
            inner = found.get("items" if kind == "array" else "values")
            if inner is None:
                raise _wrong(
                    path, f"is an {kind} without {'items' if kind == 'array' else 'values'}"
                )
            part = self.type(inner, namespace, f"{path}[]")
            return Avro(kind, parts=(part,))
        return _with_logical(self.type(kind, namespace, path), found)

    def union(self, found: Sequence[Any], namespace: str, path: str) -> Avro:
        parts = tuple(self.type(one, namespace, path) for one in found)
        if any(one.kind == "union" for one in parts):
            raise _wrong(path, "is a union in a union, which Avro does not have")
        kinds = [one.name or one.kind for one in parts]
        if not parts or len(set(kinds)) < len(kinds):
            raise _wrong(path, f"is a union of {', '.join(kinds) or 'nothing'}")
        return Avro("union", parts=parts)

    def named(self, word: str, namespace: str, path: str) -> Avro:
        if word in _PRIMITIVES:
            return Avro(word)
        for name in (_full(word, namespace), word):
            if name in self.names:
                known = self.names[name]
                if known is None:
                    raise _wrong(
                        path,
                        f"is {name}, which contains itself; Arrow and Spark have no such types. "
                        f"Read the topic as serdes.bytes_(), or keep the inner part as text",
                    )
                return known
        raise _wrong(path, f"is {word!r}, which is neither a type of Avro nor defined before")

    def definition(self, found: Mapping[str, Any], namespace: str, path: str) -> Avro:
        word = found.get("name")
        if not isinstance(word, str) or not word:
            raise _wrong(path, f"is a {found['type']} without a name")
        name = _full(word, found.get("namespace", namespace) or "")
        inner = name.rpartition(".")[0]
        if name in self.names:
            raise _wrong(path, f"defines {name} a second time")
        self.names[name] = None
        made = self._defined(found, name, inner, path)
        self.names[name] = made
        return made

    def _defined(self, found: Mapping[str, Any], name: str, inner: str, path: str) -> Avro:
        if found["type"] == "fixed":
            size = found.get("size")
            if not isinstance(size, int) or size < 0:
                raise _wrong(path, f"is a fixed of {size!r} bytes")
            return _with_logical(Avro("fixed", name, size=size), found)
        if found["type"] == "enum":
            symbols = tuple(found.get("symbols") or ())
            if not symbols or not all(isinstance(one, str) for one in symbols):
                raise _wrong(path, f"is an enum of {symbols!r}")
            return Avro("enum", name, symbols=symbols, default=found.get("default"))
        fields = []
        for one in found.get("fields") or ():
            if not isinstance(one, Mapping) or "name" not in one or "type" not in one:
                raise _wrong(path, f"has a field without name or type: {one!r:.100}")
            at = path + field_step(one["name"])
            default = json.dumps(one["default"]) if "default" in one else NO_DEFAULT
            aliases = tuple(one.get("aliases") or ())
            fields.append(Field(one["name"], self.type(one["type"], inner, at), default, aliases))
        if len({one.name for one in fields}) < len(fields):
            raise _wrong(path, "has two fields of one name")
        return Avro("record", name, fields=tuple(fields))


def _wrong(path: str, why: str) -> SerdeError:
    return SerdeError(f"{path.removeprefix('.') or 'the schema'} {why}")


def same_form(text: str) -> str:
    """Equal of two schemas that say the same in all: their names are whole, and they have neither
    blanks nor an order of attributes."""
    return json.dumps(_whole_names(_loaded(text), ""), sort_keys=True)


def _whole_names(found: Any, namespace: str) -> Any:
    if isinstance(found, list):
        return [_whole_names(one, namespace) for one in found]
    if isinstance(found, str):
        return found if found in _PRIMITIVES else _full(found, namespace)
    if not isinstance(found, Mapping):
        return found
    made = {name: value for name, value in found.items() if name != "namespace"}
    if found.get("type") in _NAMED:
        name = _full(str(found.get("name")), found.get("namespace", namespace) or "")
        inner = name.rpartition(".")[0]
        made["name"] = name
        if "aliases" in made:
            made["aliases"] = [_full(one, inner) for one in made["aliases"]]
        if "fields" in made:
            made["fields"] = [
                {**one, "type": _whole_names(one.get("type"), inner)} for one in made["fields"]
            ]
        return made
    for part in ("items", "values"):
        if part in made:
            made[part] = _whole_names(made[part], namespace)
    if found.get("type") not in ("array", "map"):
        made["type"] = _whole_names(found.get("type"), namespace)
    return made["type"] if list(made) == ["type"] else made


def _full(word: str, namespace: str) -> str:
    return word if "." in word or not namespace else f"{namespace}.{word}"


def _with_logical(made: Avro, found: Mapping[str, Any]) -> Avro:
    """As the specification says: a logical type that is not known, or does not fit, is none."""
    logical = str(found.get("logicalType", ""))
    if logical == "decimal" and made.kind in ("bytes", "fixed"):
        precision, scale = found.get("precision"), found.get("scale", 0)
        if isinstance(precision, int) and isinstance(scale, int) and 0 <= scale <= precision > 0:
            return replace(made, logical=logical, precision=precision, scale=scale)
    if (made.kind, logical) in _LOGICAL:
        return replace(made, logical=logical)
    return made


def plain(type_: Avro, seen: set[str] | None = None) -> Any:
    """The schema in JSON's values for a library: without logical types, names defined once."""
    seen = set() if seen is None else seen
    if type_.kind == "union":
        return [plain(one, seen) for one in type_.parts]
    if type_.kind in ("array", "map"):
        inner = "items" if type_.kind == "array" else "values"
        return {"type": type_.kind, inner: plain(type_.parts[0], seen)}
    if not type_.name:
        return type_.kind
    if type_.name in seen:
        return type_.name
    seen.add(type_.name)
    made: dict[str, Any] = {"type": type_.kind, "name": type_.name}
    if type_.kind == "fixed":
        made["size"] = type_.size
    elif type_.kind == "enum":
        made["symbols"] = list(type_.symbols)
        if type_.default is not None:
            made["default"] = type_.default
    else:
        made["fields"] = [_plain_field(one, seen) for one in type_.fields]
    return made


def _plain_field(field: Field, seen: set[str]) -> dict[str, Any]:
    made = {"name": field.name, "type": plain(field.type, seen)}
    if field.default != NO_DEFAULT:
        made["default"] = json.loads(field.default)
    if field.aliases:
        made["aliases"] = list(field.aliases)
    return made


# --- types ----------------------------------------------------------------------------------------


def arrow_of(type_: Avro, path: str = "") -> pa.DataType:
    """The Arrow type of a column of ``type_``, by the rules of Spark's SchemaConverters."""
    if type_.kind == "record":
        return pa.struct(
            [(one.name, arrow_of(one.type, path + field_step(one.name))) for one in type_.fields]
        )
    if type_.kind in ("array", "map"):
        inner = type_.parts[0]
        if inner.takes_no_bytes:
            raise _wrong(path, "has entries that take no bytes: a few bytes could say any number")
        found = arrow_of(inner, f"{path}[]")
        return pa.list_(found) if type_.kind == "array" else pa.map_(pa.string(), found)
    if type_.kind == "union":
        present = branches(type_)
        if not present:
            return pa.null()
        if (one := single(type_)) is not None:
            return arrow_of(one, path)
        members = enumerate(arrow_of(branch, path) for branch in present)
        return pa.struct([(f"member{at}", found) for at, found in members])
    if type_.kind == "enum":
        return pa.string()
    if type_.logical == "decimal":
        if type_.precision > _DECIMAL_DIGITS:
            raise _wrong(
                path, f"is decimal({type_.precision},{type_.scale}); columns have 38 digits at most"
            )
        return pa.decimal128(type_.precision, type_.scale)
    if type_.logical:
        return _LOGICAL[type_.kind, type_.logical]
    return pa.binary() if type_.kind == "fixed" else _PRIMITIVES[type_.kind]


def branches(union: Avro) -> tuple[Avro, ...]:
    """Those that are not null."""
    return tuple(one for one in union.parts if one.kind != "null")


def single(union: Avro) -> Avro | None:
    """The one type of a union's columns; None where they are a struct of members."""
    present = branches(union)
    if len(present) == 1:
        return present[0]
    if all(not one.logical for one in present):
        merged = _MERGED.get(frozenset(one.kind for one in present))
        return None if merged is None else Avro(merged)
    return None


def branch_for(union: Avro, writer: Avro, resolves: Any) -> int | None:
    """The place of the branch that reads ``writer``: of the same type and name, or else the first
    into which it resolves."""
    same = [at for at, one in enumerate(union.parts) if one.kind == writer.kind]
    named = [at for at in same if _last(union.parts[at].name) == _last(writer.name)]
    ordered = [*named, *same, *range(len(union.parts))]
    return next((at for at in ordered if resolves(writer, union.parts[at])), None)


def _last(name: str) -> str:
    return name.rpartition(".")[2]
