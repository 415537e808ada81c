"""What aggregates of sessions, sliding windows and count windows take from their layout."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import pyarrow as pa

from everflow.operators.aggregate import AggregateSpec
from everflow.operators.python_aggregate import PythonAggregateSpec
from everflow.serdes import Serde
from everflow.serdes.base import ResultDecoder
from everflow.serdes.windowed import windowed_key_type
from everflow.topology.graph import TableOperator

Layout = TypeVar("Layout", bound=AggregateSpec | PythonAggregateSpec)


@dataclass(frozen=True)
class OverLayout(TableOperator, Generic[Layout]):
    """Part of a `TableOperator`; ``layout`` is an aggregate as it is without these windows."""

    layout: Layout

    @property
    def store(self) -> str:
        """Of the windows."""
        return self.layout.store

    @property
    def key_serde(self) -> Serde:
        """Of the keys without their windows."""
        return self.layout.key_serde

    @property
    def value_serde(self) -> Serde:
        """Of the stored values."""
        return self.layout.value_serde

    @property
    def result(self) -> pa.DataType:
        """Arrow type of the output's value."""
        return self.layout.result

    @property
    def result_key(self) -> pa.DataType:
        """Arrow type of the output's key."""
        return windowed_key_type(self.key_serde.type)

    def decode_result(self, data: bytes) -> Any:
        """What the table shows for stored bytes."""
        return self.layout.decode_result(data)

    @property
    def results(self) -> ResultDecoder:
        """See `TableOperator`."""
        return self.layout.results
