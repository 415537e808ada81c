"""How much memory there is: the machine's, or the control group's where that is less."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

_ROOT = Path("/")


def machine_memory(root: Path = _ROOT) -> int | None:
    """Bytes that this process and the others beside it may have; None where the system does not
    say. A container's limit is that of its control group (version 1 or 2), and of those above it.
    ``root``: where ``proc`` and ``sys`` are."""
    found = [limit for limit in _limits(root) if limit > 0]
    return min(found, default=None)


def _limits(root: Path) -> Iterator[int]:
    with suppress(OSError, ValueError, AttributeError):
        yield os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    groups = root / "sys/fs/cgroup"
    with suppress(OSError, ValueError):
        for line in (root / "proc/self/cgroup").read_text().splitlines():
            _, kinds, group = line.split(":", 2)
            if kinds == "":
                yield from _of_groups(groups, group, "memory.max")
            elif "memory" in kinds.split(","):
                yield from _of_groups(groups / "memory", group, "memory.limit_in_bytes")


def _of_groups(mounted: Path, group: str, file: str) -> Iterator[int]:
    """The limits of a group and of those above it. In a container its own may be the mount."""
    parts = [part for part in group.split("/") if part]
    for depth in range(len(parts) + 1):
        with suppress(OSError, ValueError):  # "max" is no number: there is no limit
            yield int(mounted.joinpath(*parts[:depth], file).read_text())
