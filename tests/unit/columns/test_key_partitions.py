"""Keys go where their producers' own code puts them."""

import zlib

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.partitioner.default import murmur2 as client_murmur2

from everflow.columns.key_partitions import (
    BY_HASH,
    crc32,
    fnv1a,
    java_partitions,
    key_partitions,
    murmur2,
)

SIZES = st.sampled_from([0, 1, 2, 3, 4, 7, 63, 64, 65, 200, 3000])
KEYS = st.lists(st.none() | SIZES.flatmap(lambda n: st.binary(min_size=n, max_size=n)), max_size=60)


def column_of(keys: list[bytes | None]) -> pa.Array:
    """With an offset, as a part of a larger one has."""
    return pa.array([b"before", *keys], pa.binary())[1:]


@given(KEYS, st.integers(1, 200))
def test_partitions_are_java_s(keys: list[bytes | None], partitions: int) -> None:
    column = column_of(keys)
    hashes = [client_murmur2(key or b"") for key in keys]
    assert murmur2(column).tolist() == [number & 0xFFFFFFFF for number in hashes]
    wanted = [(number & 0x7FFFFFFF) % partitions for number in hashes]
    assert java_partitions(column, partitions).tolist() == wanted


@given(KEYS, st.integers(1, 200))
def test_crc32_is_zlib_s(keys: list[bytes | None], partitions: int) -> None:
    column = column_of(keys)
    hashes = [zlib.crc32(key or b"") for key in keys]
    assert crc32(column).tolist() == hashes
    wanted = [number % partitions for number in hashes]
    assert key_partitions(column, partitions, "crc32").tolist() == wanted


def byte_by_byte(key: bytes) -> int:
    """``rd_fnv1a`` of librdkafka."""
    found = 0x811C9DC5
    for byte in key:
        found = ((found ^ byte) * 0x01000193) & 0xFFFFFFFF
    return found if found < 1 << 31 else (1 << 32) - found


@given(KEYS)
def test_fnv1a_is_librdkafka_s(keys: list[bytes | None]) -> None:
    assert fnv1a(column_of(keys)).tolist() == [byte_by_byte(key or b"") for key in keys]


def test_librdkafka_s_own_test_vectors_of_fnv1a() -> None:
    """``unittest_fnv1a`` of rdfnv1a.c."""
    vectors = {
        b"kafka": 0xD33C4E1,
        b"giberish123456789": 0x77A58295,
        b"1234": 0x23BDD03,
        b"234": 0x2DEA3CD2,
        b"34": 0x740FA83E,
        b"4": 0x310CA263,
        b"PreAmbleWillBeRemoved,ThePrePartThatIs": 0x65CBD69C,
        b"": 0x7EE3623B,
    }
    assert fnv1a(pa.array(list(vectors), pa.binary())).tolist() == list(vectors.values())


@pytest.mark.parametrize("by", BY_HASH)
def test_no_keys_have_no_partitions(by: str) -> None:
    assert key_partitions(pa.array([], pa.binary()), 3, by).tolist() == []
