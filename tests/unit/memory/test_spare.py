"""What a process has freed goes back to the system, once a minute."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from everflow.memory import EVERY_S, SpareMemory, trim_of_libc
from everflow.spark.job import worker_environment

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
