"""Record batches in columns are what kafka-python's reader finds, whatever the bytes."""

import contextlib
import os
import random
import struct
import tracemalloc
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st
from kafka.record import MemoryRecords
from kafka.record.default_records import DefaultRecordBatchBuilder

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
from everflow.errors import FatalError
from everflow.kafka.reading import record_batches, record_columns
from everflow.kafka.reading.record_columns import CorruptBatchError
from everflow.records import TaskId
from everflow.serdes.base import SerdeError

HEADER = 61
CODECS = {"none": 0, "gzip": 1, "snappy": 2, "xerial": 2, "lz4": 3, "zstd": 4}
Record = tuple[int, int, bytes | None, bytes | None]


def batch_bytes(
    base: int,
    rows: list[tuple[int, int, bytes | None, bytes | None, list[tuple[str, bytes | None]]]],
    *,
    codec: str = "none",
    append_time: bool = False,
    producer: int = -1,
    transactional: bool = False,
) -> bytes:
    """``rows``: (offset delta, time, key, value, headers); built by kafka-python's own writer."""
    epoch = sequence = -1 if producer < 0 else 0
    builder = DefaultRecordBatchBuilder(2, 0, transactional, producer, epoch, sequence, 1 << 30)
    for delta, at, key, value, headers in rows:
        builder.append(delta, at, key, value, headers)
    plain = bytearray(builder.build())
    packed = compress(bytes(plain[HEADER:]), codec)
    (attributes,) = struct.unpack_from(">h", plain, 21)
    struct.pack_into(">h", plain, 21, attributes | CODECS[codec] | (8 if append_time else 0))
    struct.pack_into(">qi", plain, 0, base, HEADER - 12 + len(packed))
    return summed(bytes(plain[:HEADER]) + packed)


def summed(made: bytes) -> bytes:
    checksum = crc32c(made[21:])
    return made[:17] + checksum.to_bytes(4, "big") + made[21:]


def marker(offset: int, producer: int, *, abort: bool) -> bytes:
    plain = bytearray(
        batch_bytes(
            offset,
            [(0, 5, struct.pack(">hh", 0, 0 if abort else 1), b"\0" * 6, [])],
            producer=producer,
        )
    )
    struct.pack_into(">h", plain, 21, 0x30)
    return bytes(plain)


def compress(records: bytes, codec: str) -> bytes:
    if codec == "none":
        return records
    if codec == "gzip":
        packer = zlib.compressobj(wbits=31)
        return packer.compress(records) + packer.flush()
    if codec == "snappy":
        return bytes(pa.Codec("snappy").compress(records, asbytes=True))
    if codec == "xerial":
        blocks = [
            bytes(pa.Codec("snappy").compress(records[at : at + 100], asbytes=True))
            for at in range(0, len(records), 100)
        ]
        return (
            b"\x82SNAPPY\x00"
            + struct.pack(">ii", 1, 1)
            + b"".join(struct.pack(">i", len(block)) + block for block in blocks)
        )
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, codec) as stream:
        stream.write(records)
    return bytes(sink.getvalue())


def parsed(data: bytes, aborted: list[tuple[int, int]] | None = None) -> list[Record]:
    found = record_batches.batches(data)
    columns = record_batches.columns(data, record_batches.committed(data, found, aborted or []))
    assert columns.offsets.dtype == columns.timestamps.dtype == np.int64
    rows = rows_of(columns)
    assert columns.sizes.tolist() == [len(k or b"") + len(v or b"") for _, _, k, v in rows]
    return rows


def rows_of(columns: record_columns.Columns) -> list[Record]:
    return list(
        zip(
            columns.offsets.tolist(),
            columns.timestamps.tolist(),
            columns.keys(),
            columns.values(),
            strict=True,
        )
    )


def arrow_rows(data: bytes, headers: bool) -> list[tuple[Any, ...]]:
    """The same in Arrow columns, with headers."""
    found = record_batches.columns(
        data, record_batches.committed(data, record_batches.batches(data), [])
    ).arrow(headers)
    assert (found.keys.type, found.values.type) == (pa.binary(), pa.binary())
    none: list[Any] | None = [] if headers else None
    names = [none] * len(found) if found.headers is None else found.headers.to_pylist()
    rows = (
        found.offsets.tolist(),
        found.timestamps.tolist(),
        found.keys.to_pylist(),
        found.values.to_pylist(),
        names,
    )
    return list(zip(*rows, strict=True))


def reference(data: bytes) -> list[Record]:
    """kafka-python's reader, for batches that it can decompress."""
    rows: list[Record] = []
    records = MemoryRecords(data)
    while (batch := records.next_batch()) is not None:
        if not batch.is_control_batch:
            rows += [(one.offset, one.timestamp, one.key, one.value) for one in batch]
    return rows


some_bytes = st.one_of(
    st.none(), st.binary(max_size=200), st.binary(min_size=8, max_size=8), st.just(b"\0" * 8)
)
row = st.tuples(
    st.integers(0, 300),
    st.one_of(st.integers(0, 2**42), st.integers(10**12, 10**12 + 100)),
    some_bytes,
    some_bytes,
    st.lists(
        st.tuples(st.text(max_size=5), st.one_of(st.none(), st.binary(max_size=70))), max_size=2
    ),
)


@st.composite
def batch(draw: st.DrawFn) -> dict[str, Any]:
    rows = draw(st.lists(row, min_size=1, max_size=40))
    repeat = draw(st.sampled_from([1, 1, 5, 60]))  # runs of records of one length, cut by others
    gaps = draw(
        st.lists(st.integers(1, 3), min_size=len(rows) * repeat, max_size=len(rows) * repeat)
    )
    offsets = np.cumsum(gaps).tolist()
    repeated = [one for one in rows for _ in range(repeat)]
    return {
        "rows": [(offset, *one[1:]) for offset, one in zip(offsets, repeated, strict=True)],
        "append_time": draw(st.booleans()),
        "producer": draw(st.sampled_from([-1, 7])),
    }


@given(
    st.lists(batch(), min_size=1, max_size=4),
    st.sampled_from(["none", "gzip"]),
    st.integers(0, 2**40),
)
def test_the_same_as_kafka_python_reads(made: list[dict[str, Any]], codec: str, base: int) -> None:
    data = b""
    for one in made:
        data += batch_bytes(base, codec=codec, **one)
        base += one["rows"][-1][0] + 1
    assert parsed(data) == reference(data)
    assert record_batches.batches(data)[-1].next_offset == base
    given_headers = [
        [{"key": name, "value": value} for name, value in one[-1]]
        for batch in made
        for one in batch["rows"]
    ]
    assert arrow_rows(data, True) == [
        (*row, head) for row, head in zip(reference(data), given_headers, strict=True)
    ]
    assert arrow_rows(data, False) == [(*row, None) for row in reference(data)]


@given(batch(), st.sampled_from(["snappy", "xerial", "lz4", "zstd"]))
def test_compressed_batches_hold_what_was_compressed(one: dict[str, Any], codec: str) -> None:
    assert (
        parsed(batch_bytes(3, codec=codec, **one))
        == parsed(batch_bytes(3, **one))
        == reference(batch_bytes(3, **one))
    )


@given(batch(), batch(), st.data())
def test_a_cut_off_batch_is_left_out(
    first: dict[str, Any], second: dict[str, Any], data: st.DataObject
) -> None:
    whole, rest = batch_bytes(0, **first), batch_bytes(1000, **second)
    cut = data.draw(st.integers(0, len(rest) - 1))
    assert parsed(whole + rest[:cut]) == reference(whole)


@given(batch(), st.data())
def test_broken_bytes_are_found_or_other_records(one: dict[str, Any], data: st.DataObject) -> None:
    broken = bytearray(batch_bytes(0, **one))
    at = data.draw(st.integers(HEADER, len(broken) - 1))
    broken[at] = data.draw(st.integers(0, 255))
    with contextlib.suppress(CorruptBatchError):
        assert len(parsed(bytes(broken))) == len(one["rows"])
    with contextlib.suppress(CorruptBatchError):
        assert len(arrow_rows(bytes(broken), True)) == len(one["rows"])


@given(batch(), st.integers(0, 900), st.integers(0, 900))
def test_between_keeps_the_offsets_asked_for(one: dict[str, Any], start: int, end: int) -> None:
    data = batch_bytes(0, **one)
    columns = record_batches.columns(data, record_batches.batches(data))
    assert rows_of(columns.between(start, end)) == [
        row for row in rows_of(columns) if start <= row[0] < end
    ]


@given(
    st.lists(
        st.one_of(st.none(), st.binary(max_size=2), st.binary(min_size=20, max_size=20)),
        min_size=1,
        max_size=8,
    ),
    st.integers(1, 2000),
    st.randoms(use_true_random=False),
)
def test_the_latest_records_fold_as_all(keys: list[bytes | None], count: int, random: Any) -> None:
    rows: list[Any] = [
        (i, random.randrange(1000), random.choice(keys), random.choice([None, b"%d" % i]), [])
        for i in range(count)
    ]
    data = batch_bytes(0, rows)
    columns = record_batches.columns(data, record_batches.batches(data))
    everything, latest = rows_of(columns), rows_of(columns.latest())
    assert set(latest) <= set(everything)
    assert latest == sorted(latest, key=lambda row: row[0])
    assert {
        key: row for *row, key, _ in ((at, value, key, offset) for offset, at, key, value in latest)
    } == {key: [at, value] for _, at, key, value in everything}
    assert max(at for _, at, _, _ in latest) == max(at for _, at, _, _ in everything)
    if count >= 256 and None not in keys and b"" not in keys:
        assert len(latest) <= 4 * len(keys) + 1


@pytest.mark.parametrize(
    "sizes",
    [[3] * 40_000, [3] * 500 + [70] * 500 + [9, 3] * 300, [*range(1, 400)] * 2, [200] * 900 + [1]],
)
def test_long_runs(sizes: list[int]) -> None:
    rows: list[Any] = [
        (i, 10**12 + i, b"k%06d" % i, bytes([i % 256]) * size, []) for i, size in enumerate(sizes)
    ]
    data = batch_bytes(0, rows)
    assert parsed(data) == [(offset, at, key, value) for offset, at, key, value, _ in rows]


@given(
    st.lists(st.lists(st.integers(0, 300), min_size=1, max_size=9), min_size=30, max_size=60),
    st.data(),
)
def test_many_batches_are_cut_together(sizes: list[list[int]], data: st.DataObject) -> None:
    made, expected, base = b"", [], 0
    for batch_sizes in sizes:
        rows: list[Any] = [
            (i, 10**12 + i, b"k" * (size % 5), b"v" * size, [])
            for i, size in enumerate(batch_sizes)
        ]
        made += batch_bytes(base, rows)
        expected += [(base + offset, at, key, value) for offset, at, key, value, _ in rows]
        base += len(rows)
    assert parsed(made) == expected
    broken = bytearray(made)
    broken[data.draw(st.integers(HEADER, HEADER + 8))] ^= data.draw(st.integers(1, 255))
    with contextlib.suppress(CorruptBatchError):
        assert len(parsed(bytes(broken))) == len(expected)


def test_unequal_batches_take_memory_by_their_records() -> None:
    """20,000 small batches and one large: once 64 MB, batches times the largest of them."""
    small = batch_bytes(0, [(0, 10**12, b"k", b"v", [])])
    log = bytearray()
    for at in range(20_000):
        log += struct.pack(">q", at) + small[8:]
    rows: list[Any] = [(i, 10**12, b"k", b"v", []) for i in range(200)]
    data = bytes(log) + batch_bytes(20_000, rows)
    wanted = record_batches.batches(data)
    tracemalloc.start()
    found = record_batches.columns(data, wanted)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert found.offsets.tolist() == list(range(20_200))
    assert peak < 4 * len(data)


def test_a_header_that_promises_more_records_than_fit_is_damaged() -> None:
    data = bytearray(batch_bytes(0, [(0, 5, b"k", b"v", [])]))
    struct.pack_into(">i", data, HEADER - 4, 2**31 - 1)
    with pytest.raises(CorruptBatchError, match="2147483647 records in"):
        parsed(bytes(data))


@given(st.lists(batch(), min_size=1, max_size=3), st.data())
def test_a_flipped_bit_of_the_sum_is_found(made: list[dict[str, Any]], data: st.DataObject) -> None:
    log = bytearray()
    places: list[int] = []
    base = 0
    for one in made:
        plain = {"rows": one["rows"], "producer": one["producer"]}
        begin = len(log)
        log += batch_bytes(base, **plain)
        places += range(begin + 17, len(log))
        base += one["rows"][-1][0] + 1
    record_batches.check(bytes(log), record_batches.batches(bytes(log)))
    log[data.draw(st.sampled_from(places))] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(CorruptBatchError):
        record_batches.check(bytes(log), record_batches.batches(bytes(log)))


def test_aborted_transactions_and_markers_are_left_out() -> None:
    def records(offset: int, producer: int, *values: bytes, transactional: bool = True) -> bytes:
        rows: list[Any] = [(i, 1, None, value, []) for i, value in enumerate(values)]
        return batch_bytes(offset, rows, producer=producer, transactional=transactional)

    log = [
        records(0, 7, b"aborted", b"aborted"),
        records(2, 8, b"kept"),
        marker(3, 7, abort=True),
        records(4, 7, b"next transaction of 7"),
        records(5, 8, b"kept too"),
        marker(6, 8, abort=False),
        marker(7, 7, abort=False),
        records(8, 8, b"aborted later"),
        records(9, -1, b"plain", transactional=False),
        marker(10, 8, abort=True),
    ]
    kept = [b"kept", b"next transaction of 7", b"kept too", b"plain"]
    assert [value for *_, value in parsed(b"".join(log), [(8, 8), (7, 0)])] == kept
    assert record_batches.batches(b"".join(log))[-1].next_offset == 11
    # A fetch that begins inside the aborted transaction is told of it as well.
    assert [value for *_, value in parsed(b"".join(log[1:]), [(7, 0), (8, 8)])] == kept


def test_portions_are_bounded_by_what_the_batches_may_grow_to() -> None:
    rows: list[Any] = [(i, 1, b"k", b"v" * 20, []) for i in range(10)]
    plain, packed = batch_bytes(0, rows), batch_bytes(0, rows, codec="zstd")
    found = record_batches.batches(plain * 3 + packed * 3 + plain)
    size, grown = len(plain) - HEADER, 8 * (len(packed) - HEADER)
    assert [len(portion) for portion in record_batches.portions(found, 1)] == [1] * 7
    assert len(next(record_batches.portions(found, 3 * size + grown))) == 4
    assert [len(portion) for portion in record_batches.portions(found, 4 * size + 3 * grown)] == [7]
    assert [one for portion in record_batches.portions(found, 2 * size) for one in portion] == found


def test_a_batch_that_compaction_emptied_still_moves_the_position() -> None:
    emptied = bytearray(batch_bytes(20, [(9, 5, b"k", b"v", [])])[:HEADER])
    struct.pack_into(">qi", emptied, 0, 20, HEADER - 12)
    struct.pack_into(">i", emptied, HEADER - 4, 0)
    data = bytes(emptied)
    assert record_batches.batches(data)[0].next_offset == 30
    assert parsed(data) == []


def test_what_it_does_not_read_is_told() -> None:
    old = bytearray(batch_bytes(0, [(0, 5, b"k", b"v", [])]))
    old[16] = 1
    with pytest.raises(CorruptBatchError, match="v1"):
        record_batches.batches(bytes(old))
    unknown = bytearray(batch_bytes(0, [(0, 5, b"k", b"v", [])]))
    unknown[22] |= 7
    with pytest.raises(CorruptBatchError, match=r"compression.*7.*0"):
        parsed(bytes(unknown))
    squeezed = bytearray(batch_bytes(0, [(0, 5, b"k", b"v", [])], codec="zstd"))
    squeezed[HEADER:] = b"\xff" * (len(squeezed) - HEADER)
    with pytest.raises(CorruptBatchError, match="cannot be decompressed"):
        parsed(bytes(squeezed))


@pytest.mark.parametrize("codec", ["gzip", "lz4", "zstd"])
def test_bytes_for_gigabytes_are_refused_first(codec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    small = compress(b"\0" * (4 << 20), codec)
    assert len(small) < 1 << 15
    unread = pa.total_allocated_bytes()
    bomb = batch_bytes(7, [(0, 5, b"k", b"v", [])], codec=codec)[:HEADER] + small
    bomb = bomb[:8] + struct.pack(">i", len(bomb) - 12) + bomb[12:]
    monkeypatch.setattr(record_batches, "LARGEST_BATCH_BYTES", 1 << 20)
    with pytest.raises(FatalError, match=r"at offset 7: its [\d,]+ bytes .* more than 1,048,576"):
        parsed(bomb)
    assert pa.total_allocated_bytes() - unread < 4 << 20


def test_a_batch_may_be_as_large_as_that() -> None:
    rows: list[Any] = [(0, 5, b"k", b"\0" * (2 << 20), [])]
    assert parsed(batch_bytes(0, rows, codec="zstd")) == parsed(batch_bytes(0, rows))


# Corrupt bytes from outside end in a value or an error for people, the same on both roads.


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
    expected = corrupt_parsed(good)
    for n, bad in drawn(good):
        try:
            found = corrupt_parsed(bad)
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


def corrupt_parsed(data: bytes) -> list[tuple[Any, ...]]:
    """Times, keys and values of the batches that pass the check, as a fetcher reads them."""
    found = record_batches.batches(data)
    record_batches.check(data, found)
    read = record_batches.columns(data, found)
    read.arrow(True)
    return list(zip(read.timestamps.tolist(), read.keys(), read.values(), strict=True))
