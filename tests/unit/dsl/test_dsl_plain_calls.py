"""Calls outside a stream's chain, of options and aggregates, with arguments that do not fit."""

from __future__ import annotations

import inspect

import pytest

from everflow import (
    Materialized,
    TopologyError,
    agg,
    serdes,
)
from unit.builders import PUBLIC

NAMES = {**PUBLIC, "TEXT": serdes.string()}
CALLS = {
    "Materialized()": r"Materialized\(...\): missing .*'name'; write Materialized\('counts', ",
    "Materialized('n', '1 day')": "too many positional arguments; write Materialized",
    "Materialized('n', store_type='memory')": r"takes no store_type=; it is in_memory here, for "
    r"example Materialized\('counts', in_memory=True\)",
    "Materialized('n', retain='1 day')": "unexpected keyword argument 'retain'; write Mat",
    "Suppressed()": r"'wait_ms'; write Suppressed\.until_window_closes\(\)",
    "Suppressed.until_time_limit()": r"'limit'; write Suppressed\.until_time_limit\('1 minute'\)",
    "Suppressed.until_window_closes(1, 2)": r"write Suppressed\.until_window_closes\(\)",
    "BufferConfig.max_records()": r"BufferConfig\.max_records\(...\): missing .*'count'; write "
    r"BufferConfig\.max_records\(100_000\)\.shut_down_when_full\(\)",
    "BufferConfig.unbounded().with_max_bytes()": r"with_max_bytes\(...\): missing .*'count'; write",
    "EmitStrategy.every()": r"missing .*'amount'; write EmitStrategy.*every\('10 seconds'\)",
    "Stores.window('w', key=TEXT, value=TEXT, size='1 s')": r"missing .*'retention'; write "
    r"Stores\.window\('hourly', .*, retention='1 day'\)",
    "Stores.key_value('s', key=TEXT, value=TEXT, size='1 day')": r"argument 'size'; write "
    r"Stores\.key_value\('seen', key=serdes\.string\(\), value=serdes\.long\(\)\)",
    "Stores.session()": r"'name'; write Stores\.session\('visits', .*, retention='1 day'\)",
    "Stores.versioned('v')": r"write Stores\.versioned\('prices', .*, history='1 hour'\)",
    "Stores(1)": r"too many positional arguments; write Stores\.key_value\(",
    "agg.sum()": r"agg\.sum\(...\): missing .*'column'; write agg\.sum\('value\.amount'\)",
    "agg.top_n('value.a')": r"missing .*'n'; write agg\.top_n\('value\.item', 3, by=",
    "agg.count('value.a', distinct=True)": r"argument 'distinct'; write agg\.count\(\)",
}


@pytest.mark.parametrize(("call", "said"), list(CALLS.items()))
def test_a_call_that_does_not_fit_says_what_to_write(call: str, said: str) -> None:
    with pytest.raises(TopologyError, match=said) as caught:
        eval(call, dict(NAMES))
    assert caught.value.where == "<string>:1"


@pytest.mark.parametrize(
    "name",
    [
        *(f"agg.{kind}" for kind in agg.KINDS),
        *(f"Stores.{kind}" for kind in ("key_value", "window", "session", "versioned")),
        *("Materialized", "Suppressed.until_time_limit", "BufferConfig.max_records"),
    ],
)
def test_every_example_is_of_the_call_itself_and_can_be_run(name: str) -> None:
    with pytest.raises(TopologyError) as caught:
        eval(f"{name}(no_such=1)", dict(NAMES))
    example = str(caught.value).partition("; write ")[2].partition("\n")[0]
    assert example.startswith(f"{name}(")
    eval(example, dict(NAMES))


def test_calls_that_fit_stay_what_they_were() -> None:
    assert Materialized("n", retention="1 day").retention_ms == 86_400_000
    assert "retention" in inspect.signature(Materialized).parameters, "tooltips show it"
    assert list(inspect.signature(agg.sum).parameters) == ["column"]
    assert agg.sum.__name__ == "sum"
    assert agg.sum("value.a").column == "value.a"
