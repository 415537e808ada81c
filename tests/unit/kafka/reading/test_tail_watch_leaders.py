"""Whom a watch of logs asks: leaders are looked up when the logs are others, and behind a
failure."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest

from everflow.errors import RetriableError
from everflow.kafka.errors import LinkLostError
from everflow.kafka.reading.fetch_connection import FetchConnection, TailWatch
from everflow.records import TopicPartition

LOGS = [TopicPartition("in", partition) for partition in range(6)]


class Link:
    """Brokers that answer at once; logs lie on them in turn."""

    def __init__(self) -> None:
        self.brokers, self.looked, self.refreshed = 2, 0, 0
        self.sent: list[tuple[int, list[int]]] = []
        self.failure: Exception | None = None

    def leader(self, tp: TopicPartition) -> int | None:
        self.looked += 1
        return tp.partition % self.brokers

    def leader_epoch(self, tp: TopicPartition) -> int:
        return 1

    def version(self, request: type) -> int:
        return 12

    def started(self, coroutine: Callable[[], Any]) -> Any:
        if len(coroutine.args) == 1:  # type: ignore[attr-defined]
            self.refreshed += 1
            return SimpleNamespace(is_done=True, exception=None)
        node, request = coroutine.args  # type: ignore[attr-defined]
        self.sent.append((node, [one.partition for t in request.topics for one in t.partitions]))
        answer = SimpleNamespace(error_code=0, session_id=4, responses=[])
        return SimpleNamespace(is_done=True, exception=self.failure, value=answer)

    def turn(self, wait_s: float) -> None: ...

    def now(self) -> float:
        return 0.0

    def close(self) -> None: ...


def watch_of(link: Any) -> TailWatch:
    """Its clock goes on by a second with each look."""
    seconds = count()
    return TailWatch(FetchConnection(link), lambda: float(next(seconds)))


def test_leaders_are_looked_up_once_for_the_same_logs() -> None:
    link: Any = Link()
    watch, ends = watch_of(link), dict.fromkeys(LOGS, 0)
    for _ in range(3):
        watch.wait(ends, 1.0)
    assert link.looked == len(LOGS)
    link.sent.clear()
    ends = {**ends, LOGS[3]: 5}
    watch.wait(ends, 1.0)
    assert link.sent == [(0, []), (1, [3])], "of a session only what has changed is named"
    assert link.looked == len(LOGS)


def test_other_logs_are_looked_up_and_those_that_are_gone_are_forgotten() -> None:
    link: Any = Link()
    watch = watch_of(link)
    watch.wait(dict.fromkeys(LOGS[:4], 0), 1.0)
    link.looked = 0
    link.sent.clear()
    watch.wait(dict.fromkeys(LOGS[2:], 0), 1.0)
    assert link.looked == 2, "the others' leaders are known"
    assert link.sent == [(0, [4]), (1, [5])]
    assert {tp for session in watch._connection._sessions.values() for tp in session.known} == set(
        LOGS[2:]
    )


def test_behind_a_failure_they_are_looked_up_anew() -> None:
    """A log has moved: its old leader says so."""
    link: Any = Link()
    watch, ends = watch_of(link), dict.fromkeys(LOGS, 0)
    watch.wait(ends, 1.0)
    link.failure = LinkLostError("gone", sent=True)
    with pytest.raises(RetriableError):
        watch.wait(ends, 1.0)
    link.failure, link.brokers = None, 3
    link.sent.clear()
    watch.wait(ends, 1.0)
    assert link.refreshed == 1
    assert link.sent == [(0, [0, 3]), (1, [1, 4]), (2, [2, 5])], "and named again"
