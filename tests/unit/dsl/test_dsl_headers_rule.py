"""Each operator says in its docstring what becomes of headers."""

from __future__ import annotations

import pytest

from everflow import CogroupedKStream, KStream, KTable
from everflow.dsl.streams import (
    KGroupedStream,
    KGroupedTable,
    SessionWindowedCogroupedKStream,
    SessionWindowedKStream,
    TimeWindowedCogroupedKStream,
    TimeWindowedKStream,
)

OPERATORS = {
    KStream: "filter filter_not map map_values flat_map flat_map_values select_key peek merge "
    "split branch repartition group_by group_by_key to_table to join left_join outer_join "
    "join_asof join_interval lookup_join deduplicate process process_values",
    KTable: "filter filter_not map_values transform_values suppress to_stream group_by join "
    "left_join outer_join",
    KGroupedStream: "count reduce aggregate",
    TimeWindowedKStream: "count reduce aggregate emit_strategy",
    SessionWindowedKStream: "count reduce aggregate",
    KGroupedTable: "count reduce aggregate",
    CogroupedKStream: "aggregate",
    TimeWindowedCogroupedKStream: "aggregate",
    SessionWindowedCogroupedKStream: "aggregate",
}


@pytest.mark.parametrize(
    ("owner", "name"),
    [(owner, name) for owner, names in OPERATORS.items() for name in names.split()],
)
def test_the_rule_of_headers_is_told(owner: type, name: str) -> None:
    assert "eaders" in (getattr(owner, name).__doc__ or ""), "what becomes of headers?"
