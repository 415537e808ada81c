"""What a batch takes of an instance's memory: whatever becomes of its records, the next one is
planned to fit, and no batch makes the ones behind it smaller and smaller."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from everflow.memory import (
    FIRST_TIMES,
    LEAST_BATCH_BYTES,
    MIB,
    WORKER_BYTES,
    BatchMemory,
    MemoryBudget,
    Taken,
    WorkerMemory,
    least_budget,
    usual_budget,
)

LIMIT = 256 * MIB
sizes = st.integers(0, 1 << 42)
threads = st.integers(1, 200)


@given(threads, st.one_of(st.none(), sizes))
def test_what_all_get_is_no_more_than_there_is(count: int, machine: int | None) -> None:
    budget = MemoryBudget(usual_budget(count, machine))
    worker = budget.worker(count)
    assert budget.beside_workers + count * worker.total <= budget.total
    assert 3 * worker.ahead + worker.queue <= worker.room(WORKER_BYTES) // 2


@given(threads, sizes)
def test_a_budget_is_within_three_quarters_of_the_machine_or_the_least_there_can_be(
    count: int, machine: int
) -> None:
    found = usual_budget(count, machine)
    assert found == least_budget(count) or found <= machine * 3 // 4


@given(threads, sizes)
def test_more_memory_is_never_less_for_anybody(count: int, total: int) -> None:
    less, more = MemoryBudget(total), MemoryBudget(2 * total)
    assert less.restore_fetch <= more.restore_fetch
    assert less.worker(count).total <= more.worker(count).total
    assert less.worker(count + 1).total <= less.worker(count).total
    assert less.worker(count).ahead <= more.worker(count).ahead


class Worker:
    """A process whose batches take ``times`` the bytes of their records, and that gives nothing
    back of what it once held."""

    def __init__(self, idle: int, times: float) -> None:
        self.idle, self.times, self.held = idle, times, idle

    def run(self, raw_bytes: int) -> Taken:
        before = max(self.held, self.idle + raw_bytes)
        self.held = max(before, self.idle + int(self.times * raw_bytes))
        return Taken(self.idle, before, self.held)


@given(
    st.integers(LEAST_BATCH_BYTES + WORKER_BYTES, 64 << 30),
    st.integers(20 * MIB, WORKER_BYTES),
    st.floats(1.0, FIRST_TIMES),
    st.lists(st.floats(0.0, 1.0), min_size=1, max_size=40),
)
def test_a_worker_never_takes_more_than_its_share(
    total: int, idle: int, times: float, backlogs: list[float]
) -> None:
    """For what is no worse than the first guess; ``backlogs``: how much of the most there was."""
    share, memory, worker = WorkerMemory(total), BatchMemory(), Worker(idle, times)
    for filled in backlogs:
        most = memory.most_bytes(LIMIT, share)
        raw = int(most * filled)
        taken = worker.run(raw)
        assert taken.peak <= share.total
        memory = memory.after(raw, most, taken)


@given(st.integers(LEAST_BATCH_BYTES + WORKER_BYTES, 8 << 30), st.floats(1.0, 200.0))
def test_batches_settle_at_what_fits(total: int, times: float) -> None:
    """However much is made of a record: at most one batch is too large, the first one; those behind
    it fit, and take at least half of what they may."""
    share, memory, worker = WorkerMemory(total), BatchMemory(), Worker(100 * MIB, times)
    for number in range(30):
        most = memory.most_bytes(LIMIT, share)
        taken = worker.run(most)
        memory = memory.after(most, most, taken)
        needed = worker.idle + int(worker.times * most)
        assert number == 0 or needed <= share.total
    assert most == LIMIT or needed - worker.idle >= share.room(worker.idle) / 2


@given(st.floats(2.0, 60.0), st.lists(st.floats(0.0, 1.0), max_size=60))
def test_what_one_large_batch_left_does_not_make_the_others_ever_smaller(
    times: float, backlogs: list[float]
) -> None:
    share, memory, worker = WorkerMemory(1 << 30), BatchMemory(), Worker(100 * MIB, times)
    for filled in [1.0, *backlogs]:
        most = memory.most_bytes(LIMIT, share)
        memory = memory.after(int(most * filled), most, worker.run(int(most * filled)))
        assert memory.times <= max(FIRST_TIMES, times * 1.01)


def test_other_records_than_before_make_the_next_batch_smaller_at_once() -> None:
    share, memory = WorkerMemory(WORKER_BYTES + 800 * MIB), BatchMemory(4.0)
    most = memory.most_bytes(LIMIT, share)
    assert most == 150 * MIB
    memory = memory.after(most, most, Taken(WORKER_BYTES, 300 * MIB, WORKER_BYTES + 12 * most))
    assert memory.most_bytes(LIMIT, share) == 50 * MIB


def test_a_small_batch_tells_nothing_but_what_the_worker_takes_without_one() -> None:
    memory = BatchMemory().after(MIB, 50 * MIB, Taken(77 * MIB, 80 * MIB, 900 * MIB))
    assert memory == BatchMemory(FIRST_TIMES, 77 * MIB)
    assert memory.after(50 * MIB, 50 * MIB, None) == memory


def test_a_worker_that_died_makes_the_next_batch_smaller() -> None:
    share = WorkerMemory(WORKER_BYTES + 800 * MIB)
    assert BatchMemory().doubted().most_bytes(LIMIT, share) * 2 == BatchMemory().most_bytes(
        LIMIT, share
    )


def test_max_batch_bytes_holds_where_there_is_room_for_more() -> None:
    assert BatchMemory().most_bytes(1_000, WorkerMemory(1 << 40)) == 1_000
