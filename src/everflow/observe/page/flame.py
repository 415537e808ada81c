"""A flame graph of a worker, on demand (note 059): who asks, and what is made of its samples.

It shows names of functions and lines of the user's files, so it is there only for who has a token,
as letters are; and it costs the worker a little, so it is one at a time, and for seconds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from starlette.requests import Request

from everflow.observe.page.posts import OneAtATime, RefusedPost, number_in, posted, text_in

LEAST_S, MOST_S = 1.0, 30.0
LEAST_SHARE = 0.002
"""What ran for less of the time has no box of its own."""
MOST_BOXES = 3_000
MOST_LINES = 12
NO_TOKEN = "what a worker runs is shown for a token only: set query.token.file"
NO_WORKER = "no worker runs yet"


class WorkerDesk(Protocol):
    """Who can ask workers what they run."""

    def workers(self) -> Mapping[str, int]:
        """Slot (``t0-1``: the second hop of stream thread 0) -> its process."""

    def sample(self, worker: str, seconds: float) -> Mapping[str, Any]:
        """What it runs from now on: ``samples``, ``ms`` that were looked, ``frames`` ([name,
        whether it is the user's]), ``stacks`` ([ms, places in ``frames``...], the outermost first;
        of all threads that worked). Blocks for so long and more; raises EverflowError."""


@dataclass
class Box:
    """A function, called by those below it, and for how long it ran."""

    name: str
    own: bool
    ms: float = 0.0
    children: dict[str, Box] = field(default_factory=dict)

    def plain(self, least_ms: float) -> dict[str, Any]:
        """For JSON, without what ran for less."""
        inner = sorted(self.children.values(), key=lambda one: (-one.ms, one.name))
        return {
            "name": self.name,
            "own": self.own,
            "ms": round(self.ms, 1),
            "children": [one.plain(least_ms) for one in inner if one.ms >= least_ms],
        }

    def each(self) -> Iterator[Box]:
        """All above it."""
        for one in self.children.values():
            yield one
            yield from one.each()


def flame(told: Mapping[str, Any], worker: str) -> dict[str, Any]:
    """The tree of boxes, and the user's lines by the time that they took, theirs and that of what
    they called; ``ms`` is for how long was looked, the tree's is the sum of the threads that worked
    then, of which each has its part. Pure."""
    frames = [(str(name), bool(own)) for name, own in told["frames"]]
    root = Box(worker, False)
    lines: dict[str, float] = {}
    for ms, *places in told["stacks"]:
        stack = [frames[place] for place in places]
        root.ms += ms
        box = root
        for name, own in stack:
            box = box.children.setdefault(name, Box(name, own))
            box.ms += ms
        innermost = next((name for name, own in reversed(stack) if own), None)
        if innermost is not None:
            lines[innermost] = lines.get(innermost, 0.0) + ms
    sizes = sorted((box.ms for box in root.each()), reverse=True)
    least_ms = max(root.ms * LEAST_SHARE, sizes[MOST_BOXES] if len(sizes) > MOST_BOXES else 0.0)
    ranked = sorted(lines.items(), key=lambda item: (-item[1], item[0]))
    return {
        "worker": worker,
        "samples": int(told["samples"]),
        "ms": float(told["ms"]),
        "tree": root.plain(least_ms),
        "lines": [{"line": line, "ms": round(ms, 1)} for line, ms in ranked[:MOST_LINES]],
    }


class FlameAnswers:
    """What the page's path answers; ``desk`` None, or nobody has shown a token: nobody is asked.
    Its methods belong to one event loop."""

    def __init__(self, desk: WorkerDesk | None, secured: bool) -> None:
        self._desk, self._secured = desk, secured
        self._alone = OneAtATime("somebody looks at what a worker runs")

    def offer(self) -> dict[str, Any]:
        """Which workers can be asked, or why none can."""
        if self._desk is None or not self._secured:
            return {"workers": [], "why": NO_TOKEN}
        found = sorted(self._desk.workers().items(), key=lambda item: _order(item[0]))
        workers = [{"worker": slot, "process": pid} for slot, pid in found]
        return {"workers": workers, "why": "" if workers else NO_WORKER}

    async def sample(self, request: Request) -> dict[str, Any]:
        """For a POST that names a worker. Raises RefusedPost, EverflowError."""
        desk = self._desk
        if desk is None or not self._secured:
            raise RefusedPost(403, NO_TOKEN)
        content = await posted(request)
        worker = text_in(content, "worker")
        seconds = number_in(content, "seconds", LEAST_S, MOST_S)
        if worker not in desk.workers():
            raise RefusedPost(404, f"no worker {worker} can be asked: it may just have ended")
        return flame(await self._alone.run(lambda: desk.sample(worker, seconds)), worker)


def _order(slot: str) -> tuple[int, str]:
    """Thread 10 stands behind thread 9."""
    return len(slot), slot
