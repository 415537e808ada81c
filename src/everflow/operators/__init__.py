"""Stateful operators: pure functions of records, store views and stream time.

Each is a frozen ``...Spec`` whose ``run`` gives a `TasksResult`: results and changes, nothing
written. `aggregates` has those of groups and windows, `joins` those with two sides, `processors`
the user's; `table` keeps the last value, every version, or which ids have gone by.
May import layer 0, topology and the pure modules of state: no I/O, threads, clock, Spark, Kafka or
LMDB. The Python workers run them, and the test driver.
"""

from everflow.operators import agg
from everflow.operators.agg import Aggregator
from everflow.operators.aggregates.aggregate import (
    AggregateSpec,
    PythonAggregateSpec,
    PythonAggregator,
    PythonReducer,
)
from everflow.operators.aggregates.sliding_aggregate import SlidingAggregateSpec
from everflow.operators.aggregates.windowed_aggregate import SessionAggregateSpec
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
