"""A flame graph: what is made of a worker's samples, and who may ask for them."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from everflow.errors import RetriableError
from everflow.observe.page.flame import LEAST_SHARE, MOST_BOXES, MOST_LINES, flame
from unit.observe.page.test_letter_routes import TOKEN, ask
from unit.observe.page.test_page_routes import served

TOLD: dict[str, Any] = {
    "samples": 10,
    "ms": 50.0,
    "frames": [["run", False], ["price (shop.py:7)", True], ["round", False], ["wait", False]],
    "stacks": [[60.0, 0, 1, 2], [20.0, 0, 1], [19.9, 0, 3], [0.1, 3]],
}


def test_what_is_called_stands_on_its_caller_and_has_its_part() -> None:
    found = flame(TOLD, "t0-0")
    assert (found["worker"], found["samples"], found["ms"]) == ("t0-0", 10, 50.0)
    assert found["tree"]["ms"] == 100.0, "of two threads"
    (run,) = found["tree"]["children"]
    assert (run["name"], run["ms"]) == ("run", 99.9)
    assert [(box["name"], box["own"], box["ms"]) for box in run["children"]] == [
        ("price (shop.py:7)", True, 80.0),
        ("wait", False, 19.9),
    ]
    assert [box["name"] for box in run["children"][0]["children"]] == ["round"]


def test_a_line_of_the_users_has_what_it_called_too() -> None:
    assert flame(TOLD, "t0-0")["lines"] == [{"line": "price (shop.py:7)", "ms": 80.0}]


def test_the_innermost_line_counts() -> None:
    told = {
        "samples": 1,
        "ms": 8.0,
        "frames": [["outer (a.py:1)", True], ["inner (a.py:9)", True]],
        "stacks": [[5.0, 0, 1], [3.0, 0]],
    }
    assert flame(told, "w")["lines"] == [
        {"line": "inner (a.py:9)", "ms": 5.0},
        {"line": "outer (a.py:1)", "ms": 3.0},
    ]


def test_nothing_was_seen() -> None:
    found = flame({"samples": 0, "ms": 0.0, "frames": [], "stacks": []}, "w")
    assert found["tree"] == {"name": "w", "own": False, "ms": 0.0, "children": []}


def test_it_is_bounded_and_leaves_out_the_smallest() -> None:
    frames = [[f"f{number} (a.py:{number})", True] for number in range(20_000)]
    stacks = [[float(1 + number % 7), number] for number in range(20_000)]
    told = {"samples": 1, "ms": 9.0, "frames": frames}
    found = flame({**told, "stacks": stacks}, "w")
    assert found["tree"]["children"] == [], f"none has a share of {LEAST_SHARE}"
    assert len(found["lines"]) == MOST_LINES
    deep = [[1.0, *range(start, start + 90)] for start in range(0, 9_000, 90)]
    boxes = json.dumps(flame({**told, "stacks": deep}, "w")["tree"])
    assert 0 < boxes.count('"name"') <= MOST_BOXES + len(deep) * 90


class Desk:
    """One worker; its answer waits while ``held``."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, float]] = []
        self.began, self.held = threading.Event(), threading.Event()
        self.held.set()
        self.fails = False

    def workers(self) -> Mapping[str, int]:
        return {"t10-0": 12, "t9-0": 11}

    def sample(self, worker: str, seconds: float) -> Mapping[str, Any]:
        self.began.set()
        assert self.held.wait(60)
        if self.fails:
            raise RetriableError("it has ended")
        self.asked.append((worker, seconds))
        return TOLD


@pytest.fixture
def desk() -> Desk:
    return Desk()


@pytest.fixture
def address(desk: Desk) -> Iterator[str]:
    with served(tokens=[TOKEN], workers=desk) as address:
        yield address


def body(worker: object = "t9-0", seconds: object = 5) -> bytes:
    return json.dumps({"worker": worker, "seconds": seconds}).encode()


def offered(address: str) -> dict[str, Any]:
    return dict(json.loads(ask(address, "/page/view")[1])["flame"])


def test_the_page_offers_the_workers_that_can_be_asked(address: str) -> None:
    assert offered(address) == {
        "workers": [{"worker": "t9-0", "process": 11}, {"worker": "t10-0", "process": 12}],
        "why": "",
    }


def test_a_post_is_answered_with_the_graph(address: str, desk: Desk) -> None:
    status, text = ask(address, "/page/flame", body())
    assert (status, json.loads(text)) == (200, flame(TOLD, "t9-0"))
    assert desk.asked == [("t9-0", 5.0)]


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (body(worker="t1-0"), 404),
        (body(worker=7), 400),
        (body(seconds=0.5), 400),
        (body(seconds=31), 400),
        (body(seconds="5"), 400),
        (body(seconds=True), 400),
        (b"{}", 400),
        (None, 405),
    ],
)
def test_what_is_no_question_is_refused(
    address: str, desk: Desk, sent: bytes | None, status: int
) -> None:
    assert ask(address, "/page/flame", sent)[0] == status
    assert desk.asked == []


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Sec_Fetch_Site": "cross-site"}, 403),
        ({"Origin": "http://elsewhere.example"}, 403),
        ({"Content_Type": "text/plain"}, 415),
        ({"Authorization": "Bearer of-nothing-good"}, 401),
    ],
)
def test_others_ask_nobody(address: str, desk: Desk, headers: dict[str, str], status: int) -> None:
    assert ask(address, "/page/flame", body(), **headers)[0] == status
    assert desk.asked == []


def test_without_a_token_no_worker_is_named() -> None:
    with served(workers=Desk()) as address:
        assert offered(address)["workers"] == []
        assert "query.token.file" in offered(address)["why"]
        assert ask(address, "/page/flame", body())[0] == 403


def test_who_comes_meanwhile_is_refused(address: str, desk: Desk) -> None:
    desk.held.clear()
    first: list[int] = []
    asking = threading.Thread(
        target=lambda: first.append(ask(address, "/page/flame", body())[0]), daemon=True
    )
    asking.start()
    assert desk.began.wait(60)
    assert ask(address, "/page/flame", body())[0] == 409
    desk.held.set()
    asking.join(60)
    assert first == [200]


def test_a_worker_that_ends_meanwhile_is_said(address: str, desk: Desk) -> None:
    desk.fails = True
    status, text = ask(address, "/page/flame", body())
    assert status == 503
    assert "it has ended" in text
