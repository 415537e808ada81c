"""Records of a changelog as the new program stores them, and what a store contains. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from everflow.columns.key_partitions import java_partitions
from everflow.migration.programs import Form
from everflow.records import Int64
from everflow.serdes.base import SerdeError
from everflow.serdes.packed import PackedSerde
from everflow.state.changelog import SUFFIX_BYTES, expiry_times
from everflow.state.store import StoreSpec
from everflow.user_program import ANY_FAILURE, error_text

_LENGTH = 4
_CUTS = {
    Form.KEY: (0, 0),
    Form.WINDOW: (0, SUFFIX_BYTES["window"]),
    Form.SESSION: (0, SUFFIX_BYTES["session"]),
    Form.WAITING: (9, 0),
    Form.GRACE: (8, 4),
    Form.ENDS: (8, 0),
}
"""Bytes before and behind the record's key: a time, and a side or a number."""
_SUPPRESSED = {0: 9, 1: 1}
"""By the first byte; entries of other kinds count the others, and are made anew."""


def record_key(stored: bytes, form: Form, window_bytes: int = 0) -> bytes | None:
    """The key of the record behind a store's key; None for an entry that belongs to no key."""
    if form is Form.SUBSCRIPTIONS:
        end = _LENGTH + int.from_bytes(stored[:_LENGTH], "big")
        return stored[_LENGTH : end - window_bytes]
    if form is Form.SUPPRESSED:
        if stored[0] not in _SUPPRESSED:
            return None
        front, back = _SUPPRESSED[stored[0]], 0
    else:
        front, back = _CUTS[form]
    return stored[front : len(stored) - back - window_bytes]


def partitions_of_keys(
    keys: Sequence[bytes], form: Form, window_bytes: int, partitions: int
) -> Int64:
    """The partition of each store's key, -1 for one that is left out."""
    found = [record_key(key, form, window_bytes) for key in keys]
    chosen = java_partitions(pa.array(found, pa.binary()), partitions).astype(np.int64)
    chosen[[at for at, key in enumerate(found) if key is None]] = -1
    return chosen


# --- values ---------------------------------------------------------------------------------------


class UnconvertedError(Exception):
    """``index``: of the value among those that were given; the cause is chained."""

    def __init__(self, index: int, why: str) -> None:
        super().__init__(why)
        self.index = index


Values = Sequence[bytes | None]
Convert = Callable[[Values], list[bytes | None]]
"""Values of old changelog records as those of new ones; None stays None. UnconvertedError."""


def as_they_are(values: Values) -> list[bytes | None]:
    return list(values)


def by_function(old: StoreSpec, new: StoreSpec, fn: Callable[[Any], Any]) -> Convert:
    """``fn`` gets each decoded value; an entry for which it returns None is deleted."""

    def convert(values: Values) -> list[bytes | None]:
        made: list[bytes | None] = []
        for at, value in enumerate(values):
            if value is None:
                made.append(None)
                continue
            try:
                found = fn(old.value_serde.decode(value))
                made.append(None if found is None else new.value_serde.encode(found))
            except ANY_FAILURE as error:
                raise UnconvertedError(at, error_text(error)) from error
        return made

    return convert


def by_field(old: StoreSpec, new: StoreSpec) -> Convert:
    """Of packed structs: fields by their names; a count that is new begins at 0, others at null."""
    assert isinstance(new.value_serde, PackedSerde)
    wanted = new.value_serde.type
    folds = new.folds or ("",) * wanted.num_fields

    def convert(values: Values) -> list[bytes | None]:
        raw = pa.array(values, pa.binary())
        try:
            decoded = old.value_serde.decode_array(raw)
        except SerdeError as error:
            raise UnconvertedError(error.index or 0, str(error)) from error
        columns = [
            decoded.field(one.name)
            if decoded.type.get_field_index(one.name) >= 0
            else _begun(one, fold, len(raw))
            for one, fold in zip(wanted, folds, strict=True)
        ]
        made = pa.StructArray.from_arrays(columns, fields=list(wanted), mask=raw.is_null())
        found: list[bytes | None] = new.value_serde.encode_array(made).to_pylist()
        return found

    return convert


def _begun(one: pa.Field, fold: str, count: int) -> pa.Array:
    return (
        pa.array(np.zeros(count, np.int64), one.type)
        if fold == "count"
        else pa.nulls(count, one.type)
    )


# --- what a store contains ------------------------------------------------------------------------


@dataclass(frozen=True)
class Total:
    """``checksum``: of keys, values and times, whatever their order; within one process."""

    count: int
    checksum: int


_MIXER = np.uint64(0x9E3779B97F4A7C15)
_MERGED = 4
"""A run is merged with those before it that are not so many times as long."""

_Run = tuple[Int64, Int64, Int64]
"""Hashes of keys, in order, those of their last values (0: deleted), and when they expire."""


@dataclass
class Content:
    """The last value of each key of a store, as hashes: 24 bytes a key. One thread."""

    spec: StoreSpec
    newest_ms: int = -1
    """The latest time by which a window or session expires, or of a version."""
    _runs: list[_Run] = field(default_factory=list)

    def add(self, keys: Sequence[bytes], values: Values, times: Int64) -> None:
        """Take records in the order of their log."""
        if not keys:
            return
        named: Sequence[object] = keys
        expiry = np.zeros(len(keys), np.int64)
        if self.spec.versioned:  # a record of a changelog is a version
            expiry = np.asarray(times, np.int64)
            named = list(zip(keys, expiry.tolist(), strict=True))
        elif self.spec.expires:
            expiry = expiry_times(keys, self.spec.kind)
        if self.spec.kept_ms is not None:
            self.newest_ms = max(self.newest_ms, int(expiry.max()))
        kept = zip(values, np.asarray(times).tolist(), strict=True)
        hashes = np.fromiter((0 if v is None else hash((v, t)) or 1 for v, t in kept), np.int64)
        run = _last((np.fromiter(map(hash, named), np.int64), hashes, expiry))
        while self._runs and len(self._runs[-1][0]) < _MERGED * len(run[0]):
            run = _both(self._runs.pop(), run)
        self._runs.append(run)

    def total(self, kept_ms: int | None = None) -> Total:
        """``kept_ms``: only of what is so near to `newest_ms`; the rest may be deleted by now."""
        while len(self._runs) > 1:
            later = self._runs.pop()
            self._runs.append(_both(self._runs.pop(), later))
        if not self._runs:
            return Total(0, 0)
        keys, values, expiry = self._runs[0]
        there = values != 0
        if kept_ms is not None:
            there &= expiry > self.newest_ms - kept_ms
        with np.errstate(over="ignore"):
            mixed = (keys[there].view(np.uint64) * _MIXER) ^ values[there].view(np.uint64)
            return Total(int(there.sum()), int((mixed * _MIXER).sum(dtype=np.uint64)))


def _last(run: _Run) -> _Run:
    keys, values, expiry = run
    order = np.argsort(keys, kind="stable")
    keys = keys[order]
    last = np.append(keys[1:] != keys[:-1], True)
    return keys[last], values[order][last], expiry[order][last]


def _both(before: _Run, later: _Run) -> _Run:
    return _last(
        (
            np.concatenate([before[0], later[0]]),
            np.concatenate([before[1], later[1]]),
            np.concatenate([before[2], later[2]]),
        )
    )
