"""Schemas -> Arrow types: Spark's DDL text (``"a string, b struct<c: int>"``) or a StructType.

A parser of our own because this layer may not import Spark, and a worker has no JVM to ask.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import pyarrow as pa

from everflow.serdes.arrow_types import field_step, holds, normal_type, type_text
from everflow.serdes.base import SerdeError

TIMESTAMP = pa.timestamp("us", tz="UTC")

_SIMPLE: dict[str, pa.DataType] = {
    "boolean": pa.bool_(),
    "byte": pa.int8(),
    "tinyint": pa.int8(),
    "short": pa.int16(),
    "smallint": pa.int16(),
    "int": pa.int32(),
    "integer": pa.int32(),
    "long": pa.int64(),
    "bigint": pa.int64(),
    "float": pa.float32(),
    "real": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": TIMESTAMP,
    "timestamp_ltz": TIMESTAMP,
    "timestamp_ntz": pa.timestamp("us"),
    "void": pa.null(),
}
_NUMBERS = "declare a bigint, and convert it in a Column"
_NOT_STORED = {
    "interval": _NUMBERS,
    "calendar_interval": _NUMBERS,
    "variant": "declare a string, and read it in a Column, as F.parse_json does",
    "time": "declare a string, or a bigint of microseconds",
    "geometry": "declare a binary of WKB",
    "geography": "declare a binary of WKB",
    "object": "declare its fields",
    "udt": "declare its fields",
}
"""Types that Spark's schemas have and no serde writes, and what to declare for them."""
_ARROW_NOT_STORED: tuple[tuple[Callable[[pa.DataType], bool], str], ...] = (
    (pa.types.is_unsigned_integer, "a signed integer that is wide enough, or decimal(20,0)"),
    (pa.types.is_float16, "float"),
    (pa.types.is_date64, "date"),
    (pa.types.is_time, "a string, or a bigint of microseconds"),
    (pa.types.is_duration, "a bigint of microseconds"),
    (pa.types.is_interval, "a bigint"),
    (pa.types.is_string_view, "string"),
    (pa.types.is_binary_view, "binary"),
    (pa.types.is_decimal, "decimal(p,s) of 128 bits, with p from 1 to 38 and s from 0 to p"),
)
_STORED = (
    pa.types.is_boolean,
    pa.types.is_signed_integer,
    pa.types.is_float32,
    pa.types.is_float64,
    pa.types.is_string,
    pa.types.is_binary,
    pa.types.is_date32,
    pa.types.is_timestamp,
    pa.types.is_null,
)
_TOKEN = re.compile(
    r"\s*(?:(`(?:[^`]|``)+`)|('(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\")|([A-Za-z0-9_]+)|([<>(),:]))"
)


def arrow_type(schema: Any) -> pa.DataType:
    """Returns the Arrow type of ``schema``: Spark DDL text, a StructType or an Arrow type. In DDL
    text, several fields, or one ``name type`` pair, make a struct. Raises SerdeError for text that
    cannot be read (and quotes the place), or for a field that no serde can write."""
    if isinstance(schema, pa.DataType):
        return storable(schema)
    if isinstance(schema, pa.Schema):
        return storable(pa.struct(list(schema)))
    if isinstance(schema, str):
        return storable(_Ddl(schema).parse())
    if hasattr(schema, "jsonValue"):
        return storable(_from_json_value(schema.jsonValue()))
    raise SerdeError(f"a schema is DDL text or a StructType, found {type(schema).__name__}")


@lru_cache(maxsize=1024)
def storable(type_: pa.DataType) -> pa.DataType:
    """``type_``. SerdeError where no serde writes it, which names the field and what to declare."""
    _require_storable(normal_type(type_), "")
    return type_


def _require_storable(type_: pa.DataType, path: str) -> None:
    place = path.removeprefix(".") or "the schema"
    if pa.types.is_struct(type_):
        names = [field.name for field in type_]
        for field in type_:
            inner = path + field_step(field.name)
            if names.count(field.name) > 1:
                raise SerdeError(
                    f"the field {inner.removeprefix('.')} appears twice in the schema; give one of "
                    f"them another name"
                )
            _require_storable(field.type, inner)
    elif pa.types.is_list(type_):
        _require_storable(type_.value_type, f"{path}[]")
    elif pa.types.is_map(type_):
        if holds(type_.key_type, lambda one: pa.types.is_map(one) or pa.types.is_null(one)):
            raise SerdeError(
                f"{place} is {type_text(type_)}: the key of a map can neither be nor hold a map or "
                f"a void, in Spark as here; declare array<struct<key:...,value:...>>"
            )
        _require_storable(type_.key_type, f"{path}[]")
        _require_storable(type_.item_type, f"{path}[]")
    elif pa.types.is_decimal128(type_) and 0 <= type_.scale <= type_.precision:
        return
    elif not any(is_one(type_) for is_one in _STORED):
        cure = next((cure for is_one, cure in _ARROW_NOT_STORED if is_one(type_)), "another type")
        raise SerdeError(f"{place} is {type_text(type_)}, which no serde writes; declare {cure}")


_COLLATION = "no serde keeps a collation; leave it out, and compare in a Column, as F.collate does"
_DECIMALS, _TEXTS = ("decimal", "dec", "numeric"), ("varchar", "char")
_TYPE_WORDS = (*_SIMPLE, "array", "map", "struct", *_DECIMALS, *_TEXTS)


class _Ddl:
    """Recursive descent over the tokens of one DDL text."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.tokens: list[tuple[str, int]] = []
        position, end = 0, len(text.rstrip())
        while position < end:
            match = _TOKEN.match(text, position)
            if match is None:
                raise _unexpected(text, position)
            which = match.lastindex or 0
            self.tokens.append((match.group(which), match.start(which)))
            position = match.end()
        self.at = 0

    def parse(self) -> pa.DataType:
        if not self.tokens:
            raise SerdeError(
                "the schema is empty; write fields such as 'name string, amount double'"
            )
        first = self.tokens[0][0].lower()
        single = len(self.tokens) == 1 or (
            self.tokens[1][0] in "<("
            and first in ("struct", "array", "map", *_DECIMALS, *_TEXTS, *_NOT_STORED)
        )
        result = self.type() if single else pa.struct(self.fields(None))
        if self.at < len(self.tokens):
            raise self.error("expected the end of the schema")
        return result

    def peek(self) -> str | None:
        return self.tokens[self.at][0] if self.at < len(self.tokens) else None

    def next(self) -> str:
        token = self.peek()
        if token is None:
            raise self.error("the schema ends too early")
        self.at += 1
        return token

    def expect(self, token: str) -> None:
        if self.peek() != token:
            raise self.error(f"expected {token!r}")
        self.at += 1

    def word(self, word: str) -> bool:
        token = self.peek()
        if token is not None and token.lower() == word:
            self.at += 1
            return True
        return False

    def error(self, what: str) -> SerdeError:
        place = (
            f"{self.tokens[self.at][0]!r} (character {self.tokens[self.at][1]})"
            if self.peek()
            else "its end"
        )
        return self.refusal(f"{what} at {place}")

    def refusal(self, what: str) -> SerdeError:
        return SerdeError(f"cannot read the schema {self.text!r}: {what}")

    def fields(self, close: str | None) -> list[pa.Field]:
        found: list[pa.Field] = []
        while close is None or self.peek() != close:
            name = self.next()
            if name.startswith("`"):
                name = name[1:-1].replace("``", "`")
            elif not re.fullmatch(r"\w+", name):
                self.at -= 1
                raise self.error("expected a field name")
            if self.peek() == ":":
                self.at += 1
            field_type = self.type()
            # NOT NULL promises something about the writer: missing fields still decode to null
            if self.word("not") and not self.word("null"):
                raise self.error("expected NULL after NOT")
            if self.word("comment"):
                self.next()
            found.append(pa.field(name, field_type))
            if self.peek() != ",":
                break
            self.at += 1
        return found

    def type(self) -> pa.DataType:
        word = self.next().lower()
        if word == "struct":
            self.expect("<")
            fields = self.fields(">")
            self.expect(">")
            return pa.struct(fields)
        if word == "array":
            self.expect("<")
            element = self.type()
            self.expect(">")
            return pa.list_(element)
        if word == "map":
            self.expect("<")
            key = self.type()
            self.expect(",")
            value = self.type()
            self.expect(">")
            if pa.types.is_null(key):
                raise self.refusal("the keys of a map cannot be void; declare another type")
            return pa.map_(key, value)
        if word in _DECIMALS:
            precision, scale = self.numbers() if self.peek() == "(" else (10, 0)
            if not 1 <= precision <= 38 or scale > precision:
                raise self.refusal(
                    f"decimal({precision},{scale}) has a precision from 1 to 38, and a scale from "
                    f"0 to the precision"
                )
            return pa.decimal128(precision, scale)
        if word in _TEXTS:
            self.numbers()
            return pa.string()
        if word not in _SIMPLE:
            self.at -= 1
            raise self.unknown(word)
        if (self.peek() or "").lower() == "collate":
            raise self.refusal(_COLLATION)
        return _SIMPLE[word]

    def unknown(self, word: str) -> SerdeError:
        token, place = self.tokens[self.at]
        name, begin = self.tokens[self.at - 1] if self.at else ("", 0)
        after = self.tokens[self.at + 1][0].lower() if self.at + 1 < len(self.tokens) else ""
        for one in (word, name.lower()):
            if one in _NOT_STORED:
                return self.refusal(f"no serde writes the type {one}; {_NOT_STORED[one]}")
        if word == "collate":
            return self.refusal(_COLLATION)
        if re.fullmatch(r"\w+", name) and after in _TYPE_WORDS:
            spaced = self.text[begin : place + len(token)]
            return self.error(f"a name with a space takes backticks, `{spaced}`; found {word!r}")
        near = difflib.get_close_matches(word, _TYPE_WORDS, n=1)
        return self.error(f"unknown type {word!r}{f' (did you mean {near[0]}?)' if near else ''}")

    def numbers(self) -> list[int]:
        self.expect("(")
        found = [self.number()]
        if self.peek() == ",":
            self.at += 1
            found.append(self.number())
        self.expect(")")
        return found if len(found) == 2 else [*found, 0]

    def number(self) -> int:
        token = self.next()
        if not re.fullmatch(r"[0-9]{1,9}", token):
            self.at -= 1
            raise self.error("expected a number")
        return int(token)


def _unexpected(text: str, position: int) -> SerdeError:
    at = position + len(text[position:]) - len(text[position:].lstrip())
    found = f"cannot read the schema {text!r}: unexpected {text[at]!r} (character {at})"
    if text[at] == "`":
        return SerdeError(f"{found}: a backtick has no second one")
    begin = at
    while begin and (text[begin - 1].isalnum() or text[begin - 1] == "_"):
        begin -= 1
    word = re.compile(r"[^\s,<>():`'\"]*").match(text, begin)
    name = word.group() if word else ""
    if not any(map(str.isalpha, name)):
        return SerdeError(found)
    return SerdeError(
        f"{found}; a name with anything but letters of a to z, digits and _ takes backticks: "
        f"`{name}`"
    )


def _from_json_value(value: Any, path: str = "") -> pa.DataType:
    """The Arrow type of what pyspark's ``DataType.jsonValue()`` gives; ``path``: of the field."""
    if isinstance(value, str):
        word = value.partition(" ")[0].partition("(")[0].lower()
        if word in _NOT_STORED:
            raise _not_stored(value, word, path)
        return _Ddl(value).type()
    kind = str(value["type"])
    if kind == "struct":
        fields = []
        for field in value["fields"]:
            inner = path + field_step(field["name"])
            if "__COLLATIONS" in (field.get("metadata") or {}):
                raise SerdeError(f"the field {inner.removeprefix('.')}: {_COLLATION}")
            fields.append(pa.field(field["name"], _from_json_value(field["type"], inner)))
        return pa.struct(fields)
    if kind == "array":
        return pa.list_(_from_json_value(value["elementType"], f"{path}[]"))
    if kind == "map":
        key = _from_json_value(value["keyType"], f"{path}[]")
        if pa.types.is_null(key):
            raise SerdeError("the keys of a map cannot be void; declare another type")
        return pa.map_(key, _from_json_value(value["valueType"], f"{path}[]"))
    raise _not_stored(kind, kind, path)


def _not_stored(type_: str, kind: str, path: str) -> SerdeError:
    place = path.removeprefix(".") or "the schema"
    cure = _NOT_STORED.get(kind, "declare another type")
    return SerdeError(f"{place} is {type_}, which no serde writes; {cure}")
