"""Schemas -> Arrow types: Spark's DDL text (``"a string, b struct<c: int>"``) or a StructType.

A parser of our own because this layer may not import Spark, and a worker has no JVM to ask.
"""

from __future__ import annotations

import difflib
import re
from typing import Any

import pyarrow as pa

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
_TOKEN = re.compile(
    r"\s*(?:(`(?:[^`]|``)+`)|('(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\")|([A-Za-z0-9_]+)|([<>(),:]))"
)


def arrow_type(schema: Any) -> pa.DataType:
    """The Arrow type of ``schema``; text with several fields, or one ``name type`` pair, gives a
    struct.

    Raises SerdeError that quotes the text and the place where reading stopped.
    """
    if isinstance(schema, pa.DataType):
        return schema
    if isinstance(schema, pa.Schema):
        return pa.struct(list(schema))
    if isinstance(schema, str):
        return _Ddl(schema).parse()
    if hasattr(schema, "jsonValue"):
        return _from_json_value(schema.jsonValue())
    raise SerdeError(f"a schema is DDL text or a StructType, found {type(schema).__name__}")


class _Ddl:
    """Recursive descent over the tokens of one DDL text."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.tokens: list[tuple[str, int]] = []
        position, end = 0, len(text.rstrip())
        while position < end:
            match = _TOKEN.match(text, position)
            if match is None:
                unexpected = text[position:].strip()[:1]
                raise SerdeError(
                    f"cannot read the schema {text!r}: unexpected {unexpected!r} at {position}"
                )
            self.tokens.append(
                (match.group(match.lastindex or 0), match.start(match.lastindex or 0))
            )
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
            and first in ("struct", "array", "map", "decimal", "varchar", "char")
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
        return SerdeError(f"cannot read the schema {self.text!r}: {what} at {place}")

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
            # NOT NULL promises something about the writer, not the bytes: missing fields still
            # decode to null
            if self.word("not") and not self.word("null"):
                raise self.error("expected NULL after NOT")
            if self.word("comment"):
                self.next()
            if any(field.name == name for field in found):
                raise self.error(f"the field {name!r} appears twice")
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
            return pa.map_(key, value)
        if word in ("decimal", "dec", "numeric"):
            precision, scale = self.numbers() if self.peek() == "(" else (10, 0)
            return pa.decimal128(precision, scale)
        if word in ("varchar", "char"):
            self.numbers()
            return pa.string()
        if word not in _SIMPLE:
            self.at -= 1
            near = difflib.get_close_matches(
                word, [*_SIMPLE, "array", "map", "struct", "decimal"], n=1
            )
            raise self.error(
                f"unknown type {word!r}{f' (did you mean {near[0]}?)' if near else ''}"
            )
        return _SIMPLE[word]

    def numbers(self) -> list[int]:
        self.expect("(")
        found = [int(self.next())]
        if self.peek() == ",":
            self.at += 1
            found.append(int(self.next()))
        self.expect(")")
        return found if len(found) == 2 else [*found, 0]


def _from_json_value(value: Any) -> pa.DataType:
    """The Arrow type of what pyspark's ``DataType.jsonValue()`` gives."""
    if isinstance(value, str):
        return _Ddl(value).type()
    kind = value["type"]
    if kind == "struct":
        return pa.struct(
            [pa.field(field["name"], _from_json_value(field["type"])) for field in value["fields"]]
        )
    if kind == "array":
        return pa.list_(_from_json_value(value["elementType"]))
    if kind == "map":
        return pa.map_(_from_json_value(value["keyType"]), _from_json_value(value["valueType"]))
    raise SerdeError(f"a schema may not hold the type {kind!r}")
