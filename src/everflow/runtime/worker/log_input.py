"""Reads the ranges of a micro-batch, for the resident step."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from everflow.kafka.reading.range_reader import RangeReader
from everflow.kafka.reading.record_columns import LogColumns
from everflow.memory.peak import of_this_process
from everflow.records import TopicPartition
from everflow.runtime.commit.batch import BatchRequest
from everflow.runtime.worker.log_decoder import LogDecoder

READ_TIMEOUT_S = 30.0
QUIET_S = 10.0
"""How long a partition that does not answer may hold up tasks beside its own."""
Read = Mapping[TopicPartition, LogColumns]


@dataclass(frozen=True, kw_only=True)
class LogInput:
    """What is read, and how; picklable. ``ahead_bytes``: what is fetched before it is asked for
    (`WorkerMemory.ahead`)."""

    decoder: LogDecoder
    group: str
    read_committed: bool
    ahead_bytes: int

    def reader(self, client: Mapping[str, Any]) -> RangeReader:
        """Connections of one thread, for `read`. ``client``: librdkafka properties
        (`WorkerClients.reader`)."""
        return RangeReader(
            client,
            self.read_committed,
            self.decoder.headers,
            ahead_bytes=self.ahead_bytes,
        )

    def warm_up(self, reader: RangeReader) -> None:
        """Connect before there is anything to read."""
        reader.warm_up({source.topic for source in self.decoder.sources}, READ_TIMEOUT_S)

    def read(self, reader: RangeReader, request: BatchRequest) -> tuple[BatchRequest, Read]:
        """The request with the ranges that were read, and their records. Before anything of them is
        written, `RangeReader.require_ids` has to say that they are of the topics of the request,
        which is asked for here. Raises what `RangeReader.read` and `RangeReader.ask_ids` raise."""
        quiet_s = None if request.patient else QUIET_S
        read = reader.read(request.ranges, READ_TIMEOUT_S, request.most_bytes, quiet_s)
        begun = [tp for tp, wanted in request.ranges.items() if read.ends[tp] > wanted.start]
        reader.ask_ids(begun, request.topic_ids)
        of_this_process(os.getpid()).begin(sum(found.nbytes for found in read.columns.values()))
        return replace(request.ending(read.ends), silent=read.silent), read.columns


def settle(request: BatchRequest) -> None:
    """The work of a request is done; where it had no records, this process holds none."""
    if not request.ranges:
        of_this_process(os.getpid()).settle()
