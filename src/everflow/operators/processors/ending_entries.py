"""A processor's key-value store whose entries end: ``Stores.key_value(ttl=)`` (note 030).

An entry lives until the store's stream time has reached its own time and ``retention_ms`` of its
spec. What has ended is not shown from that record on; it is taken out behind the batch. Which
entries are due is known from an index, the store ``<store>-ttl``, as that of a table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from everflow import serdes
from everflow.operators.processors.stores import Entries, Stored
from everflow.operators.time_to_live import ENDS
from everflow.state.store import StoreSpec, StoreView


def index_of(spec: StoreSpec) -> StoreSpec | None:
    """The store of the times at which entries of ``spec`` are looked at; None: they do not end."""
    if spec.kind != "key_value" or spec.retention_ms is None:
        return None
    return StoreSpec(
        name=f"{spec.name}-ttl",
        kind="key_value",
        key_serde=serdes.bytes_(),
        value_serde=serdes.bytes_(),
        logging=spec.logging,
        in_memory=spec.in_memory,
        where=spec.where,
    )


class EndingEntries(Entries):
    """The entries of such a store in one task. The index has a key for each, not later than its
    end, and maybe some for what has been deleted since."""

    def __init__(
        self, spec: StoreSpec, view: StoreView, index: Entries, stream_time: Callable[[], int]
    ) -> None:
        super().__init__(spec, view)
        self._index, self._stream_time = index, stream_time
        self._ttl_ms = spec.retention_ms or 0

    def get(self, key: bytes) -> Stored | None:
        """The entry of a key, as long as it lives."""
        entry = super().get(key)
        return entry if entry is not None and self._lives(entry[0]) else None

    def put(self, key: bytes, value: object, time: int) -> None:
        """As of `Entries`; a value that would have ended already changes nothing."""
        if value is not None:
            if not self._lives(time):
                return
            known = super().get(key)
            if known is None or time < known[0]:
                self._index.put(ENDS.key(time + self._ttl_ms, key), b"", time)
        super().put(key, value, time)

    def range(
        self, start: bytes | None, end: bytes | None, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, Stored]]:
        """See `Entries`; those that live now."""
        ended = self._stream_time() - self._ttl_ms
        found = super().range(start, end, reverse=reverse)
        return ((key, entry) for key, entry in found if entry[0] > ended)

    def entries(self) -> int:
        """See `Entries`; what has ended is taken out first, each once."""
        self.take_out_ended()
        return super().entries()

    def take_out_ended(self) -> None:
        """What has ended is deleted; what was due and lives on is looked at again at its end."""
        now = self._stream_time()
        due = [key for key, _ in self._index.range(None, ENDS.key(now + 1))]
        self.load(list(dict.fromkeys(map(ENDS.rest_of, due))))
        for looked_at in due:
            self._index.put(looked_at, None, now)
            key = ENDS.rest_of(looked_at)
            entry = super().get(key)
            if entry is None:
                continue
            if self._lives(entry[0]):
                self._index.put(ENDS.key(entry[0] + self._ttl_ms, key), b"", entry[0])
            else:
                super().put(key, None, now)

    def _lives(self, time: int) -> bool:
        return time + self._ttl_ms > self._stream_time()
