"""Reads records a second time, by our own fetches: for headers that librdkafka cannot hand out."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from everflow.errors import LogStartMovedError, RetriableError
from everflow.kafka.reading.fetch_tap import FetchTap
from everflow.kafka.reading.log_columns import LogColumns
from everflow.kafka.reading.record_batches import UnsupportedBatchError
from everflow.records import TopicPartition

_WAIT_S = 30.0
_FETCH_BYTES = 4 << 20

_log = logging.getLogger(__name__)


class RawHeaders:
    """Owned by one thread; connects when it is first asked. Takes a fetch whose answer is there
    already: 2 to 3 ms for each log."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        """``config``: librdkafka keys, ``bootstrap.servers`` at least."""
        self._config = config
        self._tap: FetchTap | None = None

    def read(self, tp: TopicPartition, start: int, end: int) -> LogColumns:
        """The records in ``[start, end)`` that are in the log now, with their headers. Some may be
        of transactions that are not committed. Fewer where the log has lost some since, or has
        batches that only librdkafka reads. Raises RetriableError where the brokers do not answer,
        FatalError as classified in `everflow.kafka.errors`."""
        tap = self._tap = self._tap or FetchTap.over(
            self._config,
            read_committed=False,
            fetch_bytes=_FETCH_BYTES,
            parsed_bytes=_FETCH_BYTES,
        )
        parts: list[LogColumns] = []
        try:
            tap.go_to({tp: start}, _WAIT_S)
            while tap.positions[tp] < end:
                taken = tap.take({tp: end}, _WAIT_S)
                if not taken:
                    raise RetriableError(
                        f"{tp}: the brokers did not answer for {_WAIT_S:g} s when asked again for "
                        f"the records from offset {start} to {end}, for their headers",
                        [tp],
                    )
                parts.append(taken[tp].columns(headers=True))
        except (LogStartMovedError, UnsupportedBatchError) as reason:
            _log.info("%s: no headers from offset %d to %d (%s)", tp, start, end, reason)
        finally:
            tap.go_to({})
        return LogColumns.concat(parts)

    def close(self) -> None:
        """Release the connections; another `read` makes new ones."""
        if self._tap is not None:
            self._tap.close()
            self._tap = None
