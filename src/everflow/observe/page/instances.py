"""The application's instances on one page: what this one knows, and what the others say. Pure.

The line on top is the application's: who has failed or is away is named, and records wait where
they wait. What an instance does not tell is left out of the sums, which say so.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import reduce
from typing import Any

from everflow.observe.health import ready, state_reason
from everflow.observe.observation import ObservedTask
from everflow.observe.page.history import ACTIVE, Facts, GoneHost, kind_of
from everflow.observe.page.peers import Peer
from everflow.observe.page.verdict import (
    BAD,
    BUSY,
    Backlog,
    VerdictLine,
    backlog,
    duration,
    held_up,
    hindered,
    verdict,
)

AWAY_S = 10.0
"""Who has told how it does, and does not answer for so long, is away."""
HERE = "this instance"
GONE = "gone"
"""In place of the state of who has left."""

View = dict[str, Any]


def application_verdict(facts: Facts, peers: Sequence[Peer], own: str) -> VerdictLine:
    """Of all that tell: the first thing that holds of any of them; else what waits, in all."""
    if not peers:
        return verdict(facts)
    lines = [(own or HERE, hindered(facts.seen))]
    lines += [(peer.host, _away(peer) or _hindered(peer)) for peer in peers]
    said = [(host, line) for host, line in lines if line is not None]
    for host, line in said:
        if line.tone == BAD:
            return line._replace(text=f"{host}: {line.text}")
    told = [peer.facts for peer in peers if peer.facts is not None]
    waiting = reduce(Backlog.also, map(Backlog.of, told), Backlog.of(facts))
    whole = held_up(facts.seen) or backlog(waiting, facts.drain_goal_s)
    busy = next(((host, line) for host, line in said if line.tone == BUSY), None)
    if busy is not None and whole.tone != BAD:
        return busy[1]._replace(text=f"{busy[0]}: {busy[1].text}")
    if len(told) < len(peers):
        some = f"{len(told) + 1} of {len(peers) + 1} instances tell"
        return whole._replace(text=f"{whole.text} ({some})")
    return whole


def _away(peer: Peer) -> VerdictLine | None:
    if peer.facts is None or peer.silent_s < AWAY_S:
        return None
    age = duration(peer.age_s)
    return VerdictLine(BAD, f"It does not answer ({peer.error}): what is known is {age} old")


def _hindered(peer: Peer) -> VerdictLine | None:
    return None if peer.facts is None else hindered(peer.facts.seen)


def instances(facts: Facts, peers: Sequence[Peer], own: str) -> View:
    """A row for each, this one first, and for each that has left, last; and what those that are
    ``here`` have in all: of those that tell."""
    rows = [_row(own or HERE, facts), *(_peer_row(peer) for peer in peers)]
    rows[0]["own"] = True
    told = [row for row in rows if row["lag"] is not None]
    return {
        "rows": [*rows, *(_gone_row(one, facts) for one in facts.gone)],
        "here": len(rows),
        "lag": sum(row["lag"] for row in told) if told else None,
        "rate": sum(row["rate"] or 0.0 for row in rows),
        "told": sum(row["state"] is not None for row in rows),
    }


def _row(host: str, facts: Facts) -> View:
    seen, waiting, processes = facts.seen, Backlog.of(facts), ready(facts.seen)
    busy = [thread.busy for thread in seen.threads]
    return {
        "host": host,
        "own": False,
        "state": seen.state,
        "state_reason": state_reason(seen),
        "program": " ".join((seen.version, seen.topology)).strip(),
        "said": verdict(facts)._asdict(),
        "ready": processes.ok,
        "lag": waiting.lag,
        "rate": waiting.rate,
        "busy": sum(busy) / len(busy) if busy else None,
        "active": len(seen.active),
        "copies": len(seen.tasks) - len(seen.active),
        "age_s": 0.0,
        "error": "",
    }


def _peer_row(peer: Peer) -> View:
    if peer.facts is None:
        nothing = dict.fromkeys(
            (
                "state",
                "state_reason",
                "program",
                "said",
                "ready",
                "lag",
                "rate",
                "busy",
                "active",
                "copies",
                "age_s",
            )
        )
        return {"host": peer.host, "own": False, **nothing, "error": peer.error}
    return {**_row(peer.host, peer.facts), "age_s": peer.age_s, "error": peer.error}


def _gone_row(gone: GoneHost, facts: Facts) -> View:
    """Who was in the group, and where its tasks are now, as of the last rebalance."""
    age_s = max(0.0, (facts.now_ms - gone.since_ms) / 1000)
    places = {task: one.host for one in facts.seen.hosts for task in one.active}
    found = Counter(places.get(task, "") for task in gone.active)
    nowhere = found.pop("", 0)
    parts = [f"{count:,} at {host}" for host, count in found.most_common()]
    parts += [f"{nowhere:,} run nowhere yet"] if nowhere else []
    number = len(gone.active)
    text = f"It has left the group, {duration(age_s)} ago; it had "
    text += f"{number:,} active task{'s' * (number != 1)}" if number else "no active task"
    if parts:
        text += f": {', '.join(parts)}"
    nothing = dict.fromkeys(
        ("state_reason", "program", "ready", "lag", "rate", "busy", "active", "copies")
    )
    said = VerdictLine(BAD if nowhere else BUSY, text)._asdict()
    row = {"host": gone.host, "own": False, **nothing, "state": GONE, "said": said}
    return {**row, "age_s": age_s, "error": ""}


def copies(facts: Facts, peers: Sequence[Peer], own: str) -> Iterator[tuple[str, ObservedTask]]:
    """Each copy of a task that somebody tells of, with its host: the matrix."""
    for host, seen in [
        (own, facts.seen),
        *((peer.host, peer.facts.seen) for peer in peers if peer.facts is not None),
    ]:
        for task in seen.tasks:
            yield host, task


def elsewhere(facts: Facts, peers: Sequence[Peer]) -> list[tuple[Peer, ObservedTask]]:
    """Tasks of which this instance has no copy, each as its active copy is, where one is known."""
    here = {task.task for task in facts.seen.tasks}
    found: dict[str, tuple[Peer, ObservedTask]] = {}
    for peer in peers:
        for task in () if peer.facts is None else peer.facts.seen.tasks:
            if task.task in here:
                continue
            if task.task not in found or kind_of(task) == ACTIVE:
                found[task.task] = (peer, task)
    return list(found.values())
