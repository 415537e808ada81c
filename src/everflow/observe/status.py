"""What `/status` says of an instance, and how another instance reads it. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from everflow import metrics as names
from everflow.observe.health import live, ready, state_reason
from everflow.observe.observation import Observation, ObservedTask, ObservedThread
from everflow.observe.transactions import transactions

LONGEST = 2_000
"""Characters of a text that another instance says."""
_TASK = ("task", "role", "state", "lag", "rate", "remaining_s", "copied", "trouble")
_THREAD = ("number", "alive", "tasks", "busy", "trouble", "warm")


def status_of(seen: Observation) -> dict[str, Any]:
    """The instance's state, both verdicts, threads and tasks. A number that is not known is
    null."""
    alive, processes = live(seen), ready(seen)
    lag = seen.counters.get(names.LAG, math.nan)
    return {
        "application_id": seen.application_id,
        "client_id": seen.client_id,
        "version": seen.version,
        "topology": seen.topology,
        "program": seen.program,
        "started_ms": seen.started_ms,
        "state": seen.state,
        "state_s": seen.state_s,
        "state_reason": state_reason(seen),
        "error": seen.error,
        "live": alive._asdict(),
        "ready": processes._asdict(),
        "lag": None if math.isnan(lag) else int(lag),
        "lags": [
            {"topic": topic, "partition": partition, "lag": waits}
            for (topic, partition), waits in sorted(seen.lags.items())
        ],
        "misplaced_keys": keys_elsewhere(seen),
        "consumed": seen.counters.get(names.RECORDS_CONSUMED, 0.0),
        "silent_s": seen.silent_s,
        "members": seen.members,
        "desired_instances": seen.desired_instances,
        "threads": [asdict(thread) for thread in seen.threads],
        "transactions": transactions(seen),
        "disk": None if seen.disk is None else seen.disk._asdict(),
        "tasks": [asdict(task) for task in seen.tasks],
    }


def keys_elsewhere(seen: Observation) -> list[dict[str, Any]]:
    """Topics with keys in other partitions than their sources say: of so many keys that were
    looked at, and what to do."""
    misplaced, checked = (
        seen.series.get(name, {}) for name in (names.KEYS_MISPLACED, names.KEYS_CHECKED)
    )
    return [
        {
            "topic": topic,
            "misplaced": int(misplaced.get((topic,), 0)),
            "checked": int(checked.get((topic,), 0)),
            "cure": cure,
        }
        for topic, cure in sorted(seen.misplaced_keys.items())
    ]


def observation_in(status: Any) -> Observation:
    """What another instance says of itself, as far as a page shows it of others. ValueError for
    what is no status: it came over the network."""
    try:
        lag = status["lag"]
        counters = {
            names.LAG: math.nan if lag is None else _finite(lag),
            names.RECORDS_CONSUMED: _finite(status.get("consumed", 0.0)),
        }
        return Observation(
            application_id=str(status["application_id"]),
            client_id=str(status["client_id"]),
            version=str(status["version"]),
            state=str(status["state"]),
            state_number=-1,
            state_s=_finite(status.get("state_s", 0.0)),
            topology=str(status.get("topology", ""))[:LONGEST],
            program=str(status.get("program", ""))[:LONGEST],
            error=str(status["error"])[:LONGEST],
            threads=[
                ObservedThread(**_part({"warm": True, **one}, _THREAD)) for one in status["threads"]
            ],
            tasks=[ObservedTask(**_part(one, _TASK)) for one in status["tasks"]],
            counters=counters,
            lags={
                (str(one["topic"]), int(one["partition"])): int(one["lag"])
                for one in status.get("lags", ())
            },
            members=None if status["members"] is None else int(status["members"]),
            silent_s=_finite(status.get("silent_s", 0.0)),
        )
    except (KeyError, TypeError, AttributeError, OverflowError) as error:
        raise ValueError(f"it is no status of an everflow instance ({error!r})") from error


_TYPES: Mapping[str, tuple[type, ...]] = {
    **dict.fromkeys(("task", "role", "state", "trouble"), (str,)),
    **dict.fromkeys(("number", "tasks"), (int,)),
    **dict.fromkeys(("rate", "busy"), (int, float)),
    **dict.fromkeys(("lag", "copied"), (int, type(None))),
    "remaining_s": (int, float, type(None)),
    **dict.fromkeys(("alive", "warm"), (bool,)),
}


def _part(told: Mapping[str, Any], wanted: tuple[str, ...]) -> dict[str, Any]:
    """Those of the values that are wanted, each of its type."""
    found = {name: told[name] for name in wanted}
    for name, value in found.items():
        if not isinstance(value, _TYPES[name]):
            raise TypeError(f"{name} is {value!r}")
        if isinstance(value, float):
            _finite(value)
        if isinstance(value, str):
            found[name] = value[:LONGEST]
    return found


def _finite(value: Any) -> float:
    """A number that JSON has a text for: a page is made of it."""
    number = float(value)
    if not math.isfinite(number):
        raise TypeError(f"{number} is no number")
    return number
