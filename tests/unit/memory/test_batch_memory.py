"""What there is of memory, what a batch takes, and that what was freed goes back."""

import json
import os
import re
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from everflow import serdes
from everflow.errors import ConfigError
from everflow.memory import (
    EVERY_S,
    FIRST_TIMES,
    LEAST_BATCH_BYTES,
    MIB,
    WORKER_BYTES,
    BatchMemory,
    MemoryBudget,
    PeakMemory,
    SpareMemory,
    Taken,
    WorkerMemory,
    budget_of,
    least_budget,
    machine_memory,
    trim_of_libc,
    usual_budget,
)
from everflow.spark.job import worker_environment
from unit.builders import streams_config

LIMIT = 256 * MIB
sizes = st.integers(0, 1 << 42)
threads = st.integers(1, 200)


@given(threads, st.one_of(st.none(), sizes))
def test_what_all_get_is_no_more_than_there_is(count: int, machine: int | None) -> None:
    budget = MemoryBudget(usual_budget(count, machine))
    worker = budget.worker(count)
    assert budget.beside_workers + count * worker.total <= budget.total
    assert 3 * worker.ahead + worker.queue <= worker.batch_bytes(WORKER_BYTES) // 2


@given(threads, sizes)
def test_the_least_budget_is_divided_like_any_other(count: int, more: int) -> None:
    budget = MemoryBudget(least_budget(count) + more)
    assert budget.beside_workers + count * budget.worker(count).total <= budget.total


@given(threads, sizes)
def test_a_budget_is_within_the_machine_or_the_least_there_can_be(count: int, machine: int) -> None:
    found = usual_budget(count, machine)
    assert found == least_budget(count) or found <= machine * 3 // 4


@given(threads, sizes)
def test_more_memory_is_never_less_for_anybody(count: int, total: int) -> None:
    less, more = MemoryBudget(total), MemoryBudget(2 * total)
    assert less.restore_fetch <= more.restore_fetch
    assert less.heap <= more.heap
    assert less.jvm <= more.jvm
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
def test_no_worker_takes_more(total: int, idle: int, times: float, backlogs: list[float]) -> None:
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
    share, memory, worker = WorkerMemory(total), BatchMemory(), Worker(100 * MIB, times)
    for number in range(30):
        most = memory.most_bytes(LIMIT, share)
        taken = worker.run(most)
        memory = memory.after(most, most, taken)
        needed = worker.idle + int(worker.times * most)
        assert number == 0 or needed <= share.total
    assert most == LIMIT or needed - worker.idle >= share.batch_bytes(worker.idle) / 2


@given(st.floats(2.0, 60.0), st.lists(st.floats(0.0, 1.0), max_size=60))
def test_one_large_batch_makes_no_others_ever_smaller(times: float, backlogs: list[float]) -> None:
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


SERDE = serdes.json("n bigint, prices array<decimal(9,2)>, words array<string>")
"""Arrow's parser does not read decimals: record by record, the dearest way."""


def objects_made(work: Callable[[], pa.Array]) -> tuple[pa.Array, int]:
    """What it gives, and the bytes that Python's objects took at the most."""
    tracemalloc.start()
    try:
        found = work()
        return found, tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_a_batch_of_large_values_is_never_all_objects_at_once() -> None:
    value = {"n": 1, "prices": [1.25] * 1_000, "words": [f"word-{n}" for n in range(20_000)]}
    raw = pa.array([json.dumps(value).encode()] * 20, pa.binary())
    assert raw.nbytes > 5_000_000
    column, reading = objects_made(lambda: SERDE.decode_array(raw))
    assert reading < 4 * raw.nbytes
    written, writing = objects_made(lambda: SERDE.encode_array(column))
    assert writing < 4 * raw.nbytes
    assert json.loads(written[19].as_py()) == value


GIB = 1 << 30
LINUX = Path("/proc/self/clear_refs").exists()


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_a_container_has_what_its_control_group_or_one_above_it_may_take(tmp_path: Path) -> None:
    whole = machine_memory(tmp_path)
    write(tmp_path / "proc/self/cgroup", "0::/kube/pod/box\n")
    write(tmp_path / "sys/fs/cgroup/kube/pod/box/memory.max", "max\n")
    assert machine_memory(tmp_path) == whole
    write(tmp_path / "sys/fs/cgroup/kube/pod/memory.max", "5000000\n")
    assert machine_memory(tmp_path) == 5_000_000
    write(tmp_path / "sys/fs/cgroup/memory.max", "4000000\n")
    assert machine_memory(tmp_path) == 4_000_000


def test_so_has_one_of_the_first_version_whose_group_is_mounted_as_the_root(tmp_path: Path) -> None:
    write(tmp_path / "proc/self/cgroup", "8:pids:/\n4:cpu,memory:/docker/b0x\n0::/\n")
    write(tmp_path / "sys/fs/cgroup/memory/memory.limit_in_bytes", "3000000\n")
    assert machine_memory(tmp_path) == 3_000_000


def test_a_text_that_is_no_table_of_groups_is_no_limit(tmp_path: Path) -> None:
    write(tmp_path / "proc/self/cgroup", "nothing\n")
    assert machine_memory(tmp_path) == machine_memory(tmp_path / "nowhere")


@pytest.mark.skipif(not LINUX, reason="the kernel's mark is Linux's")
def test_a_peak_is_seen_though_nothing_of_it_is_left() -> None:
    memory = PeakMemory()
    memory.settle()
    memory.begin(2 * MIB)
    assert np.ones(96 * MIB, np.uint8).all()
    taken = memory.taken()
    assert taken is not None
    assert taken.peak - taken.before >= 80 * MIB
    assert taken.before - taken.idle < 80 * MIB
    again = memory.taken()
    assert again is not None
    assert again.peak == taken.peak, "the batch has not ended"
    memory.begin(2 * MIB)
    later = memory.taken()
    assert later is not None
    assert later.peak < taken.peak - 40 * MIB


@pytest.mark.skipif(not LINUX, reason="the kernel's mark is Linux's")
def test_pages_of_files_do_not_count(tmp_path: Path) -> None:
    (tmp_path / "store").write_bytes(bytes(64 * MIB))
    memory = PeakMemory()
    memory.settle()
    memory.begin(2 * MIB)
    assert not np.memmap(tmp_path / "store", np.uint8).any()
    mapped = np.memmap(tmp_path / "store", np.uint8)
    assert not mapped.any()
    taken = memory.taken()
    assert taken is not None
    assert taken.peak - taken.before < 32 * MIB


def test_nothing_is_known_of_a_small_batch_nor_without_such_a_kernel(tmp_path: Path) -> None:
    memory = PeakMemory()
    memory.settle()
    memory.begin(1_000)
    assert memory.taken() is None
    memory = PeakMemory(tmp_path)
    memory.settle()
    memory.begin(2 * MIB)
    assert memory.taken() is None


def test_left_out_the_budget_is_that_of_the_threads_and_the_machine() -> None:
    config = streams_config(num_stream_threads=3)
    assert config.max_memory_bytes == usual_budget(3, machine_memory())
    assert usual_budget(2, 64 * GIB) == usual_budget(2, None)
    assert usual_budget(2, 2 * GIB) == 2 * GIB * 3 // 4


def test_a_budget_that_is_too_small_for_the_threads_is_refused_with_the_least() -> None:
    with pytest.raises(ConfigError, match=f"{least_budget(2):,} at least"):
        streams_config(num_stream_threads=2, max_memory_bytes=least_budget(2) - 1)


def test_two_threads_fit_into_a_container_of_a_gibibyte() -> None:
    assert streams_config(num_stream_threads=2, max_memory_bytes=GIB).memory.heap == 192 * MIB
    assert usual_budget(2, GIB) <= GIB


def test_spark_s_heap_is_that_of_the_settings_before_they_are_checked() -> None:
    assert budget_of("1073741824", "2") == MemoryBudget(GIB)
    usual = MemoryBudget(usual_budget(2, machine_memory()))
    assert budget_of(None, 2) == budget_of("much", "2") == usual


GLIBC = trim_of_libc() is not None and Path("/proc/self/status").exists()
HELD = """
import re, sys, threading
from pathlib import Path
from everflow.memory import SpareMemory, share_one_area, trim_of_libc

def held():
    return int(re.search(r"RssAnon:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) >> 10
"""
KEPT = """
now = [0.0]
spare = SpareMemory(trim_of_libc(), lambda: now[0])
before = held()
parts = [bytearray(b"x" * 1_000_000) for _ in range(100)]
last = bytearray(1_000_000)
del parts
kept = held()
now[0] = 61.0
spare.trim_if_due()
print(before, kept, held())
"""

AREAS = """
def work(freed, end):
    parts = [bytearray(b"x" * 100_000) for _ in range(100)]
    del parts
    freed.set()
    end.wait()

if sys.argv[1] == "shared":
    share_one_area()
large = bytearray(8_000_000)
del large  # glibc learns from it to keep up to twice as much
before, end = held(), threading.Event()
for _ in range(6):
    freed = threading.Event()
    threading.Thread(target=work, args=(freed, end)).start()
    freed.wait()
trim_of_libc()(0)
print(held() - before)
end.set()
"""


def test_it_is_given_back_once_a_minute_and_not_before() -> None:
    now, trims = [5.0], list[int]()
    spare = SpareMemory(trims.append, lambda: now[0])
    for now[0], count in ((6.0, 0), (4.9 + EVERY_S, 0), (5 + EVERY_S, 1), (6 + EVERY_S, 1)):
        spare.trim_if_due()
        assert len(trims) == count
    now[0] = 5 + 2 * EVERY_S
    spare.trim_if_due()
    assert trims == [0, 0]


def test_another_c_library_keeps_what_it_keeps() -> None:
    SpareMemory(None, lambda: 1e9).trim_if_due()


@pytest.mark.skipif(not GLIBC, reason="malloc_trim is glibc's")
def test_what_a_workers_settings_keep_is_given_back() -> None:
    environment = {**os.environ, **worker_environment()}
    code = [sys.executable, "-c", HELD + KEPT]
    told = subprocess.run(code, env=environment, check=True, capture_output=True, text=True).stdout
    before, kept, after = (int(text) for text in re.findall(r"\d+", told))
    assert kept - before > 80, "nothing was kept, so that this shows nothing"
    assert after - before < 20


@pytest.mark.skipif(not GLIBC, reason="malloc_trim is glibc's")
def test_what_many_threads_have_freed_is_given_back_where_they_share_an_area() -> None:
    own = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}

    def kept(areas: str, **users: str) -> int:
        code, env = [sys.executable, "-c", HELD + AREAS, areas], {**own, **users}
        told = subprocess.run(code, env=env, check=True, capture_output=True, text=True).stdout
        return int(told)

    assert kept("their own") > 15, "each keeps its own, else this shows nothing"
    assert kept("shared") < 5
    assert kept("shared", MALLOC_ARENA_MAX="8") > 15, "the user's own number holds"
