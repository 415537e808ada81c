"""What a process runs: names of functions, lines of the user's, and no home folders."""

from __future__ import annotations

import json
import queue
import selectors
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import pytest

from everflow.location import short
from everflow.runtime.step.user_line import of_user
from everflow.runtime.worker.stack_samples import (
    BESIDES,
    DEPTH,
    LEFT_OUT,
    MOST_STACKS,
    StackCounts,
    StackFrame,
    look,
)
from everflow.testing import wait_until


def place(number: int) -> StackFrame:
    return StackFrame(f"f{number}", False)


def test_a_stack_has_the_time_since_the_look_before() -> None:
    counts = StackCounts()
    own = StackFrame("mine (a.py:3)", True)
    counts.add([place(0), own], 10.0)
    counts.add([place(0)], 10.0)
    counts.add([place(0), own], 35.5)
    told = counts.told()
    assert told["frames"] == [["f0", False], ["mine (a.py:3)", True]]
    assert told["stacks"] == [[45.5, 0, 1], [10.0, 0]]
    assert json.loads(json.dumps(told)) == told


def test_deep_stacks_and_many_are_bounded() -> None:
    counts = StackCounts()
    counts.add([place(number) for number in range(500)], 1.0)
    ((_, *places),) = counts.told()["stacks"]
    names = [counts.told()["frames"][one][0] for one in places]
    assert len(names) == DEPTH
    assert (names[0], names[-1]) == ("f0", "f499"), "who began it, and what it does"
    assert LEFT_OUT in names
    for number in range(MOST_STACKS + 50):
        counts.add([place(1_000 + number)], 1.0)
    told = counts.told()
    assert len(told["stacks"]) == MOST_STACKS + 1
    assert told["frames"][told["stacks"][0][1]][0] == BESIDES


def test_a_file_is_shown_as_its_import_names_it_or_by_its_last_name() -> None:
    roots = ["", "/opt/app", "/srv/ann/.venv/lib/site-packages", "/opt"]
    assert short("/opt/app/shop/prices.py", roots) == "shop/prices.py"
    installed = "/srv/ann/.venv/lib/site-packages/pyspark/worker.py"
    assert short(installed, roots) == "pyspark/worker.py"
    assert short("/srv/ann/jobs/shop.py", roots) == "shop.py"
    assert short("/optional/x.py", roots) == "x.py"
    assert short("<frozen importlib._bootstrap>", roots) == "<frozen importlib._bootstrap>"


def test_a_file_of_the_user_is_none_of_pythons_or_of_packages() -> None:
    assert of_user("/srv/ann/jobs/shop.py")
    assert of_user("/var/ipykernel_7/3.py")
    assert not of_user(json.__file__)
    assert not of_user(StackCounts.__module__.join(("<", ">")))
    assert not of_user("/srv/ann/.venv/lib/python3/site-packages/numpy/core.py")


@contextmanager
def stands(until: threading.Event, work: Callable[[], object], name: str) -> Iterator[None]:
    thread = threading.Thread(target=work, name=name, daemon=True)
    thread.start()
    try:
        yield
    finally:
        until.set()
        thread.join(60)


def names() -> list[list[str]]:
    """Of a look at this process."""
    counts = StackCounts()
    look(counts, 10.0)
    assert counts.samples == 1
    told = counts.told()
    assert told["ms"] == 10.0, "however many threads there are"
    return [[told["frames"][one][0] for one in stack[1:]] for stack in told["stacks"]]


def test_another_thread_is_named_and_the_one_that_looks_is_left_out() -> None:
    until = threading.Event()

    def works() -> None:
        while not until.is_set():
            sum(range(1_000))

    with stands(until, works, "works-there"):
        wait_until(lambda: any(one[0] == "thread works-there" for one in names()), 60, "it to run")
        assert not any("names" in name for stack in names() for name in stack)


def in_select(until: threading.Event) -> None:
    """As a client of Kafka waits."""
    with selectors.DefaultSelector() as selector:
        while not until.is_set():
            selector.select(0.05)


def in_a_queue(until: threading.Event) -> None:
    found = queue.Queue[int]()
    while not until.is_set():
        with suppress(queue.Empty):
            found.get(timeout=0.05)


def in_a_lock(until: threading.Event) -> None:
    until.wait()


@pytest.mark.parametrize("wait", [in_select, in_a_queue, in_a_lock])
def test_a_helper_thread_that_waits_is_left_out(wait: Callable[[threading.Event], None]) -> None:
    """It halved the part of the main thread's lines."""
    until = threading.Event()
    with stands(until, lambda: wait(until), "waits-there"):
        wait_until(lambda: all(one[0] != "thread waits-there" for one in names()), 10, "it to wait")
