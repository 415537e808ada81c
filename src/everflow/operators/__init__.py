"""Stateful operators: pure functions of records, store views and stream time.

Each is a frozen ``...Spec`` whose ``run`` gives a `TasksResult`: results and
changes, nothing written. `aggregate` (with `agg`, `fold`) and `python_aggregate` are those
of groups and windows, `session_aggregate` (with `session_book`, `session_order`)
those of sessions, `sliding` has those of sliding windows, `count_windows` those of windows over
record numbers (all three with `windowed_aggregate`), `table` keeps the last
value, `versioned_table` what values were, `deduplicate` drops repetitions. They share `grouping`
and, for the user's functions, `user_code`.
May import layers 0 and 1: no I/O, threads, clock, Spark, Kafka or LMDB. The Python workers run
them, and the test driver.
"""

from everflow.operators import agg
from everflow.operators.agg import Aggregator
from everflow.operators.aggregate import AggregateSpec
from everflow.operators.python_aggregate import PythonAggregateSpec, PythonAggregator, PythonReducer
from everflow.operators.session_aggregate import SessionAggregateSpec
from everflow.operators.sliding.sliding_aggregate import SlidingAggregateSpec
from everflow.operators.table import TableSpec
from everflow.operators.user_code import UserFunctionError

__all__ = [
    "AggregateSpec",
    "Aggregator",
    "PythonAggregateSpec",
    "PythonAggregator",
    "PythonReducer",
    "SessionAggregateSpec",
    "SlidingAggregateSpec",
    "TableSpec",
    "UserFunctionError",
    "agg",
]
