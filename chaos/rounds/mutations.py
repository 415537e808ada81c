"""The product without one of its guards: a chaos run that cannot fail shows nothing.

Each function takes one guard away in the process that calls it; the product's source stays as it
is. `Fleet.around` has every process of an instance do so, its workers included.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

HOOK = Path(__file__).parent / "hook"
VARIABLE = "EVERFLOW_CHAOS_MUTATION"


def _put(owner: Any, **members: Any) -> None:
    for name, member in members.items():
        getattr(owner, name)  # AttributeError: a guard that has another name now stays in place
        setattr(owner, name, member)


def _no_gate() -> None:
    """Every worker may commit, whoever owns its tasks by now."""
    from everflow.instance import commit_gate

    _put(commit_gate, decide=lambda *_, **__: commit_gate.Decision(True))


def _no_condition() -> None:
    """A batch is written to a store whoever owns it, and wherever it stands."""
    from everflow.state.store_meta import StoreMeta

    def moved_to(self: StoreMeta, position: int | None, where: str) -> StoreMeta:
        return self if position is None else replace(self, position=position)

    _put(StoreMeta, check_owner=lambda *_: None, moved_to=moved_to)


def _fence_last() -> None:
    """Whoever takes over reads first what it reads, and ends earlier writers when it is done: the
    recovery after a failure, a start, and a new worker, whose writer ends those of its id."""
    from everflow.instance import start_up
    from everflow.instance.tasks.recovery import Recovery
    from everflow.worker import sink

    recover, commit = Recovery.recover, sink.KafkaSink.__call__
    owed: dict[int, Any] = {}

    def unfenced(self: Recovery, tasks: Any, fence: Any, *rest: Any) -> Any:
        if not tasks:  # a thread whose batch failed recovers its tasks in the next call
            owed[id(self)] = fence
            return {}, {}
        last = owed.pop(id(self), ()) or fence
        result = recover(self, tasks, (), *rest)
        if last:
            self.ports.fence(last)
        return result

    def connected_late(self: Any, request: Any, result: Any, sources: Any) -> Any:
        batch = sink._Transaction(self, request, result, sources)
        return commit(self, request, result, sources) if batch.touched else batch.of_nothing()

    _put(Recovery, recover=unfenced)
    _put(start_up, _fence_recorded=lambda *_: None)
    _put(sink.KafkaSink, __call__=connected_late)


def _any_offsets() -> None:
    """Offsets are read as they were committed last, whatever transaction is open on them."""
    from everflow.kafka.admin import ClusterAdmin

    committed = ClusterAdmin.committed

    def unstable(self: ClusterAdmin, *given: Any, **options: Any) -> Any:
        return committed(self, *given, **{**options, "stable": False})

    _put(ClusterAdmin, committed=unstable)


def _no_wait() -> None:
    """A changelog is replayed as far as it can be read now, whatever transaction is open on it."""
    from everflow.instance.assembly import ClusterRecoveryPorts
    from everflow.instance.tasks.recovery import Recovery

    def read_now(self: Recovery, inputs: Any, targets: Any, _: object) -> Any:
        return dict(self.ports.stable_ends(sorted({*inputs, *targets})))

    _put(ClusterRecoveryPorts, log_ends=ClusterRecoveryPorts.stable_ends)
    _put(Recovery, _stable_ends=read_now)


MUTATIONS: Mapping[str, Callable[[], None]] = {
    "commit-gate": _no_gate,
    "conditional-apply": _no_condition,
    "fencing-order": _fence_last,
    "stable-offsets": _any_offsets,
    "stable-ends": _no_wait,
}


def mutate_here() -> None:
    """Take away in this process what the environment names; KeyError for an unknown name."""
    name = os.environ.get(VARIABLE)
    if name:
        MUTATIONS[name]()
