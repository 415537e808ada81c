"""Rows to a table of Delta Lake: a commit per task and batch. The position is the protocol's own
transaction identifiers, one for each input partition, in the same commit."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from everflow.errors import RetriableError, SinkError
from everflow.sinks.batch import SinkBatch, fitting


@dataclass(eq=False, kw_only=True)
class DeltaSink:
    """A `Sink`. See `KStream.write_stream`."""

    path: str
    storage_options: dict[str, str] | None = field(default=None, repr=False)
    partition_by: list[str] | None = None
    _table: Any = field(default=None, init=False, repr=False)

    PACKAGE, EXTRA = "deltalake", "delta"

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_table": None}

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
                if not batch.to_write({tp: at for tp, at in stored.items() if at is not None}):
                    self._table = table
                    return
                rows = fitting(batch, self.path, pa.schema(table.schema().to_arrow()))
            # Refused if another commit has one of these identifiers and is newer than `table`.
            moved = [Transaction(apps[tp], end) for tp, end in batch.ends.items()]
            write_deltalake(
                self.path if table is None else table,
                rows,
                mode="append" if table is not None else "error",
                partition_by=self.partition_by,
                storage_options=None if table is not None else self.storage_options,
                commit_properties=CommitProperties(app_transactions=moved),
            )
            self._table = table

    @contextmanager
    def _failures(self, sink: str) -> Iterator[None]:
        from deltalake.exceptions import DeltaError, DeltaProtocolError, SchemaMismatchError

        try:
            yield
        except (SchemaMismatchError, DeltaProtocolError, pa.ArrowInvalid) as error:
            self._table = None
            raise SinkError(f"Sink {sink}: {self.path} refuses the rows: {error}") from error
        except (DeltaError, OSError) as error:
            self._table = None
            raise RetriableError(f"No commit to {self.path}: {error}") from error
