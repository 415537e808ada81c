"""Limits on one system: a cgroup of its own for its memory, or for its processor time.

Memory: the processes' own memory and the pages of the files that they read and write count
together, as on a host, or in a container, of that size. Processor time: as a container's limit of
cores. The broker and the bench stay outside.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from bench.systems import Launch

CGROUPS = Path("/sys/fs/cgroup")
EMPTY_TIMEOUT_S = 30.0
PERIOD_US = 100_000
"""Of a processor quota: what containers have by default."""


class CannotMeasureError(RuntimeError):
    """This machine does not let the bench count, or limit, what a case needs."""


@dataclass(frozen=True)
class Hold:
    """What holds a system to some cores: a cgroup, or `taskset` where `group` is None."""

    by: str
    group: Path | None = None

    def applied(self, launch: Launch) -> Launch:
        """The same launch, held from its first instruction on."""
        if self.group is not None:
            return limited(launch, self.group)
        return replace(launch, command=["taskset", "-c", "0", *launch.command])


@contextlib.contextmanager
def memory_group(limit_bytes: int) -> Iterator[Path]:
    """A memory cgroup with this limit, removed at the end; its processes have to have ended by
    then. Raises `CannotMeasureError` where none can be made."""
    with _group(
        "memory",
        {"memory.limit_in_bytes": str(limit_bytes)},
        {"memory.max": str(limit_bytes)},
        "leave memory out of --dimensions",
    ) as group:
        yield group


def killed_for_memory(group: Path) -> int:
    """Processes of a memory cgroup (version 2 or 1) that the kernel ended: there was no room."""
    for name in ("memory.events", "memory.oom_control"):
        if (group / name).is_file():
            facts = dict(line.split() for line in (group / name).read_text().splitlines())
            return int(facts.get("oom_kill", 0))
    return 0


@contextlib.contextmanager
def held_to(cores: float) -> Iterator[Hold]:
    """A processor quota of so many cores, in a cgroup that is removed at the end; where none can be
    made, one whole core by `taskset`. Raises `CannotMeasureError` where neither can be had."""
    quota = str(round(cores * PERIOD_US))
    with contextlib.ExitStack() as stack:
        try:
            group = stack.enter_context(
                _group(
                    "cpu",
                    {"cpu.cfs_period_us": str(PERIOD_US), "cpu.cfs_quota_us": quota},
                    {"cpu.max": f"{quota} {PERIOD_US}"},
                    "leave --cores out",
                )
            )
            hold = Hold(f"cgroup version {2 if (group / 'cpu.max').exists() else 1}", group)
        except CannotMeasureError:
            if cores != 1 or shutil.which("taskset") is None:
                raise
            hold = Hold("taskset")
        yield hold


def limited(launch: Launch, group: Path) -> Launch:
    """The same launch inside the group from its first instruction on: a JVM looks at the limit when
    it starts."""
    enter = ["sh", "-c", 'echo $$ > "$0" && exec "$@"', str(group / "cgroup.procs")]
    return replace(launch, command=[*enter, *launch.command])


@contextlib.contextmanager
def _group(
    controller: str, version_1: dict[str, str], version_2: dict[str, str], instead: str
) -> Iterator[Path]:
    """A cgroup with these files written, by the version of cgroups that the machine has."""
    if (CGROUPS / controller).is_dir():
        # Below the bench's own group: whatever limits the bench limits the system, too.
        own = own_group(Path("/proc/self/cgroup").read_text(), controller)
        parent, files = CGROUPS / controller / own.lstrip("/"), version_1
    else:
        # Only the root may hold both processes and groups with limits (version 2).
        parent, files = CGROUPS, version_2
    group = parent / f"everflow-bench-{os.getpid()}"
    try:
        group.mkdir()
    except OSError as error:
        raise CannotMeasureError(_refused(controller, group, error, instead)) from error
    try:
        try:
            for name, text in files.items():
                (group / name).write_text(text)
        except OSError as error:
            raise CannotMeasureError(_refused(controller, group, error, instead)) from error
        yield group
    finally:
        _remove(group)


def own_group(text: str, controller: str) -> str:
    """The path of a controller's group, by the lines of `/proc/PID/cgroup` (version 1); the root
    where it is not listed."""
    for line in text.splitlines():
        _, controllers, path = line.split(":", 2)
        if controller in controllers.split(","):
            return path
    return "/"


def _refused(controller: str, group: Path, error: OSError, instead: str) -> str:
    return (
        f"No {controller} cgroup could be made in {group} ({error}). Run the bench as root, or "
        f"{instead}."
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
