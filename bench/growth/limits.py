"""A limit on the memory of one system, page cache included: a memory cgroup of its own.

The processes' own memory and the pages of the files that they read and write count together, as on
a host, or in a container, of that size. The broker and the bench stay outside.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from bench.systems import Launch

CGROUPS = Path("/sys/fs/cgroup")
EMPTY_TIMEOUT_S = 30.0


class CannotMeasureError(RuntimeError):
    """This machine does not let the bench count, or limit, what a case needs."""


@contextlib.contextmanager
def memory_group(limit_bytes: int) -> Iterator[Path]:
    """A memory cgroup with this limit, removed at the end; its processes have to have ended by
    then. Raises `CannotMeasureError` where none can be made."""
    version_1 = CGROUPS / "memory"
    if version_1.is_dir():
        # Below the bench's own group: whatever limits the bench limits the system, too.
        parent, limit_file = version_1 / _own_group().lstrip("/"), "memory.limit_in_bytes"
    else:
        # Only the root may hold both processes and groups with limits (version 2).
        parent, limit_file = CGROUPS, "memory.max"
    group = parent / f"everflow-bench-{os.getpid()}"
    try:
        group.mkdir()
    except OSError as error:
        raise CannotMeasureError(_refused(group, error)) from error
    try:
        try:
            (group / limit_file).write_text(str(limit_bytes))
        except OSError as error:
            raise CannotMeasureError(_refused(group, error)) from error
        yield group
    finally:
        _remove(group)


def limited(launch: Launch, group: Path) -> Launch:
    """The same launch inside the group from its first instruction on: a JVM looks at the limit when
    it starts."""
    enter = ["sh", "-c", 'echo $$ > "$0" && exec "$@"', str(group / "cgroup.procs")]
    return replace(launch, command=[*enter, *launch.command])


def _own_group() -> str:
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(","):
            return path
    return "/"


def _refused(group: Path, error: OSError) -> str:
    return (
        f"No memory cgroup could be made in {group} ({error}). Run the bench as root, or leave "
        "memory out of --dimensions."
    )


def _remove(group: Path) -> None:
    """The kernel takes a moment to note that the last process has ended."""
    deadline = time.monotonic() + EMPTY_TIMEOUT_S
    while True:
        try:
            group.rmdir()
            return
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)
