"""Joins (note 020): of a stream and a table, of two tables, of two streams in windows.

A join takes the records of both sides of a batch, and gives what one record after the other would
give. `joined_table` tells what a table held at a record, `versions_as_of` what a versioned one held
at a time; `held_back` lets records wait (`grace_join`, note 028). `batch_records`, `join_side`,
`matches`, `waiting_records` and `joined_results` are the parts of a join of two streams;
`foreign_keys`, `subscriptions` and `answers` are those of a join by a foreign key (note 022).
May import layers 0 and 1: no I/O, threads, clock, Spark, Kafka or LMDB.
"""

from everflow.operators.joins.joined_table import JoinedTable
from everflow.operators.joins.joined_values import JoinKind, joined_type
from everflow.operators.joins.stream_stream import StreamStreamJoin
from everflow.operators.joins.stream_table import StreamTableJoin
from everflow.operators.joins.table_table import TableTableJoin

__all__ = [
    "JoinKind",
    "JoinedTable",
    "StreamStreamJoin",
    "StreamTableJoin",
    "TableTableJoin",
    "joined_type",
]
