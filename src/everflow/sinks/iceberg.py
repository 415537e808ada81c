"""Rows to a table of Iceberg: a snapshot per task and batch. The position is properties of the
table, one for each input partition, in the same commit."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from everflow.errors import RetriableError, SinkError
from everflow.sinks.batch import SinkBatch, fitting


@dataclass(eq=False, kw_only=True)
class IcebergSink:
    """A `Sink`. See `KStream.write_stream`."""

    table: str
    catalog: str = "default"
    properties: dict[str, str] = field(default_factory=dict, repr=False)
    """Of the catalog; the rest is read from ``.pyiceberg.yaml``."""
    _opened: Any = field(default=None, init=False, repr=False)

    PACKAGE, EXTRA = "pyiceberg", "iceberg"

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_opened": None}

    def write(self, batch: SinkBatch) -> None:
        """See `Sink`."""
        with self._failures(batch.sink):
            if self._opened is None:
                from pyiceberg.catalog import load_catalog

                self._opened = load_catalog(self.catalog, **self.properties).load_table(self.table)
            else:
                self._opened.refresh()
            table = self._opened
            keys = {
                tp: f"everflow.{batch.application_id}.{batch.sink}.{tp}" for tp in batch.offsets
            }
            stored = {tp: table.properties.get(key) for tp, key in keys.items()}
            if not batch.to_write({tp: int(at) for tp, at in stored.items() if at is not None}):
                return
            rows = fitting(batch, self.table, table.schema().as_arrow())
            # The commit is refused if the table's branch has moved since it was read above.
            with table.transaction() as moved:
                moved.append(rows)
                if keys:
                    moved.set_properties({keys[tp]: str(end) for tp, end in batch.ends.items()})

    @contextmanager
    def _failures(self, sink: str) -> Iterator[None]:
        from pyiceberg import exceptions as of

        try:
            yield
        except (
            of.NoSuchTableError,
            of.NoSuchNamespaceError,
            of.ValidationError,
            of.BadRequestError,
            ValueError,
        ) as error:
            self._opened = None
            raise SinkError(f"Sink {sink}: {self.table} refuses the rows: {error}") from error
        except (of.CommitFailedException, of.CommitStateUnknownException, of.RESTError) as error:
            self._opened = None
            raise RetriableError(f"No commit to {self.table}: {error}") from error
