"""How the DSL decides with which arguments a user's function is called."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from everflow.dsl.expressions import TableFilter, key_value_function
from everflow.errors import TopologyError


class Method:
    def of_value(self, value: Any) -> Any:
        return value


@pytest.mark.parametrize(
    ("fn", "expected"),
    [
        (lambda v: v, "value"),
        (lambda k, v: (k, v), ("key", "value")),
        (lambda v, sep="-": v + sep, "value-"),
        (lambda *args: args, ("key", "value")),
        (Method().of_value, "value"),
        (partial(lambda a, v: (a, v), 1), (1, "value")),
        (str.upper, "VALUE"),
        (len, 5),
    ],
)
def test_arguments_follow_the_signature(fn: Any, expected: object) -> None:
    assert key_value_function(fn, "map_values")("key", "value") == expected


def test_other_counts_are_refused() -> None:
    with pytest.raises(TopologyError, match="takes 3 arguments"):
        key_value_function(lambda a, b, c: None, "filter")


def test_a_tables_filter_is_not_asked_about_deletions() -> None:
    positive = TableFilter(lambda k, v: v > 0, negate=False)
    assert [positive("k", v) for v in (1, -1, None)] == [1, None, None]
