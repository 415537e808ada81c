"""Entries of a store, many at a time, in columns of the types that its serdes have. Pure.

The values are decoded as for the table itself (`PhysicalPlan.value_results`), queries and joins.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from everflow.records import Int64
from everflow.serdes.base import ResultDecoder, SerdeError, slices
from everflow.serdes.schema import TIMESTAMP
from everflow.serdes.windowed import START_BYTES, SessionWindowedSerde, TimeWindowedSerde
from everflow.state.changelog import SUFFIX_BYTES, TIMESTAMP_BYTES, expiry_times
from everflow.state.store import OPEN, StoreSpec, Version

PAGE_ENTRIES = 20_000
PAGE_BYTES = 8 << 20
"""Of keys and values that are in memory at once; decoded they take a few times as much."""

ADDED, CHANGED, REMOVED, EXPIRED = "added", "changed", "removed", "expired"

_SEQUENCE_BYTES = SUFFIX_BYTES["window"] - START_BYTES

Entry = tuple[bytes, bytes]
Blame = Callable[[bytes], str]
"""Says where the record of a stored key is, for an error."""


class Difference(NamedTuple):
    """A key with what is stored under it at two points (None: nothing)."""

    key: bytes
    old: bytes | None
    new: bytes | None


_Item = TypeVar("_Item")


class EntryError(SerdeError, code="EF-STATE-BYTES"):
    """The bytes of a store's entry are not what the topology's serdes read; the message names the
    record."""


@dataclass(frozen=True)
class EntryColumns:
    """Batches of one store's entries. Each call raises EntryError, which has the record's place
    from ``blame``."""

    spec: StoreSpec
    results: ResultDecoder
    lag: bool = False
    """True: a column has the lag of the copy."""

    @property
    def schema(self) -> pa.Schema:
        empty = self.versions if self.spec.versioned else self.entries
        return empty([], 0, repr).schema

    @property
    def difference_schema(self) -> pa.Schema:
        return self.differences([], 0, -1, (repr, repr)).schema

    def entries(
        self, page: Sequence[Entry], partition: int, blame: Blame, lag: int | None = None
    ) -> pa.RecordBatch:
        """Key, window, value, time, partition."""
        keys = [key for key, _ in page]
        value, timestamp = self._stored([stored for _, stored in page], keys, blame)
        return _batch(
            {**self._keys(keys, blame), "value": value, "timestamp": timestamp},
            self._place(len(keys), partition, lag),
        )

    def versions(
        self,
        page: Sequence[tuple[bytes, Version]],
        partition: int,
        blame: Blame,
        lag: int | None = None,
    ) -> pa.RecordBatch:
        """Key, value, from when to when it is valid (null: it is the latest), partition."""
        keys = [key for key, _ in page]
        raw = pa.array([one.value for _, one in page], pa.binary())
        starts, ends = (np.array([one[at] for _, one in page], np.int64) for at in (0, 1))
        columns = {
            **self._keys(keys, blame),
            "value": self._decoded("value", self.results.decode_array, raw, keys, blame),
            "valid_from": _instants(starts),
            "valid_to": _instants(ends, ends == OPEN),
        }
        return _batch(columns, self._place(len(keys), partition, lag))

    def differences(
        self,
        page: Sequence[Difference],
        partition: int,
        expired_ms: int,
        blame: tuple[Blame, Blame],
    ) -> pa.RecordBatch:
        """Key, window, what happened, old and new value and time, partition. ``expired_ms``: until
        when windows (by their start) and sessions (by their end) have expired at the second
        point; ``blame`` of either point."""
        keys = [one.key for one in page]
        old, old_time = self._stored([one.old for one in page], keys, blame[0])
        new, new_time = self._stored([one.new for one in page], keys, blame[1])
        gone = np.array([one.new is None for one in page], bool)
        fresh = np.array([one.old is None for one in page], bool)
        change = np.select([gone, fresh], [REMOVED, ADDED], CHANGED).astype(object)
        if self.spec.expires and keys:
            change[gone & (expiry_times(keys, self.spec.kind) <= expired_ms)] = EXPIRED
        return _batch(
            {
                **self._keys(keys, blame[1]),
                "change": pa.array(change, pa.string()),
                "old_value": old,
                "new_value": new,
                "old_timestamp": old_time,
                "new_timestamp": new_time,
            },
            self._place(len(keys), partition, None),
        )

    def _keys(self, keys: Sequence[bytes], blame: Blame) -> dict[str, pa.Array]:
        raw, inner = pa.array(keys, pa.binary()), self.spec.key_serde
        if not self.spec.expires:
            return {"key": self._decoded("key", inner.decode_array, raw, keys, blame)}
        if self.spec.kind == "session":
            serde: SessionWindowedSerde | TimeWindowedSerde = SessionWindowedSerde(inner)
        else:
            lengths = pc.binary_length(raw).to_numpy().astype(np.int64)
            kept = np.maximum(0, lengths - _SEQUENCE_BYTES)
            raw = slices(raw, np.zeros(len(raw), np.int64), kept)
            serde = TimeWindowedSerde(inner, self.spec.window_size_ms or 0)
        key, start, end = self._decoded(
            "key",
            serde.decode_array,
            raw,
            keys,
            blame,
        ).flatten()
        unknown = self.spec.kind == "window" and self.spec.window_size_ms is None
        return {
            "key": key,
            "window_start": _instants(start.to_numpy()),
            "window_end": _instants(end.to_numpy(), np.full(len(keys), unknown)),
        }

    def _stored(
        self, stored: Sequence[bytes | None], keys: Sequence[bytes], blame: Blame
    ) -> tuple[pa.Array, pa.Array]:
        """Values and times of stored values; null where there is none."""
        raw = pa.array([None if one is None else one[TIMESTAMP_BYTES:] for one in stored], _BINARY)
        times = b"".join([_NO_TIME if one is None else one[:TIMESTAMP_BYTES] for one in stored])
        missing = np.array([one is None for one in stored], bool)
        value = self._decoded("value", self.results.decode_array, raw, keys, blame)
        return value, _instants(np.frombuffer(times, ">i8").astype(np.int64), missing)

    def _decoded(
        self,
        half: str,
        decode: Callable[[pa.Array], pa.Array],
        raw: pa.Array,
        keys: Sequence[bytes],
        blame: Blame,
    ) -> pa.Array:
        try:
            return decode(raw)
        except SerdeError as error:
            place = "" if error.index is None else f" of {blame(keys[error.index])}"
            raise EntryError(
                f"The {half}{place} is not what the topology says: {error}. Either another program "
                f"wrote it, or the serdes were changed since.",
                index=error.index,
            ) from error

    def _place(self, count: int, partition: int, lag: int | None) -> dict[str, pa.Array]:
        place = {"partition": pa.array(np.full(count, partition, np.int32))}
        if self.lag:
            place["lag"] = (
                pa.nulls(count, pa.int64())
                if lag is None
                else pa.array(np.full(count, lag, np.int64))
            )
        return place


_BINARY = pa.binary()
_NO_TIME = bytes(TIMESTAMP_BYTES)


def pages(found: Iterable[_Item], size_of: Callable[[_Item], int]) -> Iterator[list[_Item]]:
    """Lists of a bounded size; a large entry is alone in its list."""
    page: list[_Item] = []
    size = 0
    for item in found:
        page.append(item)
        size += size_of(item)
        if len(page) >= PAGE_ENTRIES or size >= PAGE_BYTES:
            yield page
            page, size = [], 0
    if page:
        yield page


def compared(before: Iterator[Entry], after: Iterator[Entry]) -> Iterator[Difference]:
    """Keys whose value bytes are not the same, by key; both sides come by key."""
    old, new = next(before, None), next(after, None)
    while old is not None or new is not None:
        if new is None or (old is not None and old[0] < new[0]):
            assert old is not None
            yield Difference(old[0], old[1], None)
            old = next(before, None)
        elif old is None or new[0] < old[0]:
            yield Difference(new[0], None, new[1])
            new = next(after, None)
        else:
            if old[1][TIMESTAMP_BYTES:] != new[1][TIMESTAMP_BYTES:]:
                yield Difference(old[0], old[1], new[1])
            old, new = next(before, None), next(after, None)


def _batch(*parts: Mapping[str, pa.Array]) -> pa.RecordBatch:
    columns = {name: column for part in parts for name, column in part.items()}
    return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))


def _instants(times: Int64, missing: npt.NDArray[np.bool_] | None = None) -> pa.Array:
    """Times (ms) as timestamps, null where ``missing``. EntryError for what none can hold."""
    found = pa.array(times, pa.timestamp("ms", tz="UTC"), mask=missing)
    try:
        return found.cast(TIMESTAMP)
    except pa.ArrowInvalid as error:
        raise EntryError(f"The time of an entry is beyond what a timestamp holds: {error}") from (
            error
        )
