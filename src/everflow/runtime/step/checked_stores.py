"""Stores whose entries are decoded as they are read: finds the one that its serdes do not read.

A batch that fails for what a store holds looks like one that fails for a record of its input: that
record has the entry's key. So whoever is about to blame a record runs the batch on these stores
first (note 041). They cost a second decoding, so batches that do not fail never see them.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Any

import pyarrow as pa

from everflow.errors import DamagedEntryError
from everflow.handlers import is_outage
from everflow.runtime.commit.batch import StorePlace, TaskContext
from everflow.runtime.step.step_stores import FollowedView, StoreAccess
from everflow.serdes.base import ResultDecoder, SerdeError
from everflow.state.changelog import SUFFIX_BYTES, TIMESTAMP_BYTES
from everflow.state.store import Bounds, Entry, StoreSpec, Version
from everflow.topology.plan import StatefulOp, shown_by
from everflow.user_program import error_text, shown

_TOGETHER = 1_000
"""Entries that are decoded at once at most."""
UNREADABLE = (SerdeError, struct.error, pa.ArrowException, ValueError, TypeError, LookupError)
"""What decoding bytes raises that are none."""


@dataclass(frozen=True)
class CheckedAccess:
    """The stores of ``inner``; reading an entry that cannot be decoded raises DamagedEntryError,
    and the store is not trusted any more. ``decoders``: by store, beside those of its spec;
    ``nodes``: by store, who reads it in this step."""

    inner: StoreAccess
    decoders: Mapping[str, ResultDecoder]
    nodes: Mapping[str, str]

    @staticmethod
    def of(inner: StoreAccess, ops: Sequence[StatefulOp]) -> CheckedAccess:
        """For these operators."""
        decoders = {spec.name: shown_by(op, spec) for op in ops for spec in op.stores}
        nodes: dict[str, list[str]] = {}
        for op in ops:
            for spec in (*op.stores, *op.reads, *op.looks_up):
                nodes.setdefault(spec.name, []).append(op.name)
        return CheckedAccess(inner, decoders, {name: ", ".join(of) for name, of in nodes.items()})

    @contextmanager
    def view(self, task: TaskContext, spec: StoreSpec) -> Iterator[FollowedView]:
        """See `StoreAccess`."""
        decoders: list[ResultDecoder] = [spec.value_serde]
        if spec.name in self.decoders:
            decoders.append(self.decoders[spec.name])
        with self.inner.view(task, spec) as view:
            yield CheckedView(view, spec, decoders, self._accuse(task, spec))

    def homes(self, keys: Sequence[bytes], partitions: int) -> Sequence[int]:
        """See `StoreAccess`."""
        return self.inner.homes(keys, partitions)

    def distrust(self, task: TaskContext, spec: StoreSpec, reason: str) -> None:
        """See `StoreAccess`."""
        self.inner.distrust(task, spec, reason)

    def unread(
        self, tasks: Sequence[TaskContext], specs: Sequence[StoreSpec], error: Exception
    ) -> DamagedEntryError:
        """The error of an operator that could not read an entry of one of its stores."""
        why = error_text(error)
        pairs = [(task, spec) for task in tasks for spec in specs]
        for task, spec in pairs:
            self.distrust(task, spec, f"an entry cannot be read: {why}")
        if len(pairs) == 1:
            return self._damaged(*pairs[0], None, why)
        told = "\n  ".join(
            f"{spec.name} of task {task.task}, changelog {task.stores[spec.name].changelog}"
            for task, spec in pairs
        )
        return DamagedEntryError(
            f"One of these stores has an entry that cannot be read: {why}\n  {told}"
        )

    def _accuse(self, task: TaskContext, spec: StoreSpec) -> Callable[[bytes, str], Exception]:
        def accuse(key: bytes, why: str) -> Exception:
            error = self._damaged(task, spec, key, why)
            self.distrust(task, spec, str(error).partition("\n")[0])
            return error

        return accuse

    def _damaged(
        self, task: TaskContext, spec: StoreSpec, key: bytes | None, why: str
    ) -> DamagedEntryError:
        """``key`` None: it is not known which."""
        place = task.stores.get(spec.name, StorePlace("", None))
        which = "an entry" if key is None else f"the entry of key {_shown_key(spec, key)}"
        changelog = (
            "it has no changelog"
            if place.changelog is None
            else f"changelog {place.changelog}, partition {task.task.partition}"
        )
        folder = f"; folder {place.path}" if place.path else ""
        return DamagedEntryError(
            f"Store {spec.name} of task {task.task} is damaged: {which} cannot be read, as {why}\n"
            f"  read by node {self.nodes[spec.name]}; {changelog}{folder}",
            store=spec.name,
            task=task.task,
            key=key,
            changelog=place.changelog,
        )


class CheckedView:
    """A view of a store. ``accuse(key, why)`` makes the error. What only shows how far the store is
    goes to the view itself."""

    def __init__(
        self,
        view: FollowedView,
        spec: StoreSpec,
        decoders: Sequence[ResultDecoder],
        accuse: Callable[[bytes, str], Exception],
    ) -> None:
        self._view: Any = view
        self._spec, self._decoders, self._accuse = spec, decoders, accuse

    def __getattr__(self, name: str) -> Any:
        return getattr(self._view, name)

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """See `StoreView`."""
        found: list[bytes | None] = self._view.get_many(keys)
        self._check([(key, one) for key, one in zip(keys, found, strict=True) if one is not None])
        return found

    def range(self, start: bytes | None, end: bytes | None) -> Iterator[Entry]:
        """See `StoreView`."""
        return self._in_parts(self._view.range(start, end))

    def reversed_range(self, start: bytes | None, end: bytes | None) -> Iterator[Entry]:
        """From the last to the first."""
        return self._in_parts(self._view.reversed_range(start, end))

    def range_many(self, bounds: Sequence[tuple[bytes, bytes]]) -> list[list[Entry]]:
        """See `StoreView`."""
        found: list[list[Entry]] = self._view.range_many(bounds)
        self._whole([entry for entries in found for entry in entries])
        return found

    def last_many(self, bounds: Sequence[Bounds]) -> list[Entry | None]:
        """See `StoreView`."""
        found: list[Entry | None] = self._view.last_many(bounds)
        self._whole([entry for entry in found if entry is not None])
        return found

    def latest_many(self, keys: Sequence[bytes]) -> list[tuple[int, bytes | None] | None]:
        """See `VersionsView`."""
        self.get_many(keys)
        found: list[tuple[int, bytes | None] | None] = self._view.latest_many(keys)
        return found

    def versions_many(self, asked: Sequence[tuple[bytes, int, int]]) -> list[list[Version]]:
        """See `VersionsView`."""
        found: list[list[Version]] = self._view.versions_many(asked)
        pairs = zip((key for key, _, _ in asked), found, strict=True)
        self._values(
            [
                (key, one.value)
                for key, versions in pairs
                for one in versions
                if one.value is not None
            ]
        )
        return found

    def _in_parts(self, entries: Iterator[Entry]) -> Iterator[Entry]:
        """Checks as far as somebody reads: one entry, then more at a time."""
        size = 1
        while part := list(islice(entries, size)):
            yield from self._whole(part)
            size = min(2 * size, _TOGETHER)

    def _whole(self, entries: list[Entry]) -> list[Entry]:
        """Keys, too: these are the store's own, not the operator's."""
        suffix = SUFFIX_BYTES.get(self._spec.kind, 0)
        for key, _ in entries:
            if len(key) < suffix:
                why = f"the key has {len(key)} bytes, of which its times alone take {suffix}"
                raise self._accuse(key, why)
        keys = [(key, key[: len(key) - suffix]) for key, _ in entries]
        self._decode("key", self._spec.key_serde, keys)
        self._check(entries)
        return entries

    def _check(self, entries: Sequence[Entry]) -> None:
        for key, stored in entries:
            if len(stored) < TIMESTAMP_BYTES:
                why = f"{len(stored)} bytes are stored, of which the time alone takes 8"
                raise self._accuse(key, why)
        self._values([(key, stored[TIMESTAMP_BYTES:]) for key, stored in entries])

    def _values(self, values: Sequence[Entry]) -> None:
        for decoder in self._decoders:
            self._decode("value", decoder, values)

    def _decode(self, half: str, decoder: ResultDecoder, listed: Sequence[Entry]) -> None:
        try:
            decoder.decode_array(pa.array([data for _, data in listed], pa.binary()))
        except UNREADABLE:
            for key, data in listed:
                try:
                    decoder.decode_array(pa.array([data], pa.binary()))
                except UNREADABLE as error:
                    if is_outage(error):  # of a schema registry: nobody knows what the bytes are
                        raise
                    why = f"the {half} is {shown(data, 60)}, and {error_text(error)}"
                    raise self._accuse(key, why) from error


def damage_in(error: BaseException | None) -> DamagedEntryError | None:
    """The damaged entry for which ``error`` was raised; a user's function may have wrapped it."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        if isinstance(error, DamagedEntryError):
            return error
        seen.add(id(error))
        error = error.__cause__ or error.__context__
    return None


def _shown_key(spec: StoreSpec, key: bytes) -> str:
    suffix = SUFFIX_BYTES.get(spec.kind, 0)
    try:
        decoded = shown(spec.key_serde.decode(key[: len(key) - suffix]), 60)
    except UNREADABLE:
        decoded = ""
    raw = shown(key, 80)
    return raw if decoded in ("", raw) else f"{decoded} ({raw})"
