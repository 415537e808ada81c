"""Stateful operators: pure functions from (records, store views, stream time) to (results, store changes)."""

from everflow.operators import agg
from everflow.operators.agg import Aggregator
from everflow.operators.aggregate import AggregateSpec
from everflow.operators.python_aggregate import PythonAggregateSpec, PythonAggregator, PythonReducer
from everflow.operators.session_aggregate import SessionAggregateSpec, SessionFunctionSpec
from everflow.operators.table import TableSpec
from everflow.operators.user_code import UserFunctionError

__all__ = [
    "AggregateSpec",
    "Aggregator",
    "PythonAggregateSpec",
    "PythonAggregator",
    "PythonReducer",
    "SessionAggregateSpec",
    "SessionFunctionSpec",
    "TableSpec",
    "UserFunctionError",
    "agg",
]
