"""JSON in columns is JSON record by record, read and written."""

import datetime as dt
import decimal
import math
from random import Random
from typing import Any

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from everflow import serdes
from everflow.serdes import JsonSerde
from everflow.serdes.json_serde import Faults, read_chunk, read_rows
from everflow.serdes.json_writing import write_columns, write_rows
from properties.drawn_json import drawn_text, drawn_type


def texts(faults: Faults) -> dict[int, str]:
    return {row: str(error) for row, error in faults.items()}


@given(seed=st.integers(0, 2**32))
def test_what_arrow_reads_is_what_is_read_record_by_record(seed: int) -> None:
    random = Random(seed)
    type_ = drawn_type(random)
    rows = [drawn_text(random, type_) for _ in range(random.choice((1, 2, 3, 8)))]
    data = pa.array([b"before", *rows, b"behind"], pa.binary()).slice(1, len(rows))
    column, faults = read_rows(rows, type_)
    column.validate(full=True)
    found = read_chunk(data, type_)
    if found is not None:
        found[0].validate(full=True)
        assert texts(found[1]) == texts(faults)
        assert found[0].type == column.type
        assert repr(found[0].to_pylist()) == repr(column.to_pylist())  # 0.0 equals -0.0


@given(seed=st.integers(0, 2**32))
def test_a_record_means_the_same_alone_and_among_others(seed: int) -> None:
    random = Random(seed)
    type_ = drawn_type(random)
    rows = [drawn_text(random, type_) for _ in range(8)]
    column, faults = read_rows(rows, type_)
    for place, row in enumerate(rows):
        alone, fault = read_rows([row], type_)
        assert [*texts(fault).values()] == [t for row, t in texts(faults).items() if row == place]
        assert repr(alone.to_pylist()) == repr([column[place].as_py()])  # NaN differs from itself


@settings(max_examples=15)
@given(seed=st.integers(0, 2**32))
def test_bad_records_of_a_long_batch_are_named_and_the_others_read(seed: int) -> None:
    random = Random(seed)
    type_ = drawn_type(random)
    few = [drawn_text(random, type_) for _ in range(random.choice((2, 50)))]
    rows = random.choices(few, k=2500)
    column, faults = read_rows(rows, type_)
    found, marked = JsonSerde(type_).decode_marked(pa.array(rows, pa.binary()))
    assert texts(marked) == texts(faults)
    assert list(marked) == sorted(marked)
    assert repr(found.to_pylist()) == repr(column.to_pylist())


# JSON written in columns has the bytes of JSON written value by value, and is read again.


NAMES = ("a", "b", "é", "a b", 'q"', "n\\", "", "\n")
TEXTS = ("", "a", "é\U0001f600", 'q"', "\\", "\n\t\r\b\f", "\x00\x1f\x7f", "/", "null", "\u2028")
FLOATS = (
    *(0.0, -0.0, 1.0, -1.5, 0.1, 1e15, 1e16, 1e17, 1e21, 1e22, 123456789012345680.0, 5e-324),
    *(1e-4, 1e-5, 1e-6, 1e-7, 1.25e-9, 2.0**53, 2.0**63, 1.7976931348623157e308),
)
NO_NUMBERS = (math.nan, math.inf, -math.inf)
MOMENTS = (
    *(dt.datetime.min, dt.datetime.max, dt.datetime(1970, 1, 1), dt.datetime(2024, 2, 29, 1, 2, 3)),
    *(dt.datetime(1969, 12, 31, 23, 59, 59, 999999), dt.datetime(2024, 1, 1, 0, 0, 0, 1)),
)
DECIMALS = ("0.00", "-0.01", "123456789012345678.25", "1.00", "-99.90")
SCALARS = (
    *("string", "bigint", "int", "smallint", "tinyint", "double", "float", "boolean", "void"),
    *("timestamp", "timestamp_ntz", "date", "binary", "decimal(20,2)"),
    *("array<double>", "array<struct<p:string,q:int>>", "map<string,string>", "map<int,double>"),
)


def written_drawn_type(random: Random, depth: int = 0) -> pa.DataType:
    if depth < 3 and random.random() < (0.8 if depth == 0 else 0.3):
        names = random.sample(NAMES, random.randint(1, 4))
        return pa.struct([(name, written_drawn_type(random, depth + 1)) for name in names])
    return serdes.arrow_type(random.choice(SCALARS))


def drawn_value(random: Random, type_: pa.DataType, finite: bool) -> Any:
    if random.random() < 0.15 or pa.types.is_null(type_):
        return None
    if pa.types.is_struct(type_):
        return {field.name: drawn_value(random, field.type, finite) for field in type_}
    if pa.types.is_list(type_):
        return [drawn_value(random, type_.value_type, finite) for _ in range(random.randint(0, 3))]
    if pa.types.is_map(type_):
        keys = [1, -2] if pa.types.is_integer(type_.key_type) else ["", 'k"']
        return [(key, drawn_value(random, type_.item_type, finite)) for key in keys]
    return _scalar(random, type_, finite)


def _scalar(random: Random, type_: pa.DataType, finite: bool) -> Any:
    if pa.types.is_integer(type_):
        most = 2 ** (type_.bit_width - 1)
        return random.choice((0, 1, -1, most - 1, -most, random.randrange(-most, most)))
    if pa.types.is_floating(type_):
        found = random.choice((*FLOATS, random.uniform(-1, 1) * 10 ** random.randint(-300, 300)))
        found = found if finite or random.random() < 0.8 else random.choice(NO_NUMBERS)
        return found if pa.types.is_float64(type_) or abs(found) < 3e38 else 0.1
    if pa.types.is_timestamp(type_):
        moment = random.choice(MOMENTS)
        return moment.replace(tzinfo=dt.timezone.utc) if type_.tz else moment
    if pa.types.is_date(type_):
        return random.choice(MOMENTS).date()
    if pa.types.is_boolean(type_):
        return random.random() < 0.5
    if pa.types.is_decimal(type_):
        return decimal.Decimal(random.choice(DECIMALS))
    text = "".join(random.choices(TEXTS, k=random.randint(0, 2)))
    return text.encode() if pa.types.is_binary(type_) else text


def drawn_column(random: Random, finite: bool) -> pa.Array:
    type_ = written_drawn_type(random)
    rows = [drawn_value(random, type_, finite) for _ in range(random.randint(0, 6))]
    return pa.array([None, *rows, None], type_).slice(1, len(rows))


@given(seed=st.integers(0, 2**32))
def test_columns_are_written_as_their_values_are(seed: int) -> None:
    column = drawn_column(Random(seed), finite=False)
    rows = write_rows(column)
    written = write_columns(column)
    written.validate(full=True)
    assert written.to_pylist() == rows.to_pylist()
    assert written.type == rows.type == pa.binary()


@given(seed=st.integers(0, 2**32))
def test_what_is_written_is_read_again(seed: int) -> None:
    column = drawn_column(Random(seed), finite=True)
    serde = JsonSerde(column.type)
    again = serde.decode_array(write_columns(column))
    assert repr(again.to_pylist()) == repr(column.to_pylist())
