"""LmdbStore against the reference store: batches, crashes, reopening, restores."""

import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from everflow import serdes
from everflow.errors import StoreMismatchError
from everflow.records import StoreChanges
from everflow.state.lmdb_store import LmdbStore
from everflow.state.store import InMemoryStore
from everflow.state.store_meta import Owner
from everflow.state.stored_keys import SHORT_BYTES
from unit.builders import store_spec

MINUTE_MS = 60_000
_LONG = b"p" * SHORT_BYTES
any_key = st.one_of(
    st.binary(max_size=2),
    st.builds(lambda tail: _LONG + tail, st.binary(max_size=2)),
    st.builds(lambda tail: b"q" * 700 + tail, st.binary(max_size=1)),
)
value = st.none() | st.binary(max_size=3)


class Crash(BaseException):
    """The process dies here."""


def crash(name: str) -> None:
    raise Crash(name)


class KeyValueMachine(RuleBasedStateMachine):
    spec = store_spec("s", key=serdes.bytes_(), value=serdes.bytes_())
    keys = any_key

    def __init__(self) -> None:
        super().__init__()
        self._folder = tempfile.TemporaryDirectory()
        self.path = Path(self._folder.name) / "s-0"
        self.model = InMemoryStore(self.spec)
        self.store = self.opened()
        self.position = 0
        self.batches = 0
        self.stream_time = 0
        self.owner = Owner("", "")

    def opened(self) -> LmdbStore:
        # The smallest map that LMDB takes, so that it has to grow on the way.
        return LmdbStore.open(
            self.path, kind=self.spec.kind, retention_ms=self.spec.retention_ms, map_bytes=1 << 16
        )

    def teardown(self) -> None:
        self.store.close()
        self._folder.cleanup()

    def changes_of(self, drawn: list[tuple[bytes, bytes | None]]) -> StoreChanges:
        times = np.full(len(drawn), self.stream_time, dtype=np.int64)
        return StoreChanges("s", [key for key, _ in drawn], [value for _, value in drawn], times)

    def draw_changes(self, data: st.DataObject) -> StoreChanges:
        return self.changes_of(data.draw(st.lists(st.tuples(self.keys, value), max_size=8)))

    @rule(incarnation=st.sampled_from(["i1", "i2"]))
    def claim(self, incarnation: str) -> None:
        self.store.claim(incarnation)
        self.owner = Owner(incarnation, "")

    @rule(data=st.data())
    def apply(self, data: st.DataObject) -> None:
        changes = self.draw_changes(data)
        self.batches += 1
        self.position += len(changes)
        batch = f"{self.owner.incarnation}.{self.batches}.0"
        self.store.apply(changes, position=self.position, expected=self.owner, batch=batch)
        self.model.apply(changes)
        self.owner = Owner(self.owner.incarnation, batch)

    @rule(data=st.data())
    def apply_a_large_value(self, data: st.DataObject) -> None:
        changes = self.changes_of([(data.draw(self.keys), b"x" * 40_000)])
        self.store.apply(changes, position=None, expected=self.owner, batch=self.owner.last_batch)
        self.model.apply(changes)

    @rule(data=st.data())
    def crash_in_the_middle_and_reopen(self, data: st.DataObject) -> None:
        changes = self.changes_of(
            data.draw(st.lists(st.tuples(self.keys, value), min_size=1, max_size=8))
        )
        with pytest.raises(Crash):
            self.store.apply(
                changes,
                position=self.position + 99,
                expected=self.owner,
                batch="dead",
                reached=crash,
            )
        self.reopen()

    @rule()
    def reopen(self) -> None:
        self.store.close()
        self.store = self.opened()

    @rule(
        data=st.data(),
        wrong=st.sampled_from([Owner("orphan", ""), Owner("i1", "older"), Owner("", "older")]),
    )
    def a_stalled_orphan_is_refused(self, data: st.DataObject, wrong: Owner) -> None:
        with pytest.raises(StoreMismatchError):
            self.store.apply(self.draw_changes(data), position=10**9, expected=wrong, batch="late")

    @rule(data=st.data())
    def restore_a_chunk(self, data: st.DataObject) -> None:
        changes = self.draw_changes(data)
        self.position += len(changes) + 1
        self.store.load_chunk(changes.keys, changes.values, changes.timestamps, self.position)
        self.model.apply(changes)

    @precondition(lambda self: self.position > 0)
    @rule()
    def history_never_runs_backwards(self) -> None:
        with pytest.raises(StoreMismatchError):
            self.store.load_chunk([b""], [b""], np.array([0]), self.position - 1)

    @rule(data=st.data())
    def read(self, data: st.DataObject) -> None:
        keys = data.draw(st.lists(self.keys, max_size=6))
        start, end = data.draw(st.none() | self.keys), data.draw(st.none() | self.keys)
        with self.store.snapshot() as view:
            assert view.get_many(keys) == self.model.get_many(keys)
            assert [view.get(key) for key in keys] == view.get_many(keys)
            assert list(view.range(start, end)) == list(self.model.range(start, end))
            assert (
                list(view.range(start, end, reverse=True))
                == list(self.model.range(start, end))[::-1]
            )

    @invariant()
    def content_position_and_owner_agree(self) -> None:
        meta = self.store.meta()
        assert meta.owner == self.owner
        assert (meta.position or 0) == self.position
        with self.store.snapshot() as view:
            assert list(view.range(None, None)) == list(self.model.range(None, None))


class WindowMachine(KeyValueMachine):
    raw, kept_ms = serdes.bytes_(), 5 * MINUTE_MS
    spec = store_spec(
        "s", "window", key=raw, value=raw, retention_ms=kept_ms, window_size_ms=MINUTE_MS
    )
    keys = st.builds(
        lambda key, minute: key + (minute * MINUTE_MS).to_bytes(8, "big") + bytes(4),
        st.binary(max_size=1),
        st.integers(0, 40),
    )

    @rule(minutes=st.integers(0, 9))
    def time_passes(self, minutes: int) -> None:
        self.stream_time += minutes * MINUTE_MS

    def changes_of(self, drawn: list[tuple[bytes, bytes | None]]) -> StoreChanges:
        """Windows start at stream time at the latest."""
        started = [
            (key, value)
            for key, value in drawn
            if int.from_bytes(key[-12:-4], "big") <= self.stream_time
        ]
        return super().changes_of(
            started or [(b"k" + self.stream_time.to_bytes(8, "big") + bytes(4), b"v")]
        )

    def draw_changes(self, data: st.DataObject) -> StoreChanges:
        return self.changes_of(
            data.draw(st.lists(st.tuples(self.keys, value), min_size=1, max_size=8))
        )


_budget = settings(max_examples=30, stateful_step_count=25, suppress_health_check=list(HealthCheck))
TestKeyValueStore = KeyValueMachine.TestCase
TestKeyValueStore.settings = _budget
TestWindowStore = WindowMachine.TestCase
TestWindowStore.settings = _budget
