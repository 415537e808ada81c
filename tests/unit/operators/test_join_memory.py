"""A stream-stream join with very many keys in one window takes the memory that its batches take."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from everflow.worker.ports import PAGE_BYTES

MIB = 1 << 20
HELD_BYTES = 32 * MIB
COPIES = 12
"""Of a batch's input: its columns, what is stored of it, what it gives, and as bytes."""
TIMEOUT_S = 900.0


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads /proc")
@pytest.mark.parametrize(
    ("keys", "records"),
    [(60_000, 10_000), pytest.param(1_000_000, 100_000, marks=pytest.mark.slow)],
)
def test_a_window_of_many_keys_stays_within_what_a_batch_may_take(
    tmp_path: Path, keys: int, records: int
) -> None:
    """Where LMDB kept all pages that it ever changed, it were 900 MiB for a million keys."""
    program = Path(__file__).with_name("join_of_many_keys.py")
    arguments = [str(one) for one in (tmp_path, keys, records, HELD_BYTES)]
    done = subprocess.run(
        [sys.executable, str(program), *arguments],
        stdout=subprocess.PIPE,
        text=True,
        timeout=TIMEOUT_S,
        check=True,
    )
    told = json.loads(done.stdout)
    print(told)
    assert told["results"] == keys
    pages = records * PAGE_BYTES  # of one transaction
    most = HELD_BYTES + pages + COPIES * told["input_bytes"]
    assert told["peak_mib"] * MIB <= most
    if keys == 1_000_000:
        assert told["stored_bytes"] > most, "else it would prove nothing"
