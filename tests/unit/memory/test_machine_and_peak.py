"""How much memory there is, and how much of it this process has held at the most."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from everflow.config import StreamsConfig
from everflow.errors import ConfigError
from everflow.memory import MIB, PeakMemory, least_budget, machine_memory, usual_budget

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


def test_nothing_is_known_of_a_small_batch_nor_without_a_kernel_that_says_it(
    tmp_path: Path,
) -> None:
    memory = PeakMemory()
    memory.settle()
    memory.begin(1_000)
    assert memory.taken() is None
    memory = PeakMemory(tmp_path)
    memory.settle()
    memory.begin(2 * MIB)
    assert memory.taken() is None


def test_left_out_the_budget_is_that_of_the_threads_and_the_machine() -> None:
    config = StreamsConfig(application_id="a", bootstrap_servers="b:1", num_stream_threads=3)
    assert config.max_memory_bytes == usual_budget(3, machine_memory())
    assert usual_budget(2, 64 * GIB) == usual_budget(2, None)
    assert usual_budget(2, 3 * GIB) == 3 * GIB * 3 // 4


def test_a_budget_that_is_too_small_for_the_threads_is_refused_with_the_least() -> None:
    with pytest.raises(ConfigError, match=f"{least_budget(2):,} at least"):
        StreamsConfig(
            application_id="a", bootstrap_servers="b:1", num_stream_threads=2, max_memory_bytes=GIB
        )
