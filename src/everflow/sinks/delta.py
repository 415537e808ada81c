"""Rows to a table of Delta Lake: a commit per task and batch. The position is the protocol's own
transaction identifiers, one for each input partition, in the same commit."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

import pyarrow as pa

from everflow.errors import RetriableError, SinkError
from everflow.records import TopicPartition
from everflow.sinks.batch import SinkBatch, fitting

TOPIC = "@topic"
"""The end of the identifier of a topic's id."""


@dataclass(eq=False, kw_only=True)
class DeltaSink:
    """A `Sink`. See `KStream.write_stream`."""

    path: str
    storage_options: dict[str, str] | None = field(default=None, repr=False)
    partition_by: list[str] | None = None
    _table: Any = field(default=None, init=False, repr=False)
    _same: frozenset[TopicPartition] = field(default=frozenset(), init=False, repr=False)
    """Inputs whose topic was compared: to look for an identifier in the log takes 3 ms."""

    PACKAGE, EXTRA = "deltalake", "delta"

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_table": None, "_same": frozenset()}

    def write(self, batch: SinkBatch) -> None:
        """See `Sink`."""
        from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

        with self._failures(batch.sink):
            table = self._table
            if table is not None:
                table.update_incremental()
            elif DeltaTable.is_deltatable(self.path, self.storage_options):
                table = DeltaTable(self.path, storage_options=self.storage_options)
            apps = {tp: f"everflow/{batch.application_id}/{batch.sink}/{tp}" for tp in batch.ends}
            rows = batch.rows
            if table is not None:
                stored = {tp: table.transaction_version(app) for tp, app in apps.items()}
                self._require_same_topics(batch, table, apps)
                if not batch.to_write({tp: at for tp, at in stored.items() if at is not None}):
                    self._table = table
                    return
                rows = fitting(batch, self.path, pa.schema(table.schema().to_arrow()))
            # Refused if another commit has one of these identifiers and is newer than `table`.
            moved = [Transaction(apps[tp], end) for tp, end in batch.ends.items()]
            topics = {apps[tp] + TOPIC: _number(batch, tp) for tp in apps.keys() - self._same}
            moved += [Transaction(app, number) for app, number in topics.items() if number]
            write_deltalake(
                self.path if table is None else table,
                rows,
                mode="append" if table is not None else "error",
                partition_by=self.partition_by,
                storage_options=None if table is not None else self.storage_options,
                commit_properties=CommitProperties(app_transactions=moved),
            )
            self._table, self._same = table, self._same.union(apps)

    def _require_same_topics(
        self, batch: SinkBatch, table: Any, apps: dict[TopicPartition, str]
    ) -> None:
        kept = {tp: table.transaction_version(apps[tp] + TOPIC) for tp in apps.keys() - self._same}
        others = {tp for tp, known in kept.items() if known not in (None, _number(batch, tp))}
        batch.require_same_topics(dict.fromkeys(others, "another"), "write to another table")

    @contextmanager
    def _failures(self, sink: str) -> Iterator[None]:
        from deltalake.exceptions import (
            DeltaError,
            DeltaProtocolError,
            SchemaMismatchError,
            TableNotFoundError,
        )

        refused = (SchemaMismatchError, DeltaProtocolError, TableNotFoundError, pa.ArrowInvalid)

        try:
            yield
        except refused as error:
            self._table = None
            raise SinkError(f"Sink {sink}: {self.path} refuses the rows: {error}") from error
        except (DeltaError, OSError) as error:
            self._table = None
            raise RetriableError(f"No commit to {self.path}: {error}") from error


def _number(batch: SinkBatch, tp: TopicPartition) -> int:
    """A version is a number: the topic's id as one; 0: not known."""
    known = batch.topic_ids.get(tp.topic, "")
    return int.from_bytes(sha256(known.encode()).digest()[:7], "big") if known else 0
