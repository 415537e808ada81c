"""The stores of a test driver: one for each partition of a sub-topology, shown as one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from heapq import merge

from everflow.runtime.commit.batch import TaskContext
from everflow.state.changelog import SUFFIX_BYTES
from everflow.state.store import InMemoryStore, StoreSpec, memory_store

Home = Callable[[bytes], int | None]
"""The partition of a key's bytes, where queries look for it first; None: not known."""


class DriverStores(Mapping[str, InMemoryStore]):
    """By name: the store itself where there is one, else all its partitions as one, to be read.

    ``specs``: each store, in how many partitions it is, and where a key is at home.
    """

    def __init__(self, specs: Mapping[str, tuple[StoreSpec, int, Home]]) -> None:
        self._specs = specs
        self._parts: dict[str, list[InMemoryStore]] = {}
        self.empty()

    def empty(self) -> None:
        """As at the start."""
        for name, (spec, count, _) in self._specs.items():
            self._parts[name] = [memory_store(spec) for _ in range(count)]

    def __getitem__(self, name: str) -> InMemoryStore:
        spec, _, home = self._specs[name]
        parts = self._parts[name]
        if len(parts) == 1:
            return parts[0]
        return MergedStore(spec, parts, home)

    def __iter__(self) -> Iterator[str]:
        return iter(self._parts)

    def __len__(self) -> int:
        return len(self._parts)

    def replace(self, name: str, store: InMemoryStore) -> None:
        """``store`` in the place of the one that is called ``name``, which has one partition."""
        (_,) = self._parts[name]
        self._parts[name] = [store]

    def part(self, name: str, partition: int) -> InMemoryStore:
        """The store of one task; that of a global table has one for all."""
        parts = self._parts[name]
        return parts[partition if len(parts) > 1 else 0]


class MergedStore(InMemoryStore):
    """The partitions of a store, to be read. A key that lies in several is there several times in
    a `range`; it is looked for where queries look."""

    def __init__(self, spec: StoreSpec, parts: Sequence[InMemoryStore], home: Home) -> None:
        self._parts, self._home = parts, home
        self._suffix = SUFFIX_BYTES.get(spec.kind, 0)

    def __len__(self) -> int:
        return sum(map(len, self._parts))

    @property
    def newest_ms(self) -> int:
        return max(part.newest_ms for part in self._parts)

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        return [self._entry(key) for key in keys]

    def range(self, start: bytes | None, end: bytes | None) -> Iterator[tuple[bytes, bytes]]:
        """See `StoreView`."""
        parts = (part.range(start, end) for part in self._parts)
        return merge(*parts, key=lambda entry: entry[0])

    def part_of(self, key: bytes) -> InMemoryStore:
        """The partition that has a key: its own, else the first of the others, as queries look for
        it."""
        home = self._home(key[: len(key) - self._suffix])
        parts = self._parts if home is None else [self._parts[home], *self._parts]
        having = (part for part in parts if part.get_many([key])[0] is not None)
        return next(having, parts[0])

    def _entry(self, key: bytes) -> bytes | None:
        return self.part_of(key).get_many([key])[0]


@dataclass(frozen=True)
class MemoryAccess:
    """`StoreAccess` over the driver's stores."""

    stores: DriverStores

    @contextmanager
    def view(self, task: TaskContext, spec: StoreSpec) -> Iterator[InMemoryStore]:
        yield self.stores.part(spec.name, task.task.partition)

    def homes(self, keys: Sequence[bytes], partitions: int) -> Sequence[int]:
        """A global table has one partition here."""
        return [0] * len(keys)

    def distrust(self, task: TaskContext, spec: StoreSpec, reason: str) -> None:
        """There is no changelog to rebuild it from."""
