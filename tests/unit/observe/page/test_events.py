"""The lines that are kept."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from everflow.logs import ABOUT_ASSIGNMENT, moves
from everflow.observe.page.history import LONGEST, EventBook

log = logging.getLogger("everflow")


@pytest.fixture
def book(monkeypatch: pytest.MonkeyPatch) -> Iterator[EventBook]:
    book = EventBook(kept=5)
    monkeypatch.setattr(log, "level", logging.DEBUG)
    log.addHandler(book)
    log.manager._clear_cache()  # type: ignore[attr-defined]
    yield book
    log.removeHandler(book)
    log.manager._clear_cache()  # type: ignore[attr-defined]


def test_what_people_are_told_is_kept(book: EventBook) -> None:
    moves.info("REBALANCING -> %s", "RUNNING")
    log.info("a detail")
    log.warning("a broker is slow")
    moves.info("Assigned 1 task", extra=ABOUT_ASSIGNMENT)
    found = book.events()
    assert [(event.level, event.about, event.text) for event in found] == [
        ("INFO", "", "REBALANCING -> RUNNING"),
        ("WARNING", "", "a broker is slow"),
        ("INFO", "assignment", "Assigned 1 task"),
    ]
    assert found[0].at_ms <= found[-1].at_ms


def test_a_line_that_repeats_is_kept_once(book: EventBook) -> None:
    for _ in range(4):
        log.warning("a broker is slow")
    assert [(event.text, event.times) for event in book.events()] == [("a broker is slow", 4)]


def test_a_noisy_hour_leaves_why_a_task_has_moved(book: EventBook) -> None:
    moves.info("Revoked 1 task", extra=ABOUT_ASSIGNMENT)
    for n in range(100):
        log.warning("noise %d", n)
    assert [event.text for event in book.events()] == [
        "Revoked 1 task",
        *(f"noise {n}" for n in range(95, 100)),
    ]


def test_long_lines_are_cut_and_odd_ones_pass() -> None:
    book = EventBook()
    for text, arguments in (("x" * 10_000, ()), ("%d", ("no number",))):
        book.handle(log.makeRecord("everflow", logging.WARNING, "", 1, text, arguments, None))
    assert [len(book.events()[0].text), book.events()[1].text] == [LONGEST + 3, "%d"]
