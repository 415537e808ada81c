"""Sessions in blocks, against one sorted list."""

from __future__ import annotations

from bisect import bisect_left
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from everflow.operators.aggregates import session_aggregate
from everflow.operators.aggregates.session_aggregate import SessionOrder


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_aggregate, "MOST", 4)


def inserted(order: SessionOrder, session: int, end: int) -> None:
    order.insert(*order.first_from(end), session, end)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_blocks_hold_what_one_list_would(data: Any) -> None:
    order, ends = SessionOrder(), dict[int, int]()
    for session in range(data.draw(st.integers(0, 60))):
        listed = sorted(ends, key=lambda one: (ends[one], one))
        action = data.draw(st.sampled_from(["insert", "insert", "insert", "replace", "remove"]))
        if action == "insert" or not listed:
            end = data.draw(st.integers(0, 99))
            if end not in ends.values():
                inserted(order, session, end)
                ends[session] = end
        elif action == "remove":
            gone = data.draw(st.sampled_from(listed))
            order.remove(gone, ends.pop(gone))
        else:
            first = data.draw(st.integers(0, len(listed) - 1))
            met = listed[first : data.draw(st.integers(first + 1, len(listed)))]
            place = order.first_from(ends[met[0]])
            end = ends[met[-1]]
            order.replace(*place, len(met), session, end)
            for one in met:
                del ends[one]
            ends[session] = end
        listed = sorted(ends, key=lambda one: ends[one])
        assert list(order) == listed
        assert [one for block in order.ends for one in block] == [ends[one] for one in listed]
        assert all(order.ends) or len(order.ends) == 1
        assert max(map(len, order.ends)) <= 4
        wanted = data.draw(st.integers(0, 100))
        behind = listed[bisect_left([ends[one] for one in listed], wanted) :]
        assert list(order.following(*order.first_from(wanted))) == behind


def test_of_sessions_with_one_end_the_named_one_goes() -> None:
    """One that a store hides may end when a new one does."""
    order = SessionOrder()
    for session in range(9):
        order.append(session, 7)
    order.remove(5, 7)
    order.remove(8, 7)
    assert list(order) == [0, 1, 2, 3, 4, 6, 7]


def test_a_key_of_many_sessions_moves_a_block_for_each_not_all() -> None:
    order = SessionOrder()
    for session in range(1_000):
        inserted(order, session, -session)
    assert list(order) == list(range(999, -1, -1))
    assert max(map(len, order.ends)) <= 4
