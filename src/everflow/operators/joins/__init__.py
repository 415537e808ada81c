"""Joins (note 020): a join takes the records of both sides of a batch, and gives what one record
after the other would give.

`joined_table` looks tables up; `stream_table`, `table_table` (also by foreign keys, note 022) and
`lookup_join` (note 027) read through it. `stream_stream` joins two streams in windows.
"""

from everflow.operators.joins.joined_table import JoinedTable, JoinKind, joined_type
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
