"""Reads of an instance's stores from the user's program: committed content of the tasks that run here (KIP-67, local part)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from everflow.errors import EverflowError
from everflow.records import TaskId
from everflow.state.changelog import WINDOW_SUFFIX_BYTES
from everflow.state.lmdb_store import LmdbStore
from everflow.state.store import StoreSpec
from everflow.topology.plan import PhysicalPlan

TIMESTAMP_BYTES = 8


class StoreNotFoundError(EverflowError):
    """The topology has no such store; the message lists those it has."""

    code = "EF-NO-STORE"


@dataclass(frozen=True)
class ReadOnlyStore:
    """One store over all tasks of this instance. Safe from any thread; every call reads the tasks that run at that moment.

    Keys and values are decoded by the store's serdes; keys of window stores are ``{"key", "start", "end"}`` (ms). Only
    committed content is seen (D5).
    """

    spec: StoreSpec
    places: Callable[[], Mapping[TaskId, Path]]
    decode: Callable[[bytes], Any]
    """Reads value bytes as the table shows them (`PhysicalPlan.value_decoder`)."""

    def get(self, key: Any) -> Any:
        """The value of ``key`` (for a window store of ``(key, start ms)``), None where no task of this instance has it."""
        if self.spec.kind == "window":
            inner, start_ms = key
            wanted = self._key(inner) + int(start_ms).to_bytes(8, "big") + bytes(4)
        else:
            wanted = self._key(key)
        for path in self.places().values():
            with LmdbStore.open(path).snapshot() as view:
                (found,) = view.get_many([wanted])
            if found is not None:
                return self.decode(found[TIMESTAMP_BYTES:])
        return None

    def all(self) -> Iterator[tuple[Any, Any]]:
        """Every entry, task after task, in order of key bytes within a task."""
        return self._entries(None, None)

    def range(self, start: Any, end: Any) -> Iterator[tuple[Any, Any]]:
        """Entries with ``start <= key <= end`` by key bytes, as in Kafka Streams both inclusive; None = open. For key-value
        stores; of a window store the keys without their windows are compared."""
        lower = None if start is None else self._key(start)
        upper = None if end is None else self._key(end) + (b"\xff" * 12 if self.spec.kind == "window" else b"") + b"\x00"
        return self._entries(lower, upper)

    def approximate_entries(self) -> int:
        """How many entries the instance's tasks hold."""
        total = 0
        for path in self.places().values():
            with LmdbStore.open(path).snapshot() as view:
                total += view.entries()
        return total

    def _entries(self, lower: bytes | None, upper: bytes | None) -> Iterator[tuple[Any, Any]]:
        for path in self.places().values():
            # Copied before decoding: a read transaction is short, or the store's file grows (D4).
            with LmdbStore.open(path).snapshot() as view:
                found = list(view.range(lower, upper))
            for key, stored in found:
                yield self._decoded_key(key), self.decode(stored[TIMESTAMP_BYTES:])

    def _key(self, key: Any) -> bytes:
        data = self.spec.key_serde.encode(key)
        if data is None:
            raise ValueError(f"store {self.spec.name} has no null keys")
        return data

    def _decoded_key(self, key: bytes) -> Any:
        if self.spec.kind != "window":
            return self.spec.key_serde.decode(key)
        inner, start_ms = key[:-WINDOW_SUFFIX_BYTES], int.from_bytes(key[-WINDOW_SUFFIX_BYTES:-4], "big")
        end_ms = start_ms + (self.spec.window_size_ms or 0)
        return {"key": self.spec.key_serde.decode(inner), "start": start_ms, "end": end_ms}


def store_named(
    name: str,
    stores: Mapping[str, StoreSpec],
    places: Callable[[], Mapping[TaskId, Path]],
    plan: PhysicalPlan | None,
) -> ReadOnlyStore:
    """The store called ``name``; StoreNotFoundError names the stores there are."""
    spec = stores.get(name)
    if spec is None or plan is None:
        have = ", ".join(sorted(stores)) or "none"
        raise StoreNotFoundError(f"The topology has no store {name!r}; it has: {have}.")
    return ReadOnlyStore(spec, places, plan.value_decoder(name))
