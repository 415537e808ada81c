"""What contracts of log readers read: committed and aborted transactions, in turn."""

from collections.abc import Sequence

import numpy as np

from everflow.kafka.admin import ClusterAdmin
from everflow.kafka.writing.record_writer import RecordWriter
from everflow.records import TopicPartition
from everflow.testing.waiting import wait_until


def write_transactions(
    bootstrap: str,
    admin: ClusterAdmin,
    transactional_id: str,
    partitions: Sequence[TopicPartition],
    transactions: Sequence[tuple[bool, Sequence[bytes | None]]],
) -> None:
    """Write each (commit it?, values) as one transaction over all partitions: keys k0, k1, ...,
    times from 1,000 ms on. Returns once all markers are in the logs; a marker takes an offset."""
    writer = RecordWriter({"bootstrap.servers": bootstrap}, transactional_id)
    for keep, values in transactions:
        writer.begin()
        keys = [b"k%d" % row for row in range(len(values))]
        for tp in partitions:
            writer.write(
                tp.topic,
                keys,
                list(values),
                np.arange(len(values), dtype=np.int64) + 1000,
                tp.partition,
            )
        writer.flush(10)
        if keep:
            writer.commit(10)
        else:
            writer.abort()
    writer.close()
    end = sum(len(values) + 1 for _, values in transactions)

    # A transaction has ended for its producer before its markers are in every log (KAFKA-10167).
    def landed() -> bool:
        return all(admin.end_offsets([tp], "read_committed")[tp] == end for tp in partitions)

    wait_until(landed, 10, "the last marker")
