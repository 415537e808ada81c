"""The dashboard as plain values: each panel answers one question of an operator. Pure.

First the health status, the first that applies: an instance that has failed is not also behind.

Texts are users' data, never markup. A panel has the worst rows, and the number of the others.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from functools import reduce
from typing import Any, NamedTuple

from everflow import metrics as names
from everflow.logs import counted, some
from everflow.metrics import Labels, Seen
from everflow.observe.observation import (
    DEAD,
    ENDING,
    Observation,
    ObservedConnector,
    ObservedTask,
    blocked_partitions,
    identity_of,
    keys_elsewhere,
    lag_of,
    ready,
    state_reason,
    transactions,
)
from everflow.observe.page.history import (
    ACTIVE,
    LEAVING,
    PARKED,
    PAUSED,
    RESTORING,
    STARTING,
    TREND_MS,
    Event,
    Facts,
    GoneHost,
    TrendPoint,
    kind_of,
)
from everflow.observe.page.other_instances import OtherInstance
from everflow.rebalances import Rebalance

GOOD, BUSY, BAD = "good", "busy", "bad"
IN_FLIGHT_S = 2.0
"""Records that arrived within this time are being processed; they do not wait."""
SILENT_S = 5.0
BLOCKED_S = 60.0
"""A transaction that blocks readers for longer is a fault: so long is producers' time-out."""


class HealthLine(NamedTuple):
    """``drain_s``: until nothing waits any more; None: not known, or never at this rate."""

    tone: str
    text: str
    drain_s: float | None = None


class Backlog(NamedTuple):
    """Records that wait, records/s processed, how many fewer wait each second. None: not known."""

    lag: float | None
    rate: float
    shrinks: float | None

    @staticmethod
    def of(facts: Facts) -> Backlog:
        lag, old, shrinks = lag_of(facts.seen), facts.same_inputs, None
        before = None if old is None else lag_of(old.seen)
        passed_s = 0.0 if old is None else (facts.now.monotonic_ms - old.monotonic_ms) / 1000
        if lag is not None and before is not None and passed_s > 0:
            shrinks = (before - lag) / passed_s
        return Backlog(lag, facts.total_growth(names.RECORDS_CONSUMED), shrinks)

    def also(self, other: Backlog) -> Backlog:
        return Backlog(
            None if self.lag is None or other.lag is None else self.lag + other.lag,
            self.rate + other.rate,
            None if self.shrinks is None or other.shrinks is None else self.shrinks + other.shrinks,
        )


def health(facts: Facts) -> HealthLine:
    blocked = hindered(facts.seen)
    if blocked is not None:
        return blocked
    return blocked_by_transaction(facts.seen) or backlog(Backlog.of(facts), facts.drain_goal_s)


def hindered(seen: Observation) -> HealthLine | None:
    """The status in place of the lag; None: it processes."""
    if seen.state in DEAD:
        reason = f": {seen.error.splitlines()[0]}" if seen.error else ""
        return HealthLine(BAD, f"It has stopped ({seen.state}){reason}")
    if seen.state in ENDING:
        return HealthLine(BUSY, f"It ends: {counted(len(seen.tasks), 'task')} still here")
    if away := brokers_away(seen.silent_s):
        return HealthLine(BAD, f"{away}: lag and ends are as they were then")
    troubled = [task for task in seen.tasks if task.trouble]
    if troubled:
        first = troubled[0]
        more = f", and {len(troubled) - 1:,} more" if len(troubled) > 1 else ""
        return HealthLine(BAD, f"Task {first.task} does not get on{more}: {first.trouble}")
    dead = [str(thread.number) for thread in seen.threads if not thread.alive]
    if dead and seen.state == "RUNNING":
        return HealthLine(BAD, f"Stream threads that ended: {', '.join(dead)}")
    if seen.restoring:
        return _restoring(seen)
    if not seen.threads:
        return HealthLine(BUSY, "It starts")
    if seen.state != "RUNNING" and seen.preparing:
        return HealthLine(BUSY, f"It {seen.preparing}")
    if not seen.active:
        return _without_tasks(seen)
    return None


def brokers_away(silent_s: float) -> str:
    away = silent_s >= SILENT_S
    return f"The brokers have not answered for {duration(silent_s)}" if away else ""


def _restoring(seen: Observation) -> HealthLine:
    left = [task.lag for task in seen.restoring if task.lag is not None]
    text = f"It restores {counted(len(seen.restoring), 'task')}"
    if left:
        text += f": {sum(left):,} records are left"
    times = [task.remaining_s for task in seen.restoring]
    known = [seconds for seconds in times if seconds is not None]
    if known and len(known) == len(times):
        text += f", {duration(max(known))} at the present rate"
    return HealthLine(BUSY, text)


def _without_tasks(seen: Observation) -> HealthLine:
    if seen.members is None and seen.state != "RUNNING":
        return HealthLine(BUSY, "It joins its group")
    copies = sum(task.role in ("standby", "warm-up") for task in seen.tasks)
    kept = f", and keeps {copies:,} copies of others' state" if copies else ""
    return HealthLine(GOOD, f"It has no active task{kept}")


def blocked_by_transaction(seen: Observation) -> HealthLine | None:
    """A transaction that stays open: its records, and all behind them, are no lag yet."""
    blocked = [row for row in blocked_partitions(seen) if row["held_s"] >= BLOCKED_S]
    if not blocked:
        return None
    worst, others = blocked[0], len(blocked) - 1
    more = f", and {others:,} more partitions" if others else ""
    return HealthLine(
        BAD,
        f"Somebody's open transaction has held back {worst['topic']}-{worst['partition']} for "
        f"{duration(worst['held_s'])}: {worst['records']:,} records{more}",
    )


def backlog(waiting: Backlog, goal_s: float) -> HealthLine:
    """Keeping up, or the time to catch up; ``goal_s``: in which a backlog should be worked off."""
    lag, rate, shrinks = waiting
    if lag is None:
        return HealthLine(BUSY, "How much waits is not known yet")
    if lag <= rate * IN_FLIGHT_S:
        return HealthLine(GOOD, f"It keeps up: {rate:,.0f} records/s", 0.0)
    waits = f"{lag:,.0f} records wait"
    if shrinks is None:
        return HealthLine(BUSY, waits)
    if shrinks > 0:
        drain_s = lag / shrinks
        text = f"{waits}: drained in {duration(drain_s)} at the present rate"
        late = drain_s > goal_s
        if late:
            text += f", later than the goal of {duration(goal_s)}"
        return HealthLine(BAD if late else BUSY, text, drain_s)
    if shrinks < 0:
        return HealthLine(BAD, f"It falls behind: {waits}, {-shrinks:,.0f} more each second")
    idle = " and nothing is processed" if rate == 0 else ""
    return HealthLine(BAD, f"{waits}, as many as before{idle}")


def duration(seconds: float) -> str:
    if seconds < 99.5:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    if minutes < 100:
        return f"{minutes} min"
    hours = minutes // 60
    return f"{hours} h {minutes % 60} min" if hours < 48 else f"{hours // 24} d"


class _Begin(NamedTuple):
    """The oldest snapshot in which a task processed: its lag then, and records since the start."""

    at_ms: float
    lag: int | None
    processed: float


def with_rates(facts: Facts) -> list[ObservedTask]:
    """The tasks, with records/s since an earlier snapshot, and the time left if the lag shrinks."""
    if facts.passed_s <= 0:
        return list(facts.seen.tasks)
    begins, processed = _begins(facts), _processed(facts.seen)
    before = _processed(facts.before.seen)
    found = []
    for task in facts.seen.tasks:
        if not _processes(task):
            found.append(task)
            continue
        begin = begins.get(task.task)
        if begin is None:  # only now: of a restoring one the lag was that of its changelogs
            begin = _Begin(facts.before.monotonic_ms, None, before.get(task.task, 0.0))
        passed_s = (facts.now.monotonic_ms - begin.at_ms) / 1000
        grown = max(0.0, processed.get(task.task, 0.0) - begin.processed)
        found.append(_with_rate(task, grown / passed_s, begin.lag, passed_s))
    return found


def _begins(facts: Facts) -> Mapping[str, _Begin]:
    found: dict[str, _Begin] = {}
    left = {task.task for task in facts.seen.tasks if _processes(task)}
    for snapshot in (facts.before, *facts.between):
        if not left or snapshot.monotonic_ms >= facts.now.monotonic_ms:
            break
        there = [task for task in snapshot.seen.tasks if task.task in left and _processes(task)]
        processed = _processed(snapshot.seen) if there else {}
        for task in there:
            done = processed.get(task.task, 0.0)
            found[task.task] = _Begin(snapshot.monotonic_ms, task.lag, done)
        left -= found.keys()
    return found


def _processed(seen: Observation) -> Mapping[str, float]:
    total: dict[str, float] = defaultdict(float)
    for (_, task, _), records in seen.series.get(names.PROCESSED, {}).items():
        total[task] += records
    return total


def _processes(task: ObservedTask) -> bool:
    return task.role == "active" and task.state == "RUNNING"


def _with_rate(
    task: ObservedTask, rate: float, lag_before: int | None, passed_s: float
) -> ObservedTask:
    remaining_s = None
    if task.lag is not None and task.lag <= rate * IN_FLIGHT_S:
        remaining_s = 0.0  # what waits is on its way
    elif task.lag is not None and lag_before is not None and task.lag < lag_before:
        remaining_s = task.lag * passed_s / (lag_before - task.lag)
    return replace(task, rate=rate, remaining_s=remaining_s)


View = dict[str, Any]
AWAY_S = 10.0
"""An instance that answered before and has been silent for so long is away."""
HERE = "this instance"
GONE = "gone"
"""In place of the state of who has left."""


def application_health(
    facts: Facts,
    others: Sequence[OtherInstance],
    own: str,
) -> HealthLine:
    """The status of all that answer: the first trouble of any of them; else the lag of all."""
    if not others:
        return health(facts)
    lines = [(own or HERE, hindered(facts.seen))]
    lines += [(other.host, _trouble(other)) for other in others]
    said = [(host, line) for host, line in lines if line is not None]
    for host, line in said:
        if line.tone == BAD:
            return line._replace(text=f"{host}: {line.text}")
    answered = [other.facts for other in others if other.facts is not None]
    waiting = reduce(Backlog.also, map(Backlog.of, answered), Backlog.of(facts))
    whole = blocked_by_transaction(facts.seen) or backlog(waiting, facts.drain_goal_s)
    busy = next(((host, line) for host, line in said if line.tone == BUSY), None)
    if busy is not None and whole.tone != BAD:
        return busy[1]._replace(text=f"{busy[0]}: {busy[1].text}")
    if len(answered) < len(others):
        some = f"{len(answered) + 1} of {len(others) + 1} instances answer"
        return whole._replace(text=f"{whole.text} ({some})")
    return whole


def _trouble(other: OtherInstance) -> HealthLine | None:
    if other.facts is None:
        return None
    if other.silent_s < AWAY_S:
        return hindered(other.facts.seen)
    age = duration(other.age_s)
    return HealthLine(BAD, f"It does not answer ({other.error}): what is known is {age} old")


def instances(facts: Facts, others: Sequence[OtherInstance], own: str) -> View:
    """A row for each instance, this one first, those that left last; sums over those ``here``."""
    rows = [_row(own or HERE, facts), *(_other_row(other) for other in others)]
    rows[0]["own"] = True
    known = [row for row in rows if row["lag"] is not None]
    return {
        "rows": [*rows, *(_gone_row(one, facts) for one in facts.gone)],
        "here": len(rows),
        "lag": sum(row["lag"] for row in known) if known else None,
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
        "said": health(facts)._asdict(),
        "ready": processes.ok,
        "lag": waiting.lag,
        "rate": waiting.rate,
        "busy": sum(busy) / len(busy) if busy else None,
        "active": len(seen.active),
        "copies": len(seen.tasks) - len(seen.active),
        "age_s": 0.0,
        "error": "",
    }


_NUMBERS = ("ready", "lag", "rate", "busy", "active", "copies")
_UNKNOWN: View = {
    **dict.fromkeys(("state", "state_reason", "program", *_NUMBERS)),
    "own": False,
    "error": "",
}


def _other_row(other: OtherInstance) -> View:
    if other.facts is None:
        return {**_UNKNOWN, "host": other.host, "said": None, "age_s": None, "error": other.error}
    return {**_row(other.host, other.facts), "age_s": other.age_s, "error": other.error}


def _gone_row(gone: GoneHost, facts: Facts) -> View:
    """An instance that left the group, and where its tasks are now, as of the last rebalance."""
    age_s = max(0.0, (facts.now_ms - gone.since_ms) / 1000)
    places = {task: one.host for one in facts.seen.hosts for task in one.active}
    found = Counter(places.get(task, "") for task in gone.active)
    nowhere = found.pop("", 0)
    parts = [f"{count:,} at {host}" for host, count in found.most_common()]
    parts += [f"{nowhere:,} run nowhere yet"] if nowhere else []
    number = len(gone.active)
    text = f"It has left the group, {duration(age_s)} ago; it had "
    text += counted(number, "active task") if number else "no active task"
    if parts:
        text += f": {', '.join(parts)}"
    said = HealthLine(BAD if nowhere else BUSY, text)._asdict()
    return {**_UNKNOWN, "host": gone.host, "state": GONE, "said": said, "age_s": age_s}


def copies(
    facts: Facts, others: Sequence[OtherInstance], own: str
) -> Iterator[tuple[str, ObservedTask]]:
    """Each copy of a task that an instance reports, with its host: the matrix."""
    yield from ((own, task) for task in facts.seen.tasks)
    for other in others:
        yield from ((other.host, task) for task in _tasks_of(other))


def _tasks_of(other: OtherInstance) -> Sequence[ObservedTask]:
    return () if other.facts is None else other.facts.seen.tasks


def elsewhere(
    facts: Facts, others: Sequence[OtherInstance]
) -> list[tuple[OtherInstance, ObservedTask]]:
    """Tasks of which this instance has no copy, each as its active copy is, where one is known."""
    here = {task.task for task in facts.seen.tasks}
    found: dict[str, tuple[OtherInstance, ObservedTask]] = {}
    for other in others:
        for task in _tasks_of(other):
            if task.task in here:
                continue
            if task.task not in found or kind_of(task) == ACTIVE:
                found[task.task] = (other, task)
    return list(found.values())


MOST_TASKS, MOST_LAGS, MOST_STORES, MOST_HOSTS, MOST_EVENTS, MOST_NODES = 120, 40, 40, 30, 80, 500
MOST_POINTS, MOST_REBALANCES = 240, 30
ORDER = (PARKED, RESTORING, STARTING, LEAVING, PAUSED, "warm-up", ACTIVE, "standby", "global")


def page_view(facts: Facts, others: Sequence[OtherInstance] = (), own: str = "") -> View:
    """All panels, for JSON. ``others``: the other instances; ``own``: this one's address."""
    return {
        "verdict": application_health(facts, others, own)._asdict(),
        "instances": instances(facts, others, own),
        "instance": {
            **identity_of(facts.seen),
            "rate": facts.total_growth(names.RECORDS_CONSUMED),
            "desired": facts.seen.desired_instances,
            "application_tasks": facts.seen.application_tasks,
            "now_ms": facts.now_ms,
        },
        "trend": _trend(facts),
        "topology": _topology(facts),
        "tasks": _tasks(facts, others),
        "hosts": _hosts(facts, others, own),
        "lags": _lags(facts, others),
        "connectors": _connectors(facts, others, own),
        "threads": _threads(facts),
        "assignment": _events(facts.events, "assignment"),
        "rebalances": _rebalances(facts.rebalances),
        "stores": _stores(facts),
        "letters": _letters(facts),
        "transactions": _transactions(facts),
        "events": _events(facts.events, ""),
    }


def _first(rows: Sequence[View], most: int, name: str = "rows") -> View:
    return {name: rows[:most], "more": max(0, len(rows) - most)}


def _trend(facts: Facts) -> View:
    """At most `MOST_POINTS` of the last hour, evenly chosen, with the last; maxima are of all."""
    now = TrendPoint(facts.now_ms, lag_of(facts.seen), facts.total_growth(names.RECORDS_CONSUMED))
    points = [*(point for point in facts.trend if point.at_ms < now.at_ms), now]
    step = max(1, -(-len(points) // MOST_POINTS))
    chosen = points[::-1][::step][::-1]
    return {
        "at_ms": [point.at_ms for point in chosen],
        "lag": [point.lag for point in chosen],
        "rate": [round(point.rate, 1) for point in chosen],
        "most_lag": max((point.lag for point in points if point.lag is not None), default=None),
        "most_rate": max(point.rate for point in points),
    }


def _topology(facts: Facts) -> View:
    """Records/s of sources and sinks, drops of all nodes. Topics have names as in the drawing."""
    seen, nodes = facts.seen, defaultdict[str, dict[str, float]](dict)
    for (_, _, node), rate in facts.growth(names.PROCESSED).items():
        nodes[node]["rate"] = nodes[node].get("rate", 0.0) + rate
    for (node, _), rate in facts.growth(names.SENT).items():
        nodes[node]["rate"] = nodes[node].get("rate", 0.0) + rate
    for (_, node, _), count in seen.series.get(names.DROPPED, {}).items():
        nodes[node]["dropped"] = nodes[node].get("dropped", 0.0) + count
    topics: dict[str, int] = defaultdict(int)
    for (topic, _), lag in seen.lags.items():
        topics[topic.removeprefix(f"{seen.application_id}-")] += lag
    busy = {thread.number: thread.busy for thread in seen.threads}
    subs: dict[str, dict[str, Any]] = {}
    for task in seen.active:
        sub = subs.setdefault(task.task.partition("_")[0], {"active": 0, "busy": 0.0})
        sub["active"] += 1
        if task.thread is not None:
            sub["busy"] = max(sub["busy"], busy.get(task.thread, 0.0))
    return {
        "nodes": dict(sorted(nodes.items())[:MOST_NODES]),
        "topics": dict(sorted(topics.items())[:MOST_NODES]),
        "subs": subs,
    }


def _tasks(facts: Facts, others: Sequence[OtherInstance]) -> View:
    """The worst first; what each was over the last hour, as long as it was observed."""
    here = [(facts, "", task) for task in facts.seen.tasks]
    there = [(other.facts or facts, other.host, task) for other, task in elsewhere(facts, others)]
    ranked = sorted([*here, *there], key=lambda one: _badness(one[2]))
    counts = Counter(kind_of(task) for _, task in copies(facts, others, ""))
    begin = facts.now_ms - TREND_MS
    return {
        "counts": {kind: counts[kind] for kind in ORDER if counts[kind]},
        "begin_ms": int(max(begin, min((p.at_ms for p in facts.trend), default=facts.now_ms))),
        "rows": [
            {**_task_row(task, seen), "host": host} for seen, host, task in ranked[:MOST_TASKS]
        ],
        "more": max(0, len(ranked) - MOST_TASKS),
    }


def _badness(task: ObservedTask) -> tuple[int, float, str]:
    kind = kind_of(task)
    return (ORDER.index(kind) if kind in ORDER else len(ORDER), -(task.lag or 0), task.task)


def _percent(task: ObservedTask) -> int | None:
    """How much of its copy is there, rounded down: 100 % is said only of what is complete."""
    if task.copied is None or task.lag is None:
        return None
    whole = task.copied + task.lag
    return 100 * task.copied // whole if whole else 100


def _task_row(task: ObservedTask, facts: Facts) -> View:
    return {
        "task": task.task,
        "kind": kind_of(task),
        "lag": task.lag,
        "rate": task.rate,
        "percent": _percent(task),
        "remaining_s": task.remaining_s,
        "thread": task.thread,
        "why": task.trouble,
        "spans": [list(span) for span in facts.spans.get(task.task, ())],
    }


def _hosts(facts: Facts, others: Sequence[OtherInstance], own: str) -> View:
    """As of the last rebalance; and what those report now that answer."""
    seen = facts.seen
    rows = [asdict(host) for host in sorted(seen.hosts, key=lambda one: one.host)]
    for row in rows:
        row["active"], row["standby"] = len(row["active"]), len(row["standby"])
    tasks = defaultdict[str, dict[str, str]](dict)
    for host in seen.hosts:
        for role, ids in (("standby", host.standby), ("active", host.active)):
            for task in ids:
                tasks[task][host.host] = role
    if others:
        for name, copy in copies(facts, others, own):
            done = _percent(copy) if kind_of(copy) in (RESTORING, "warm-up") else None
            tasks[copy.task][name] = kind_of(copy) + (f" {done} %" if done is not None else "")
    return {
        **_first(rows, MOST_HOSTS),
        "tasks": dict(sorted(tasks.items())[:MOST_TASKS]),
        "silent": max(0, (seen.members or 0) - len(rows)),
    }


def _lags(facts: Facts, others: Sequence[OtherInstance]) -> View:
    """By partition; of a task that is being migrated, the state that is furthest."""
    rows: dict[tuple[str, int], View] = {}
    for host, of in [("", facts), *((other.host, other.facts) for other in others)]:
        for (topic, partition), lag in {} if of is None else of.seen.lags.items():
            old = rows.get((topic, partition))
            if of is None or (old is not None and old["lag"] >= lag):
                continue
            before = of.before.seen.lags.get((topic, partition))
            known = before is not None and of.passed_s > 0
            growth = None if before is None or not known else (lag - before) / of.passed_s
            place = {"topic": topic, "partition": partition}
            rows[topic, partition] = {**place, "lag": lag, "growth": growth, "host": host}
    ranked = sorted(rows.values(), key=lambda row: (-row["lag"], row["topic"], row["partition"]))
    return {
        **_first(ranked, MOST_LAGS),
        "more_lag": sum(row["lag"] for row in ranked[MOST_LAGS:]),
        "silent_s": facts.seen.silent_s,
        "misplaced": keys_elsewhere(facts.seen)[:MOST_LAGS],
        "times": [asdict(one) for one in facts.seen.times[:MOST_LAGS]],
    }


def _connectors(facts: Facts, others: Sequence[OtherInstance], own: str) -> View:
    """Of all instances that answer, as in `_lags`; a failing one first, then a paused one."""
    known = [(own or HERE, facts.seen)]
    known += [(other.host, other.facts.seen) for other in others if other.facts is not None]
    of_name = defaultdict[str, list[tuple[str, ObservedConnector]]](list)
    for place, seen in known:
        for one in seen.connectors:
            of_name[one.name].append((place, one))
    rows: list[View] = []
    for name, found in sorted(of_name.items()):
        states = Counter(state for _, one in found for state in one.tasks.values())
        lags = [one.lag for _, one in found]
        host, last = max(found, key=lambda each: each[1].failed_ms or 0)
        rows.append(
            {
                "connector": name,
                "kind": last.kind,
                "what": last.what,
                "paused": sum(one.paused for _, one in found),
                "of": len(found),
                "states": dict(sorted(states.items())),
                "lag": None if None in lags else sum(lag or 0 for lag in lags),
                "rows": sum(one.rows for _, one in found),
                "errors": sum(one.errors for _, one in found),
                "error": last.error,
                "failed_ms": last.failed_ms,
                "host": host if last.error and len(known) > 1 else "",
            }
        )
    rows.sort(key=lambda row: ("FAILED" not in row["states"], not row["paused"]))
    return _first(rows, MOST_LAGS)


def _threads(facts: Facts) -> View:
    """Where the last half minute went. A batch's phases count at its end, as parts of busy time."""
    phases = defaultdict[str, dict[str, float]](dict)
    for (ran_by, phase), share in facts.growth(names.BATCH_SECONDS).items():
        phases[ran_by][phase] = share
    batches = {labels[0]: rate for labels, rate in facts.growth(names.BATCHES).items()}
    latency = facts.seen.recent.get(names.BATCH_LATENCY, {})
    rows = []
    for thread in facts.seen.threads:
        number = str(thread.number)
        seen = latency.get((number,))
        in_phases = sum(phases[number].values())
        scale = min(1.0, thread.busy / in_phases) if in_phases > 0 else 0.0
        rows.append(
            {
                **asdict(thread),
                "batches": batches.get(number, 0.0),
                "phases": {
                    name: share * scale for name, share in phases[number].items() if share * scale
                },
                "mean_ms": None if seen is None else seen.mean,
                "most_ms": None if seen is None else seen.most,
            }
        )
    return {"rows": rows}


def _stores(facts: Facts) -> View:
    puts = facts.growth(names.STORE_PUTS)
    rows: list[View] = [
        {
            "store": store.name,
            "task": task.task,
            "kind": kind_of(task),
            "bytes": store.bytes,
            "puts": puts.get((task.task, store.name), 0.0),
        }
        for task in facts.seen.tasks
        for store in task.stores
    ]
    rows.sort(key=lambda row: (-row["bytes"], row["store"], row["task"]))
    return {
        "bytes": sum(row["bytes"] for row in rows),
        "free": None if facts.seen.disk is None else facts.seen.disk.free,
        **_first(rows, MOST_STORES),
    }


def _ranked(series: Mapping[Labels, float], *fields: str) -> list[View]:
    """A row for each series, the one with most records first; the last labels are ``fields``."""
    return [
        {**dict(zip(fields, labels[-len(fields) :], strict=True)), "records": records}
        for labels, records in sorted(series.items(), key=lambda one: (-one[1], one[0]))
    ]


def _letters(facts: Facts) -> View:
    seen = facts.seen
    dropped = _ranked(seen.series.get(names.DROPPED, {}), "node", "reason")
    cause = ("exception", "node", "topic")
    causes = _ranked(seen.series.get(names.LEFT_OUT, {}), *cause)
    for row in causes:
        row["sample"] = seen.samples.get(tuple(row[name] for name in cause), "")
    return {
        **_first(causes, MOST_LAGS, "causes"),
        "written": seen.counters.get(names.DEAD_LETTERS, 0.0),
        "rate": facts.total_growth(names.DEAD_LETTERS),
        "dropped": dropped[:MOST_LAGS],
    }


def _transactions(facts: Facts) -> View:
    seen = facts.seen
    latencies = seen.recent.get(names.COMMIT_LATENCY, {}).values()
    latency = reduce(Seen.also, latencies) if latencies else None
    failed = defaultdict[str, float](float)
    for (_, kind), count in seen.series.get(names.FAILED_BATCHES, {}).items():
        failed[kind] += count
    return {
        "committed": seen.counters.get(names.COMMITS, 0.0),
        "rate": facts.total_growth(names.COMMITS),
        "aborted": seen.counters.get(names.COMMITS_ABORTED, 0.0),
        "failed": dict(sorted(failed.items(), key=lambda item: -item[1])),
        "mean_ms": None if latency is None else latency.mean,
        "most_ms": None if latency is None else latency.most,
        "rebalances": seen.counters.get(names.REBALANCES, 0.0),
        **_writers(facts),
    }


def _writers(facts: Facts) -> View:
    found = transactions(facts.seen)
    for row in found["threads"]:
        at_ms = row.pop("committed_ms")
        row["commit_s"] = None if at_ms is None else max(0.0, facts.now_ms - at_ms) / 1000
    return {**found, **_first(found["held_back"], MOST_LAGS, "held_back")}


def _rebalances(records: Sequence[Rebalance]) -> View:
    shown = [_rebalance(one) for one in records[-MOST_REBALANCES:]]
    return {"rows": shown[::-1], "more": len(records) - len(shown)}


def _rebalance(one: Rebalance) -> View:
    changes = (
        *(("gained", one.gained), ("promoted from a copy", one.promoted), ("lost", one.lost)),
        *(("standbys", one.standbys), ("warm-ups", one.warmups)),
    )
    moved = () if one.decision is None else one.decision.moved
    routes = [f"{some(r.tasks)} from {r.origin or 'nobody'} to {r.to}" for r in moved]
    gaps = [gap for gap in one.gaps_ms.values() if gap is not None]
    return {
        **{name: getattr(one, name) for name in ("began_ms", "outcome", "why")},
        "before": None if one.before is None else len(one.before),
        "members": None if one.members is None else len(one.members),
        "here": [f"{word} {some(tasks)}" for word, tasks in changes if tasks],
        "moved": routes,
        "duration_s": None if one.duration_ms is None else one.duration_ms / 1000,
        "gap_s": max(gaps) / 1000 if gaps else None,
        "records": one.restored_records,
        "bytes": one.restored_bytes,
    }


def _events(events: Sequence[Event], about: str) -> list[View]:
    """The newest first."""
    chosen = [event for event in events if event.about == about][-MOST_EVENTS:]
    return [asdict(event) for event in reversed(chosen)]
