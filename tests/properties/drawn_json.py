"""JSON schemas, and texts that are nearly always JSON of them."""

import json
from collections.abc import Sequence
from random import Random

import pyarrow as pa

from everflow import serdes

SCALARS = (
    *("string", "bigint", "int", "smallint", "tinyint", "double", "boolean", "float"),
    *("timestamp", "timestamp_ntz", "date", "binary"),
    *("array<double>", "array<string>", "array<array<bigint>>", "array<struct<a:int,b:boolean>>"),
)
NAMES = ("a", "b", "c", "é", "a b", 'q"', "n\\", "")
_NUMBERS = """
0 -0 1 -1 1.0 1.5 1e3 1E3 -0.0 0e0 -0e5 127 128 -129 32768 2147483648 0.1 -1.25e-3
1e400 1e-400 99e307 1e308 1.8e308 1.7976931348623157e308 1.7976931348623159e308 1e309 1e0308
1e+308 1e+309 1e99999999999 1e-99999999999 5e-324 2.4703282292062327e-324 0.30000000000000004
9007199254740993 9223372036854775807 9223372036854775808 -9223372036854775809
18446744073709551615 18446744073709551616 01 +1 .5 1. 1e - --1 0x10 1_0
NaN Infinity -Infinity Inf -Inf nan
1.0000000000000000001 4503599627370497.25 9007199254740991.5 127.00000000000000001 10e-1 100e-400
"NaN" "Infinity" "-Infinity" "nan" "Inf" "1" "1_0" " 1"
"""
NUMBERS = _NUMBERS.split()
NUMBERS += ["9" * digits for digits in (199, 200, 308, 309, 310)]
NUMBERS += ["9" * 199 + "e99", "9" * 220 + "e99", "0." + "0" * 300 + "1", "1" + "0" * 308]
TEXTS = (
    *(
        '""',
        '"a"',
        '"x y"',
        '"é"',
        '"\\u00e9"',
        '"\\ud83d\\ude00"',
        '"a\\nb"',
        '"\\/"',
        '"\U0001f600"',
    ),
    *('"\\ud800"', '"\\udc00"', '"\\ud800\\u0041"', '"\\u0000"', '"\\x"', '"\\u12"', '"a\tb"'),
    *('"NaN"', '": NaN"', '"}null"', '"} null"', '"{"', '"\\\\"', '"\\""', '"1e400"', '"Info"'),
    *('"\x7f"', "'a'", '"unfinished', '"\u2028"', '"' + "x" * 600 + '"'),
)
DAYS = (
    *('"2024-01-31"', '"0001-01-01"', "null", '"9999-12-31"', '"0000-01-01"', '"2023-02-29"'),
    *('"2024-13-01"', '"20240131"', '"2024-W05-3"', '"2024-1-1"', '"2024-01-31 "', '"2024-01-31Z"'),
)
MOMENTS = (
    *(
        '"2024-01-31T12:00:00Z"',
        '"2024-01-31 12:00:00.123456Z"',
        "null",
        '"1969-12-31T23:59:59.999Z"',
    ),
    *('"2024-01-31T12:00:00"', '"2024-01-31T12:00:00.123"', '"2024-01-31T12:00:00+02:00"'),
    *('"2024-01-31T12:00"', '"2024-01-31"', '"2024-01-31T24:00:00Z"', '"2024-01-31T23:59:60Z"'),
    *('"0000-01-01T00:00:00Z"', '"0001-01-01T00:00:00Z"', '"9999-12-31T23:59:59.999999Z"'),
    *('"0001-01-01T00:00:00+02:00"', '"9999-12-31T23:59:59-02:00"', '"2024-01-31T12:00:00z"'),
    *('"2024-01-31t12:00:00z"', '"2024-01-31T12:00:00.123456000Z"', '"2024-01-31x12:00:00Z"'),
    *('"2024-01-31T12:00:00.0000001Z"', '" 2024-01-31T12:00:00Z"', '"2024-01-31T12:00:00.5+0530"'),
    *('"2024-01-31T12:00:00-23:59"', '"2024-01-31T12:00:00+24:00"', '"1000-01-01T00:00:00+23:59"'),
    *('"\u0662024-01-31T12:00:00Z"', '"2024-01-31T12:00:00,5Z"', '"2024-01-31T12:00:00.Z"'),
    *('"2024-01-31T12:00:00.1Z"', '"2024-01-31T12:00:00.1234567Z"', '"noon"', "1706702400000"),
)
WORDS = ("null", "true", "false", "nul", "True", "undefined", "", "{}", "[]", "[null]")
KEYS = (*("a", "b", "c", "é", "z", "A", "", 'q\\"', "n\\\\"), *("\\u0061", "\\u00e9", "\\ud800"))
WHOLE = (
    *(b"", b" ", b"null", b" null", b"{}", b"[]", b"5", b'"x"', b"\xef\xbb\xbf{}", b"{", b"}"),
    *(
        b"{}{}",
        b"{}null{}",
        b"{} null {}",
        b"{}\nnull {}",
        b"{}[]{}",
        b"{},{}",
        b"{}x{}",
        b"{}\0{}",
    ),
    *(b'{"a":', b'{"a":"', b'{"a":{"b":1', b'"b":1}}', b'{"a":1}}', b"garbage"),
    *(b'{"z":' + b"[" * levels + b"]" * levels + b"}" for levels in (400, 600, 1100)),
    b'{"a":' * 700 + b"1" + b"}" * 700,
)
BITS = (
    *(b"{", b"}", b"[", b"]", b",", b":", b'"', b"\\", b"null", b"}{", b"}null{", b"}\n{", b"true"),
    *(b"\n", b"\t", b" ", b"NaN", b"-", b"e9", b"0", b".", b"\\u"),
    *(b"\x00", b"\xff", b"\xc3", b"\xed\xa0\x80"),
)


def drawn_type(random: Random, depth: int = 0) -> pa.DataType:
    """A struct of what Arrow's parser reads."""
    kinds = (*SCALARS, "struct", "struct") if depth < 3 else SCALARS
    names = random.sample(NAMES, random.randint(1, 4))
    fields = []
    for name in names:
        kind = random.choice(kinds)
        fields.append(
            (name, drawn_type(random, depth + 1) if kind == "struct" else serdes.arrow_type(kind))
        )
    return pa.struct(fields)


def drawn_text(random: Random, type_: pa.DataType) -> bytes | None:
    """An object of ``type_``, or not quite."""
    chance = random.random()
    if chance < 0.01:
        return None
    if chance < 0.05:
        return random.choice(WHOLE)
    text = _object(random, type_, 0).encode()
    for _ in range(random.randint(1, 3) if chance < 0.12 else 0):
        at = random.randint(0, len(text))
        text = text[:at] + random.choice(BITS) + text[at + random.randint(0, 2) :]
    return text


def _object(random: Random, type_: pa.DataType | None, depth: int) -> str:
    items = [
        (
            json.dumps(field.name, ensure_ascii=random.random() < 0.3)[1:-1],
            _value(random, field.type, depth),
        )
        for field in type_ or ()
        if random.random() < 0.85
    ]
    while random.random() < 0.3:
        items.append((random.choice(KEYS), _value(random, None, depth)))
    if items and random.random() < 0.05:
        items.append(random.choice(items))
    random.shuffle(items)
    space = random.choice(("", " ", "\n", "\t", "\r")) if random.random() < 0.05 else ""
    return f"{{{space}" + f",{space}".join(f'"{name}":{text}{space}' for name, text in items) + "}"


def _value(random: Random, type_: pa.DataType | None, depth: int) -> str:
    if type_ is None or random.random() < 0.1:
        return _anything(random, depth)
    if pa.types.is_struct(type_):
        return "null" if random.random() < 0.1 else _object(random, type_, depth + 1)
    if pa.types.is_list(type_) and random.random() < 0.95:
        count = random.randint(0, 3)
        return f"[{','.join(_value(random, type_.value_type, depth + 1) for _ in range(count))}]"
    good: Sequence[str] = ("0", "1", "-1", "100", "127")
    if pa.types.is_string(type_):
        good = TEXTS[:9]
    elif pa.types.is_timestamp(type_) or pa.types.is_date(type_):
        good = DAYS if pa.types.is_date(type_) else MOMENTS
        good = good[:3] if random.random() < 0.7 else good
    elif pa.types.is_binary(type_):
        good = ('""', '"AP8="', '"A"', '"?"', '"AA==AA=="', '"AB=="', '" AP8="', '"\u00e9"')
    elif pa.types.is_boolean(type_):
        good = WORDS[:3]
    elif random.random() < 0.3:
        good = NUMBERS
    return random.choice(good)


def _anything(random: Random, depth: int) -> str:
    chance = random.random() * (0.7 if depth > 5 else 1)
    if chance < 0.7:
        return random.choice(random.choice((NUMBERS, TEXTS, WORDS)))
    if chance < 0.85:
        items = [_anything(random, depth + 1) for _ in range(random.randint(0, 3))]
        return f"[{','.join(items)}]"
    return _object(random, None, depth + 1)
