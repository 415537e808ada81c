"""Corrupt bytes from outside end in a value or an error for people, the same on both roads."""

import os
import random
import struct
import zlib
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from everflow import Windowed, serdes
from everflow.assignment.user_data import (
    AssignmentData,
    UserData,
    UserDataError,
    decode,
    decode_assignment,
    encode,
    encode_assignment,
)
from everflow.kafka.reading import record_batches
from everflow.kafka.reading.record_columns import CorruptBatchError
from everflow.records import TaskId
from everflow.serdes.base import SerdeError
from properties.test_record_batches import batch_bytes

SEED = 16
COUNT = 10_000 if os.environ.get("EVERFLOW_EXPLORE") == "1" else 300
SCHEMA = (
    "id bigint, n int, price double, name string, at timestamp, day date, ok boolean, "
    "cost decimal(10,2), tags array<string>, inner struct<a: int, b: array<double>>"
)
JSON = (
    b'{"id":7,"n":-3,"price":1.5e3,"name":"\xc3\xa9t\xc3\xa9","at":"2024-02-29T12:00:00.123Z",'
    b'"day":"2024-02-29","ok":true,"cost":12.34,"tags":["a",null],"inner":{"a":1,"b":[0.5]}}'
)
REFUSED = object()
NASTY = (
    b"", b"{", b"[" * 100_000, b'{"a":' * 50_000, b"null", b"NaN", b'{"id":1e400}', b"\xff\xfe",
    b'{"at":1700000000}', b'{"day":"99999-01-01"}', b'{"n":99999999999}', b'{"id":1}{"id":2}',
    b'{"name":"\\ud800"}', b'{"cost":99999999999999999999.99}', b"\x00" * 9,
)  # fmt: skip
"""Beside what is drawn."""


def corrupt(rng: random.Random, good: bytes) -> bytes:
    """One to four changes of the kinds that disks, wires and strangers make."""
    data = bytearray(good)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        at = rng.randrange(len(data) + 1)
        kind = rng.randrange(6)
        if kind == 0 and data:
            data[at % len(data)] ^= 1 << rng.randrange(8)
        elif kind == 1:
            del data[at : at + rng.randrange(1, 9)]
        elif kind == 2:
            data[at:at] = rng.randbytes(rng.randrange(1, 9))
        elif kind == 3:
            del data[at:]
        elif kind == 4 and data:
            data[at % len(data)] = rng.choice(b'\x00\xff\x7f\x80"{}[]:,-e9')
        else:
            begin = rng.randrange(len(data) + 1)
            data[at:at] = data[begin : begin + rng.randrange(1, 40)]
    return bytes(data)


def drawn(good: bytes) -> list[tuple[int, bytes]]:
    """(number, bytes): the number and `SEED` make them again."""
    return [(n, corrupt(random.Random(f"{SEED}/{n}"), good)) for n in range(COUNT)]


@pytest.mark.parametrize(
    ("serde", "value"),
    [
        (serdes.json(SCHEMA), JSON),
        (serdes.int_(), 7),
        (serdes.long(), -7),
        (serdes.double(), 0.1),
        (serdes.string(), "naïve"),
        (serdes.boolean(), True),
        (serdes.short(), -2),
        (serdes.float_(), 0.1),
        (serdes.list_(serdes.string()), ["a", None, "é"]),
        (serdes.list_(serdes.long()), [1, None]),
        (serdes.list_(serdes.list_(serdes.short())), [[1], None]),
        (serdes.packed("n bigint, s string, l array<string>"), {"n": 1, "s": "a", "l": ["b"]}),
        (serdes.time_windowed(serdes.string(), 1_000), Windowed("key", 5_000, 6_000)),
        (serdes.session_windowed(serdes.long()), Windowed(5, 5_000, 6_000)),
    ],
    ids=lambda one: type(one).__name__,
)
def test_a_corrupt_record_is_a_value_or_a_serde_error_on_both_roads(serde: Any, value: Any) -> None:
    good = value if isinstance(value, bytes) else serde.encode(value)
    expected = serde.decode_array(pa.array([good], pa.binary())).to_pylist()[0]
    refused = 0
    for n, bad in [*drawn(good), *((-1 - i, one) for i, one in enumerate(NASTY))]:
        says = f"seed {SEED}, number {n}: {bad[:200]!r}"
        alone = outcome(serde.decode_array, pa.array([bad], pa.binary()), says)
        one = outcome(serde.decode, bad, says)
        assert (alone is REFUSED) == (one is REFUSED), says
        column = pa.array([good, bad, None, good], pa.binary())
        among = outcome(serde.decode_array, column, says)
        if alone is REFUSED:
            assert among is REFUSED, says
            refused += 1
            with pytest.raises(SerdeError) as told:
                serde.decode_array(column)
            assert told.value.index == 1, says
        else:
            found = among.to_pylist()
            assert [repr(row) for row in found] == [
                repr(row) for row in (expected, alone.to_pylist()[0], None, expected)
            ], says
    assert refused > COUNT // 100, "nothing was refused: the bytes were not corrupt"


def outcome(read: Callable[[Any], Any], given: Any, says: str) -> Any:
    try:
        return read(given)
    except SerdeError:
        return REFUSED
    except Exception as error:
        raise AssertionError(f"{says}: {error!r}") from error


@pytest.mark.parametrize("packed", [True, False], ids=["bytes", "what is packed in them"])
@pytest.mark.parametrize("read", [decode, decode_assignment])
def test_corrupt_user_data_are_user_data_or_an_error(read: Any, packed: bool) -> None:
    tasks = frozenset(TaskId(index, p) for index in (0, 1) for p in range(5))
    member = UserData(
        process_id="p", owned=tasks, offset_sums=dict.fromkeys(tasks, 9), tags={"zone": "a"}
    )
    good = encode(member)
    if read is decode_assignment:
        good = encode_assignment(AssignmentData(active=tasks, standby=tasks))
    plain = zlib.decompress(good[4:])
    for n, bad in drawn(good if packed else plain):
        blob = bad if packed else good[:4] + zlib.compress(bad)
        try:
            found = read(blob)
        except UserDataError:
            continue
        except Exception as error:
            raise AssertionError(f"seed {SEED}, number {n}: {bad!r}: {error!r}") from error
        assert isinstance(found, UserData | AssignmentData)


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "xerial", "lz4", "zstd"])
def test_a_corrupt_fetch_response_is_refused_or_gives_the_same_records(codec: str) -> None:
    rows: list[Any] = [
        (i, 10**12 + i, b"k%d" % i, b"v" * (i % 40), [("h", b"x")]) for i in range(30)
    ]
    good = b"".join(batch_bytes(base, rows, codec=codec) for base in (0, 30))
    expected = parsed(good)
    for n, bad in drawn(good):
        try:
            found = parsed(bad)
        except CorruptBatchError:
            continue
        except Exception as error:
            raise AssertionError(f"seed {SEED}, number {n}: {error!r}") from error
        # Cut off, the rest comes with the next fetch; what the checksum leaves out is the offset.
        assert found == expected[: len(found)], f"seed {SEED}, number {n}"


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "xerial", "lz4", "zstd"])
def test_records_that_were_written_wrong_are_refused_or_read_as_they_are(codec: str) -> None:
    """The checksum fits: a writer was wrong, or ``check.crcs`` is off."""
    rows: list[Any] = [
        (i, 10**12 + i, b"k%d" % i, b"v" * (i % 40), [("h", b"x")]) for i in range(30)
    ]
    good = batch_bytes(0, rows, codec=codec)
    for n, bad in drawn(good[61:]):
        length = struct.pack(">i", 61 - 12 + len(bad))
        whole = good[:8] + length + good[12:61] + bad
        try:
            found = record_batches.columns(whole, record_batches.batches(whole))
            found.arrow(True)
        except CorruptBatchError:
            continue
        except Exception as error:
            raise AssertionError(f"seed {SEED}, number {n}: {error!r}") from error
        assert len(found.keys()) == len(found.values()) == len(rows), f"seed {SEED}, number {n}"


def parsed(data: bytes) -> list[tuple[Any, ...]]:
    """Times, keys and values of the batches that pass the check, as a tap reads them."""
    found = record_batches.batches(data)
    record_batches.check(data, found)
    read = record_batches.columns(data, found)
    read.arrow(True)
    return list(zip(read.timestamps.tolist(), read.keys(), read.values(), strict=True))
