"""Rows to a table of Iceberg: a snapshot per task and batch. The position is properties of the
table, one for each input partition, in the same commit."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from everflow.clock import Deadline, SystemClock
from everflow.errors import RetriableError, SinkError
from everflow.handlers import is_outage
from everflow.retry import attempting
from everflow.sinks.batch import SinkBatch, fitting

CONFLICTS_MS = 10_000.0
"""For so long a commit is tried again here: tasks of one table meet at each of their commits."""


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
        attempting(
            lambda: self._write(batch),
            f"committing to {self.table}",
            clock=(clock := SystemClock()),
            deadline=Deadline(clock, CONFLICTS_MS),
            stop=threading.Event(),
        )

    def _write(self, batch: SinkBatch) -> None:
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
            found = {
                tp: table.properties[key] for tp, key in keys.items() if key in table.properties
            }
            stored = {tp: at.partition("@") for tp, at in found.items()}
            batch.require_same_topics(
                {tp: topic for tp, (_, _, topic) in stored.items()},
                f"remove the table's properties everflow.{batch.application_id}.{batch.sink}.*",
            )
            if not batch.to_write({tp: int(at) for tp, (at, _, _) in stored.items()}):
                return
            rows = fitting(batch, self.table, table.schema().as_arrow())
            table.metadata = _for_a_commit(table)
            with table.transaction() as moved:
                moved.append(rows)
                if keys:
                    moved.set_properties(
                        {
                            keys[tp]: f"{end}@{batch.topic_ids.get(tp.topic, '')}"
                            for tp, end in batch.ends.items()
                        }
                    )

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
        except (FileNotFoundError, PermissionError, NotADirectoryError) as error:
            self._opened = None
            raise SinkError(f"Sink {sink}: no file of {self.table} can be: {error}") from error
        except Exception as error:
            self._opened = None
            # Object stores say what fails in a text; catalogs in a database by its own errors.
            if isinstance(error, OSError) or is_outage(error):
                raise RetriableError(f"No commit to {self.table}: {error}") from error
            raise


def _for_a_commit(table: Any) -> Any:
    """The table's metadata as a transaction is to see it. What is sent to the catalog are changes.

    Without retries of pyiceberg's own (0.12): the commit is refused if the branch has moved since
    the position was read, and a retry would append rows that the other commit may have. Without
    history: a transaction copies all of it 19 times, which took 0.4 s of CPU at 180 snapshots.
    """
    current = table.current_snapshot()
    return table.metadata.model_copy(
        update={
            "properties": {**table.properties, "commit.retry.num-retries": "0"},
            "snapshots": [] if current is None else [current],
            "snapshot_log": table.metadata.snapshot_log[-1:],
            "metadata_log": [],
        }
    )
