"""A worker is asked over the gate's socket what it runs, and answers also while it hangs."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator

import pytest

from everflow.errors import EverflowError, RetriableError
from everflow.records import MemberMetadata
from everflow.runtime.commit.batch import EXACTLY_ONCE_V2
from everflow.runtime.commit.commit_gate import CommitGate, GateBackend, GateBook
from everflow.runtime.commit.gate_client import GateClient
from everflow.runtime.commit.samplers import Samplers, WaitingWorker
from everflow.runtime.worker import sampler
from everflow.runtime.worker.stack_samples import SAMPLER
from everflow.testing import wait_until

MEMBER = MemberMetadata(1, "member-1", None)
BACKEND = GateBackend(lambda: MEMBER, lambda _: b"", lambda _: True)


class Standing:
    """A gate at which this very process is a worker."""

    def __init__(self, samplers: Samplers | None) -> None:
        self.book, self.samplers = GateBook(), samplers
        self.gate = CommitGate(book=self.book, backend=BACKEND, samplers=samplers)
        self.path = self.gate.start()
        self.book.begin("i.0.0", 0, EXACTLY_ONCE_V2, {})


@pytest.fixture
def standing() -> Iterator[Standing]:
    made = Standing(Samplers())
    yield made
    made.gate.close()


def greet(standing: Standing) -> GateClient:
    """As a worker does at the begin of a batch."""
    client = GateClient(standing.path)
    assert client.hello("i.0.0", "t0-0", os.getpid())
    if client.samples:
        sampler.wait_for_questions(standing.path)
        sampler.wait_for_questions(standing.path)
    return client


def workers(standing: Standing) -> dict[str, int]:
    assert standing.samplers is not None
    return standing.samplers.workers()


def waiting_threads() -> int:
    return sum(one.name == SAMPLER for one in threading.enumerate())


def test_a_worker_tells_what_it_runs(standing: Standing) -> None:
    assert standing.samplers is not None
    before = waiting_threads()
    with greet(standing):
        wait_until(lambda: "t0-0" in workers(standing), 60, "the worker to wait")
        assert waiting_threads() == before + 1
        assert workers(standing) == {"t0-0": os.getpid()}
        began_s = time.monotonic()
        told = standing.samplers.sample("t0-0", 0.2)
        assert time.monotonic() - began_s >= 0.2
        assert told["samples"] >= 1
        names = [name for name, _ in told["frames"]]
        assert any("sample" in name and "commit/samplers.py" in name for name in names)
        assert sum(stack[0] for stack in told["stacks"]) > 0
        assert not any("/home/" in name or "/root/" in name for name in names)


def test_a_gate_that_closes_ends_the_waiting(standing: Standing) -> None:
    before = waiting_threads()
    with greet(standing):
        wait_until(lambda: "t0-0" in workers(standing), 60, "the worker to wait")
        standing.gate.close()
        wait_until(lambda: waiting_threads() == before, 60, "its thread to end")
    assert workers(standing) == {}


def test_a_worker_that_ends_meanwhile_has_no_answer(
    standing: Standing, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG", "everflow")  # a kept line keeps its error, and that its frames
    asked = threading.Event()

    def dies(_: float) -> None:
        asked.set()
        raise OSError("killed")

    monkeypatch.setattr(sampler, "sampled", dies)
    assert standing.samplers is not None
    with greet(standing):
        wait_until(lambda: "t0-0" in workers(standing), 60, "the worker to wait")
        with pytest.raises(RetriableError, match="t0-0"):
            standing.samplers.sample("t0-0", 1)
        assert asked.is_set()
        with pytest.raises(EverflowError, match=r"no worker t0-0 .*There are: none"):
            standing.samplers.sample("t0-0", 1)


def test_where_nobody_may_ask_no_thread_waits() -> None:
    standing = Standing(None)
    try:
        before = waiting_threads()
        with greet(standing) as client:
            assert not client.samples
            assert waiting_threads() == before
    finally:
        standing.gate.close()


def test_a_slot_belongs_to_who_has_served_it_last() -> None:
    samplers = Samplers()
    for pid, slot in ((1, "t0-0"), (2, "t1-0"), (1, "t0-1"), (3, "t1-0")):
        samplers.serves(pid, slot)
        samplers.waits(WaitingWorker(pid, None))  # type: ignore[arg-type]
    assert samplers.workers() == {"t0-1": 1, "t1-0": 3}
