"""Reads and decodes the ranges of a micro-batch: in a resident step, or as a job's first hop."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from everflow.clock import in_utc
from everflow.kafka.reading.log_columns import LogColumns
from everflow.kafka.reading.range_reader import RangeReader
from everflow.memory.peak import of_this_process
from everflow.records import TopicPartition
from everflow.runtime.commit.batch import BatchRequest, as_json, by_name
from everflow.runtime.step.task_step import failed
from everflow.runtime.worker.log_decoder import LogDecoder
from everflow.runtime.worker.set_aside import Judge
from everflow.runtime.worker.worker_ports import clients_of
from everflow.topology.hops import HopSchema, write_hop

READ_TIMEOUT_S = 30.0
QUIET_S = 10.0
"""How long a partition that does not answer may hold up tasks beside its own."""
Read = Mapping[TopicPartition, LogColumns]
_readers: dict[str, tuple[Mapping[str, Any], RangeReader]] = {}
"""Of jobs' first stages, by what is read, each with its settings: a worker serves the stream
threads of one number, one job after the other, of every application in this Spark."""


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
            self.group,
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


def read_by_kept(log: LogInput, request: BatchRequest) -> tuple[BatchRequest, Read]:
    """`LogInput.read` by the reader that this process keeps for it, of the topics of the request
    for sure; one that fails is kept no longer."""
    name, client = repr(log), clients_of(request).reader
    try:
        if name in _readers and _readers[name][0] != client:
            _readers.pop(name)[1].close()
        _, reader = _readers.get(name) or _readers.setdefault(name, (client, log.reader(client)))
        if not request.tasks:  # the thread has none yet, so nobody waits
            log.warm_up(reader)
        found = log.read(reader, request)
        reader.require_ids(QUIET_S)
        return found
    except Exception:
        if name in _readers:
            _readers.pop(name)[1].close()
        raise


@dataclass(frozen=True, kw_only=True)
class LogStep:
    """The first Python hop of a micro-batch that is a Spark job: `LogInput` as hop rows."""

    input: LogInput
    hop_out: HopSchema
    request: Callable[[], BatchRequest]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """What Spark's ``mapInArrow`` runs, over any rows; a failure is told by the last row."""
        for _ in batches:  # a worker that leaves input unread is not used again
            pass
        try:
            request, read = read_by_kept(self.input, self.request())
            decoder = self.input.decoder
            with in_utc():
                hop = decoder.run(read, Judge.of(decoder.handlers, request))
        except Exception as error:
            yield from failed(error, self.hop_out)
            return
        ends = {tp: wanted.end for tp, wanted in request.ranges.items()}
        told = {
            "ends": by_name(ends),
            "bytes": hop.bytes,
            "silent": request.silent,
            "keys": hop.keys,
        }
        control = as_json(told)
        yield from write_hop(hop.batches, self.hop_out, control)
