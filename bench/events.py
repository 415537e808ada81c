"""What an instance notes about itself while it runs, and what follows from it: is the group
balanced, how long did a restore take.

Each instance appends lines of JSON to a file of its own: `at_ms` (wall clock, ms since the epoch),
`event`, and `state` (`state`), `joined` (the first rebalance with it has ended), `tasks` (`active`,
`standby`, `warmup`), `lag` (`records`, of its copy that is furthest behind), `restore_start`,
`restore_end` (`partition`, `records`), and of everflow `restore_progress` (`partition`, `fraction`,
`rate` in records/s, `remaining_s`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

RUNNING = "RUNNING"


@dataclass(frozen=True)
class Event:
    """One line; `at_s` is seconds since the epoch."""

    at_s: float
    kind: str
    fields: Mapping[str, Any] = field(default_factory=dict)


class EventFile:
    """Reads the lines that an instance has written so far. Used by one thread."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self._events: list[Event] = []

    def read(self) -> Sequence[Event]:
        """All events up to now, in the order they were written; a line that is being written counts
        next time."""
        if not self._path.exists():
            return self._events
        with self._path.open("rb") as file:
            file.seek(self._offset)
            for line in file:
                if not line.endswith(b"\n"):
                    break
                self._offset += len(line)
                fields = json.loads(line)
                self._events.append(Event(fields["at_ms"] / 1000, fields["event"], fields))
        return self._events

    def first(self, kind: str) -> Event | None:
        """The first event of a kind so far."""
        return next((event for event in self.read() if event.kind == kind), None)

    def last(self, kind: str) -> Event | None:
        """The latest event of a kind so far."""
        return next((event for event in reversed(self.read()) if event.kind == kind), None)


@dataclass(frozen=True)
class View:
    """What an instance does at one moment; tasks by their names."""

    running: bool = False
    active: frozenset[str] = frozenset()
    standby: frozenset[str] = frozenset()
    warmup: frozenset[str] = frozenset()

    def after(self, event: Event) -> View:
        """The view once the event has happened."""
        if event.kind == "state":
            return replace(self, running=event.fields["state"] == RUNNING)
        if event.kind == "tasks":
            roles: dict[str, Any] = {
                role: frozenset(event.fields[role]) for role in ("active", "standby", "warmup")
            }
            return replace(self, **roles)
        return self


def balanced(views: Sequence[View], tasks: int, standbys: int) -> bool:
    """Whether each of so many tasks is active once, spread evenly, with its standbys elsewhere and
    no copy more: then no warm-up is pending (Kafka Streams shows warm-ups as standbys)."""
    if not all(view.running and not view.warmup for view in views):
        return False
    active = [task for view in views for task in view.active]
    if len(active) != tasks or len(set(active)) != tasks:
        return False
    loads = [len(view.active) for view in views]
    if max(loads) - min(loads) > 1:
        return False
    copies = [task for view in views for task in view.standby]
    apart = not any(view.standby & view.active for view in views)
    return (
        apart
        and all(copies.count(task) == standbys for task in active)
        and len(copies) == tasks * standbys
    )


def balanced_since(histories: Sequence[Sequence[Event]], tasks: int, standbys: int) -> float | None:
    """Since when (s since the epoch) the group has been `balanced` without a break; None if it is
    not now."""
    views = [View()] * len(histories)
    since: float | None = None
    moments = [
        (event.at_s, number, event) for number, events in enumerate(histories) for event in events
    ]
    for at_s, number, event in sorted(moments, key=lambda moment: moment[0]):
        views[number] = views[number].after(event)
        if not balanced(views, tasks, standbys):
            since = None
        elif since is None:
            since = at_s
    return since


def first_restores(events: Sequence[Event]) -> list[Event]:
    """The events up to the first end of each partition's restores: of a task that is warmed up and
    then becomes active here, the warm-up."""
    ended: set[int] = set()
    found = []
    for event in events:
        if event.kind.startswith("restore_") and event.fields["partition"] in ended:
            continue
        if event.kind == "restore_end":
            ended.add(event.fields["partition"])
        found.append(event)
    return found


def restored(events: Sequence[Event], stores: int) -> tuple[int, float] | None:
    """Records restored and seconds from the first start to the last end; None until so many stores
    have been restored."""
    starts = [event.at_s for event in events if event.kind == "restore_start"]
    ends = [event for event in events if event.kind == "restore_end"]
    if len({event.fields["partition"] for event in ends}) < stores:
        return None
    return sum(event.fields["records"] for event in ends), max(event.at_s for event in ends) - min(
        starts
    )
