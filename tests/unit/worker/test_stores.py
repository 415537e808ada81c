"""Views of stores in one step: the batch's own changes, and global tables of several partitions."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import pytest

from everflow import serdes
from everflow.protocol.messages import TaskContext
from everflow.records import StoreChanges, TaskId
from everflow.state.store import InMemoryStore, OverlayView, StoreSpec
from everflow.worker.stores import FollowedView, TaskStores
from unit.builders import store_spec

SHARED = store_spec("s", value=serdes.string())


def changes(*pairs: tuple[bytes, bytes | None]) -> StoreChanges:
    return StoreChanges(
        "s", [k for k, _ in pairs], [v for _, v in pairs], np.arange(len(pairs), dtype=np.int64)
    )


def filled() -> InMemoryStore:
    store = InMemoryStore(SHARED)
    store.apply(changes((b"a", b"1"), (b"b", b"2"), (b"c", b"3")))
    return store


def test_changes_lie_over_the_store_exactly_as_if_applied() -> None:
    batch = changes(
        (b"b", b"new"), (b"d", b"4"), (b"c", None), (b"a", None), (b"a", b"again"), (b"x", None)
    )
    overlay, applied = OverlayView(filled()), filled()
    overlay.remember(batch)
    applied.apply(batch)
    keys = [b"a", b"b", b"c", b"d", b"x", b"unknown", b"a"]
    assert overlay.get_many(keys) == applied.get_many(keys)
    for start, end in ((None, None), (b"b", None), (None, b"b"), (b"b", b"d"), (b"d", b"b")):
        assert list(overlay.range(start, end)) == list(applied.range(start, end))
    assert overlay.get_many([]) == []
    bounds = [(b"b", b"e"), (b"c", b"d")]
    assert overlay.range_many(bounds) == applied.range_many(bounds)


class Counting:
    """Counts how often a store is opened and closed."""

    def __init__(self) -> None:
        self.opened, self.closed = 0, 0

    @contextmanager
    def view(self, task: TaskContext, spec: StoreSpec) -> Iterator[FollowedView]:
        self.opened += 1
        yield filled()
        self.closed += 1

    def distrust(self, task: TaskContext, spec: StoreSpec, reason: str) -> None:
        raise AssertionError(reason)


@pytest.mark.parametrize(("shared", "expected"), [(frozenset({"s"}), b"new"), (frozenset(), b"1")])
def test_snapshots_are_opened_once_and_closed(shared: frozenset[str], expected: bytes) -> None:
    access = Counting()
    specs: Sequence[StoreSpec] = (SHARED,)
    with TaskStores(access, [TaskContext(TaskId(0, 1), "i", "b", {"node": 7})], shared) as stores:
        stores.views(TaskId(0, 1), specs)
        stores.remember(TaskId(0, 1), changes((b"a", b"new")))
        (found,) = stores.views(TaskId(0, 1), specs)["s"].get_many([b"a"])
        assert found is not None
        assert found[8:] == expected
        assert (
            stores.stream_time(TaskId(0, 1), "node"),
            stores.stream_time(TaskId(0, 1), "other"),
        ) == (7, -1)
        with pytest.raises(KeyError):
            stores.views(TaskId(0, 2), specs)
        assert (access.opened, access.closed) == (1, 0)
    assert access.closed == 1
