"""Two operators of one batch on one store (scenario 19): the second sees what the first has
changed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import pytest

from everflow.records import StoreChanges, TaskId
from everflow.runtime.commit.batch import StorePlace, TaskContext
from everflow.runtime.step.step_stores import FollowedView, TaskStores
from everflow.state.changelog import pack_value
from everflow.state.store import StoreSpec
from unit.builders import store_spec

SPEC = store_spec("counts")
TASK = TaskContext(TaskId(0, 0), "i1", "", {}, {"counts": StorePlace("nowhere", None)})
STORED = {b"a": pack_value(1, b"old"), b"b": pack_value(2, b"kept"), b"c": pack_value(3, b"gone")}


class Stored:
    """A store's snapshot as a dictionary."""

    def get_many(self, keys: list[bytes]) -> list[bytes | None]:
        return [STORED.get(key) for key in keys]

    def range(self, start: bytes | None, end: bytes | None) -> Iterator[tuple[bytes, bytes]]:
        return (
            (k, v)
            for k, v in sorted(STORED.items())
            if (start is None or k >= start) and (end is None or k < end)
        )


class Access:
    @contextmanager
    def view(self, task: TaskContext, spec: StoreSpec) -> Iterator[FollowedView]:
        yield Stored()  # type: ignore[misc]

    def homes(self, keys: Sequence[bytes], partitions: int) -> Sequence[int]:
        return [len(key) % partitions for key in keys]

    def distrust(self, task: TaskContext, spec: StoreSpec, reason: str) -> None:
        raise AssertionError(reason)


CHANGES = StoreChanges("counts", [b"a", b"c", b"d"], [b"new", None, b"added"], np.array([5, 6, 7]))


def test_a_shared_store_shows_the_changes_of_the_batch() -> None:
    with TaskStores(Access(), [TASK], frozenset({"counts"})) as stores:
        view = stores.views(TASK.task, [SPEC])["counts"]
        stores.remember(TASK.task, CHANGES)
        assert view.get_many([b"a", b"b", b"c", b"d"]) == [
            pack_value(5, b"new"),
            STORED[b"b"],
            None,
            pack_value(7, b"added"),
        ]
        assert [key for key, _ in view.range(None, None)] == [b"a", b"b", b"d"]
        assert [key for key, _ in view.range(b"b", b"d")] == [b"b"]
        assert [
            [key for key, _ in part] for part in view.range_many([(b"b", b"e"), (b"c", b"d")])
        ] == [[b"b", b"d"], []]
        assert stores.views(TASK.task, [SPEC])["counts"] is view


def test_a_task_that_the_batch_does_not_own_is_refused() -> None:
    with TaskStores(Access(), [TASK], frozenset()) as stores, pytest.raises(KeyError):
        stores.views(TaskId(0, 1), [SPEC])
