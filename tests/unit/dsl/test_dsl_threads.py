"""Several threads that build with one builder, as Java's synchronized StreamsBuilder allows."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import sys
import threading

from everflow import StreamsBuilder, TopologyError

THREADS, CALLS = 4, 25
sys.setswitchinterval(1e-6)
builder = StreamsBuilder()
shared = builder.stream("shared")
together = threading.Barrier(THREADS)
unexpected = []


def named(number, call):
    table = {index: str(index) for index in range(50)}
    return lambda value: table.get(number + call, value)


def build(number):
    together.wait()
    for call in range(CALLS):
        try:
            shared.map_values(named(number, call), returns="binary").to(f"out-{number}-{call}")
            stream = builder.stream(f"in-{number}-{call}")
            stream.filter(lambda value, n=number: n > 0).to(f"kept-{number}-{call}")
            try:  # what fails leaves nothing of its own behind, and all of the others'
                stream.group_by_key().count()
            except TopologyError:
                pass
            builder.build()
        except BaseException as error:
            unexpected.append(repr(error))
            return


threads = [threading.Thread(target=build, args=(number,)) for number in range(THREADS)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
names = [node.name for node in builder.build().nodes]
assert not unexpected, unexpected[0]
assert len(names) == len(set(names)) == 1 + THREADS * CALLS * 5, len(names)
"""


def test_threads_that_share_a_builder_build_every_node_and_no_thread_ends_the_process() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
