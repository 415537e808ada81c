"""Keys of any length in stored order; colliding hashes of long keys."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from everflow.state import stored_keys

_LONG = b"p" * stored_keys.SHORT_BYTES
keys = st.one_of(
    st.binary(max_size=6),
    st.builds(lambda tail: _LONG + tail, st.binary(max_size=4)),
    st.builds(lambda tail: b"o" + _LONG[1:] + tail, st.binary(max_size=4)),
    st.builds(lambda tail: b"x" * 600 + tail, st.binary(max_size=2)),
)


def stored_form(keys: set[bytes]) -> list[tuple[bytes, bytes]]:
    buckets: dict[bytes, dict[bytes, bytes]] = {}
    plain = []
    for key in keys:
        if len(key) <= stored_keys.SHORT_BYTES:
            plain.append((stored_keys.encode(key), b"v" + key))
        else:
            buckets.setdefault(stored_keys.encode(key), {})[key[stored_keys.SHORT_BYTES :]] = (
                b"v" + key
            )
    return sorted(
        plain + [(stored, stored_keys.write_bucket(bucket)) for stored, bucket in buckets.items()]
    )


@given(st.sets(keys), st.none() | keys, st.none() | keys)
def test_a_range_of_stored_keys_is_the_range_of_keys_in_key_order(
    present: set[bytes], start: bytes | None, end: bytes | None
) -> None:
    stored = [item for item in stored_form(present) if item[0] >= stored_keys.lower_bound(start)]
    expected = [
        key
        for key in sorted(present)
        if (start is None or key >= start) and (end is None or key < end)
    ]
    assert list(stored_keys.in_range(stored, start, end)) == [(key, b"v" + key) for key in expected]
    bound = stored_keys.upper_bound(end)
    below = [item for item in stored_form(present) if bound is None or item[0] <= bound]
    assert list(stored_keys.in_range(below[::-1], start, end, reverse=True)) == [
        (key, b"v" + key) for key in expected[::-1]
    ]


@given(keys)
def test_every_stored_key_is_one_that_lmdb_takes(key: bytes) -> None:
    assert 1 <= len(stored_keys.encode(key)) <= 511
    assert stored_keys.is_bucket(stored_keys.encode(key)) == (len(key) > stored_keys.SHORT_BYTES)


def test_a_long_key_is_never_stored_where_a_short_one_could_be() -> None:
    long_key = _LONG + b"tail"
    assert stored_keys.encode(stored_keys.encode(long_key)[1:]) != stored_keys.encode(long_key)


@given(st.dictionaries(st.binary(max_size=5), st.binary(max_size=5)))
def test_a_bucket_reads_as_written(entries: dict[bytes, bytes]) -> None:
    assert stored_keys.read_bucket(stored_keys.write_bucket(entries)) == entries


def test_no_bucket_has_no_entries() -> None:
    assert stored_keys.read_bucket(None) == {}
