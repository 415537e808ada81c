"""JSON in columns is JSON record by record, read and written."""

from random import Random

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from everflow.serdes import JsonSerde
from everflow.serdes.json_serde import Faults, read_chunk, read_rows
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
