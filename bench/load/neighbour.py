"""A noisy neighbour, `python -m bench.load.neighbour`: other work on the same machine, in bursts.

A process for each core works and rests in turn, each for a time drawn from a seed, so that it takes
half of the machine on average and all of it at times. It hashes a buffer that is larger than the
processor's caches. It ends with its standard input.
"""

from __future__ import annotations

import contextlib
import hashlib
import multiprocessing
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator

from bench.systems import ROOT

SEED = 20_26
SHORTEST_S, LONGEST_S = 0.1, 2.0
BUFFER_BYTES = 64 << 20
CHUNK_BYTES = 1 << 20


@contextlib.contextmanager
def neighbour() -> Iterator[None]:
    """One beside the `with` block."""
    command = [sys.executable, "-m", "bench.load.neighbour"]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE) as process:
        try:
            yield
        finally:
            assert process.stdin is not None
            process.stdin.close()


def bursts(seed: int) -> Iterator[float]:
    """Seconds to work, to rest, to work, and so on."""
    drawn = random.Random(seed)
    while True:
        yield drawn.uniform(SHORTEST_S, LONGEST_S)


def main() -> None:
    """Until the end of standard input."""
    workers = [
        multiprocessing.Process(target=_work, args=(SEED + core,), daemon=True)
        for core in range(os.cpu_count() or 1)
    ]
    for worker in workers:
        worker.start()
    sys.stdin.buffer.read()
    for worker in workers:
        worker.kill()


def _work(seed: int) -> None:
    buffer = memoryview(bytearray(BUFFER_BYTES))
    works = True
    for seconds in bursts(seed):
        until = time.monotonic() + seconds
        while works and time.monotonic() < until:
            for place in range(0, BUFFER_BYTES, CHUNK_BYTES):
                hashlib.sha256(buffer[place : place + CHUNK_BYTES]).digest()
                if time.monotonic() >= until:
                    break
        if not works:
            time.sleep(seconds)
        works = not works


if __name__ == "__main__":
    main()
