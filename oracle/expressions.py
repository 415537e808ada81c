"""Draws Columns, as Spark SQL, and values for them to read. Everything comes from one seed."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pyarrow as pa

KINDS: Mapping[str, pa.DataType] = {
    "tinyint": pa.int8(),
    "smallint": pa.int16(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "boolean": pa.bool_(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", "UTC"),
    "decimal(10,2)": pa.decimal128(10, 2),
}
VALUE = pa.struct(
    [
        pa.field(f"{kind.partition('(')[0]}_{number}", type_)
        for kind, type_ in KINDS.items()
        for number in (1, 2)
    ]
    + [pa.field("inner", pa.struct([("n", pa.int64()), ("s", pa.string())]))]
)
_INTEGERS = {"tinyint": 8, "smallint": 16, "int": 32, "bigint": 64}
_NUMBERS = (*_INTEGERS, "float", "double")
_FLOATING = ("double", "float") * 4
"""What is compared more often than its share: NaN and the two zeros are what goes wrong."""
_TEXTS = (
    *("", "a", "A", "b", "ab", " a ", "\ta", "aXb", "a,b", ",", "10", "-0", "NaN", "true"),
    *("ß", "İ", "é", "e\u0301", "ǅ", "日本", "😀", "a\0b", "\u2028", "zzzzzzzz"),
)
_FLOATS = (0.0, -0.0, 1.0, -1.5, 0.1, 1e300, -1e-300, 5e-324, 2.0**53 + 2, 2.0**63)
_ODD_FLOATS = (float("nan"), float("inf"), float("-inf"))
_EMPTY = (
    *("named_struct()", "CAST(named_struct() AS struct<>)", "CAST(NULL AS struct<>)"),
    *("if(value.boolean_1, named_struct(), NULL)", "coalesce(named_struct(), named_struct())"),
)
_MOMENTS = (datetime(1, 1, 1), datetime(1969, 12, 31, 23, 59, 59, 999_999), datetime(9999, 12, 31))


class Drawing:
    """Draws from one seed; not for several threads."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    # --- values -----------------------------------------------------------------------------------

    def rows(self, count: int) -> pa.Array:
        """Values of type `VALUE`; of some batches the numbers are small, so that sums fit."""
        wild = self._random.random() < 0.5
        made: list[Any] = [self._struct(VALUE, wild) for _ in range(count)]
        return pa.array(made, VALUE)

    def _struct(self, kind: pa.DataType, wild: bool) -> Any:
        if self._random.random() < 0.1:
            return None
        return {field.name: self._scalar(field.type, wild) for field in kind}

    def _scalar(self, kind: pa.DataType, wild: bool) -> Any:
        if pa.types.is_struct(kind):
            return self._struct(kind, wild)
        if self._random.random() < 0.15:
            return None
        return self._value(kind, wild)

    def _value(self, kind: pa.DataType, wild: bool) -> Any:
        pick = self._random.choice
        if pa.types.is_integer(kind):
            most = 2 ** (kind.bit_width - 1) - 1
            small = (0, 1, -1, 2, 3, 7)
            return pick((*small, most, -most - 1, most - 1, most // 3) if wild else small)
        if pa.types.is_floating(kind):
            drawn = pick(
                (*_FLOATS, *_ODD_FLOATS, *_ODD_FLOATS) if wild else (0.0, -0.0, 1.0, -1.5, 0.1, 3.0)
            )
            return pa.scalar(drawn, pa.float64()).cast(kind, safe=False).as_py()
        if pa.types.is_boolean(kind):
            return pick((True, False))
        if pa.types.is_string(kind):
            return pick(_TEXTS if wild else _TEXTS[:14])
        if pa.types.is_binary(kind):
            return pick((b"", b"a", b"\xff", b"\x00", b"ab"))
        if pa.types.is_date(kind):
            return pick((date(1, 1, 1), date(1970, 1, 1), date(1969, 12, 31), date(9999, 12, 31)))
        if pa.types.is_decimal(kind):
            return pick(tuple(Decimal(text) for text in ("0.00", "1.00", "-1.50", "99999999.99")))
        return pick(_MOMENTS).replace(tzinfo=timezone.utc) + timedelta(
            microseconds=self._random.randrange(3)
        )

    # --- Columns ----------------------------------------------------------------------------------

    def column(self) -> str:
        """A Column over ``value``."""
        makers: Sequence[Callable[[int], str]] = (
            *(self._boolean,) * 4,
            *(lambda depth: self._comparison(0),) * 3,
            lambda depth: self._number(self._random.choice(_NUMBERS), depth),
            lambda depth: self._number("double", depth),
            self._text,
            self._struct_of,
            lambda depth: f"split({self._text(depth - 1)}, ',')",
        )
        return self._random.choice(makers)(self._random.randrange(1, 4))

    def of(self, kind: str, depth: int) -> str:
        """A Column of a kind of `KINDS`."""
        if kind == "boolean":
            return self._boolean(depth)
        if kind == "string":
            return self._text(depth)
        if kind in _NUMBERS:
            return self._number(kind, depth)
        return self._any(kind, depth, ())

    def _any(self, kind: str, depth: int, own: Sequence[Callable[[], str]]) -> str:
        """A field, a constant, or what there is for every type; or one of its ``own``."""
        if depth <= 0:
            leaves = (lambda: self._field(kind), lambda: self._field(kind), self._constant_of(kind))
            return self._random.choice(leaves)()
        deeper = depth - 1
        common: Sequence[Callable[[], str]] = (
            lambda: self._field(kind),
            lambda: f"coalesce({self.of(kind, deeper)}, {self.of(kind, deeper)})",
            lambda: (
                f"CASE WHEN {self._boolean(deeper)} THEN {self.of(kind, deeper)} "
                f"WHEN {self._boolean(deeper)} THEN {self.of(kind, deeper)} END"
            ),
            lambda: (
                f"if({self._boolean(deeper)}, {self.of(kind, deeper)}, {self.of(kind, deeper)})"
            ),
            lambda: f"CASE WHEN {self._boolean(deeper)} THEN {self.of(kind, deeper)} END",
            lambda: f"nvl({self.of(kind, deeper)}, {self.of(kind, 0)})",
            lambda: f"named_struct('a', {self.of(kind, deeper)}, 'b', 1).A",
            lambda: f"struct({self.of(kind, deeper)} AS Other, 1 AS b).other",
            lambda: f"struct({self._named('value')}.*).{kind.partition('(')[0]}_1",
        )
        return self._random.choice(own if own and self._random.random() < 0.7 else common)()

    def _field(self, kind: str) -> str:
        if kind == "bigint" and self._random.random() < 0.1:
            return self._named("value", "inner", "n")
        if kind == "string" and self._random.random() < 0.1:
            return self._random.choice((self._named("value", "inner", "s"), self._named("key")))
        return self._named("value", f"{kind.partition('(')[0]}_{self._random.choice((1, 2))}")

    def _named(self, *path: str) -> str:
        """A field, in one of the ways in which Spark takes its name."""
        if self._random.random() < 0.6:
            return ".".join(path)
        case = self._random.choice((str.upper, str.title, str.swapcase, str.lower))
        root, *fields = map(case, path)
        match self._random.randrange(4):
            case 0:
                return ".".join(f"`{part}`" for part in (root, *fields))
            case 1:
                return root + "".join(f"['{part}']" for part in fields)
            case 2 if fields:
                *above, last = (root, *fields)
                return f"named_struct('It', {'.'.join(above)}).iT.{last}"
        return ".".join((root, *fields))

    def _constant_of(self, kind: str) -> Callable[[], str]:
        return lambda: self._constant(kind)

    def _constant(self, kind: str) -> str:
        if self._random.random() < 0.15:
            return f"CAST(NULL AS {kind})"
        pick = self._random.choice
        if kind in _NUMBERS:
            return f"CAST({pick(('0', '1', '-1', '2', '3', '1.5', '-0D', '100'))} AS {kind})"
        if kind == "string":
            return "'" + pick(("", "a", "A", " ", "ab", "é")) + "'"
        if kind == "boolean":
            return pick(("true", "false"))
        if kind == "date":
            return "DATE'1970-01-01'"
        return self._field(kind)

    def _boolean(self, depth: int) -> str:
        deeper = depth - 1
        kind = self._random.choice(tuple(KINDS))

        def chosen() -> str:
            listed = ", ".join(self.of(kind, 0) for _ in range(self._random.choice((1, 2, 12))))
            return f"({self.of(kind, deeper)} IN ({listed}))"

        def match() -> str:
            named = self._random.choice(("startswith", "endswith", "contains"))
            part = self._random.choice(("", "a", "A", " ", "é", ","))
            return f"{named}({self._text(deeper)}, '{part}')"

        own: Sequence[Callable[[], str]] = (
            *(lambda: self._comparison(deeper),) * 12,
            lambda: f"({self._boolean(deeper)} AND {self._boolean(deeper)})",
            lambda: f"({self._boolean(deeper)} OR {self._boolean(deeper)})",
            lambda: f"(NOT {self._boolean(deeper)})",
            lambda: f"({self.of(kind, deeper)} IS NULL)",
            lambda: f"({self.of(kind, deeper)} IS NOT NULL)",
            lambda: f"({self._struct_of(deeper)} IS NULL)",
            lambda: f"({self._named('value')} IS NOT NULL)",
            lambda: f"isnan({self._number('double', deeper)})",
            lambda: f"({self.of(kind, deeper)} BETWEEN {self.of(kind, 0)} AND {self.of(kind, 0)})",
            chosen,
            match,
        )
        return self._any("boolean", depth, own)

    def _comparison(self, depth: int) -> str:
        kind = self._random.choice((*KINDS, *_FLOATING))
        compared = self._random.choice(("=", "<=>", "<>", "<", "<=", ">", ">="))
        return f"({self.of(kind, depth)} {compared} {self.of(kind, depth)})"

    def _number(self, kind: str, depth: int) -> str:
        deeper = depth - 1
        sign = self._random.choice("+-*")
        other = self._random.choice(_NUMBERS)
        own: list[Callable[[], str]] = [
            lambda: f"({self._number(kind, deeper)} {sign} {self._number(kind, deeper)})",
            lambda: f"CAST({self._number(other, deeper)} AS {kind})",
            lambda: f"(- {self._number(kind, deeper)})",
            lambda: f"abs({self._number(kind, deeper)})",
        ]
        if kind == "double":
            own.append(
                lambda: f"({self._number('bigint', deeper)} / {self._number(other, deeper)})"
            )
            own.append(lambda: f"({self._number('int', deeper)} * {self._number(kind, deeper)})")
        if kind == "int":
            own.append(lambda: f"length({self._text(deeper)})")
        return self._any(kind, depth, own)

    def _text(self, depth: int) -> str:
        deeper = depth - 1
        named = self._random.choice(("upper", "lower", "trim"))
        kind = self._random.choice((*_INTEGERS, "boolean"))
        own: Sequence[Callable[[], str]] = (
            lambda: f"concat({self._text(deeper)}, {self._text(deeper)})",
            lambda: f"({self._text(deeper)} || '-')",
            lambda: f"{named}({self._text(deeper)})",
            lambda: f"CAST({self.of(kind, deeper)} AS string)",
        )
        return self._any("string", depth, own)

    def _struct_of(self, depth: int) -> str:
        deeper = depth - 1
        kind = self._random.choice(tuple(KINDS))
        made = f"named_struct('x', {self.of(kind, deeper)}, 'y', {self._text(deeper)})"
        forms = (
            made,
            f"CASE WHEN {self._boolean(deeper)} THEN {made} END",
            f"if({self._boolean(deeper)}, {made}, {made})",
            f"named_struct('z', {made}, 'inner', {self._named('value', 'inner')})",
            f"CAST({made} AS struct<P: {self._random.choice((kind, 'string'))}, q: string>)",
            f"named_struct('none', {self._random.choice(_EMPTY)}, 'y', {self._text(deeper)})",
            f"struct({self._named('value')}.inner.*, {self._text(deeper)} AS T)",
            self._random.choice(_EMPTY),
        )
        return self._random.choice(forms)
