"""The wrong clock of a chaos run is wrong, and nothing else of a process is."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from chaos.rounds.surroundings import Clock

AHEAD = 26
POLLS = """
import time
from confluent_kafka import Consumer
consumer = Consumer({"bootstrap.servers": "127.0.0.1:1", "group.id": "nobody"})
began = time.monotonic()
consumer.poll(0.2)
print(time.time(), time.monotonic() - began)
"""


def test_time_outs_are_as_long_though_the_clock_is_ahead(tmp_path: Path) -> None:
    library = Clock.library(tmp_path)
    if library is None:
        pytest.skip("no compiler here, or no Linux: a chaos run says that it leaves clocks out")
    clock = Clock(tmp_path / "clock", library)
    clock.turn(AHEAD)
    before_s = time.time()
    told = subprocess.run(
        [sys.executable, "-c", POLLS],
        env={**os.environ, **clock.environment},
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    ).stdout.split()
    shown_s, took_s = map(float, told)
    assert shown_s - before_s >= AHEAD * 60
    assert took_s < 30
