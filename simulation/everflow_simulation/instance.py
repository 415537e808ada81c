"""Runs the real `Instance` and `InstanceEnd` on simulated ports: one simulated instance.

What waits runs on fibers; what only looks (the loop, the membership, the poller of ends) runs as
events of the scheduler: they cost less.
"""

from __future__ import annotations

import math
from collections.abc import Collection

from everflow.errors import EverflowError
from everflow.membership.member import Assigned, Failed, Lost, MemberEvent, Revoked
from everflow.memory import MemoryBudget
from everflow.metrics import Metrics
from everflow.records import UNBOUNDED_BYTES, TaskId
from everflow.runtime.client_state import ENDED, STOPPING, Pause
from everflow.runtime.instance import Instance, InstanceSettings
from everflow.runtime.life import InstanceLife, leaves
from everflow.runtime.restore.listeners import RestoreTracker
from everflow_simulation.disk import SimulatedDisk
from everflow_simulation.ports import SimulatedPorts, World, transactional_id
from everflow_simulation.scheduler import Process

DRAIN_TIMEOUT_MS = 60_000.0


class SimulatedInstance(Instance):
    """See the module. ``disk`` may be that of an earlier ``life``; ``version`` is that of the user
    data it speaks."""

    def __init__(
        self,
        world: World,
        name: str,
        disk: SimulatedDisk,
        life: int,
        instance_id: str | None = None,
        version: int | None = None,
    ) -> None:
        self.world, self.name, self.disk, self.life, self.instance_id, self.version = (
            world,
            name,
            disk,
            life,
            instance_id,
            version,
        )
        self.process = Process(name)
        self.error: EverflowError | None = None
        """The first, also of an end."""
        self.assigned: frozenset[TaskId] = frozenset()
        ours = SimulatedPorts(
            world=world,
            name=name,
            disk=disk,
            life=life,
            instance_id=instance_id,
            version=version,
            process=self.process,
        )
        timeout_ms, never_ms = world.settings.task_timeout_ms, math.inf
        settings = InstanceSettings(
            threads=world.settings.threads,
            exactly_once=True,
            task_timeout_ms=timeout_ms,
            max_poll_interval_ms=never_ms,
            drain_timeout_ms=DRAIN_TIMEOUT_MS,
            purge_interval_ms=never_ms,
            memory=MemoryBudget(UNBOUNDED_BYTES),
        )
        metrics = Metrics()
        lifecycle = self.lifecycle = InstanceLife(ours.clock, ours.spawn, self._on_ended)
        told, tracker = (lifecycle.states, self._on_failed, lifecycle.stop), RestoreTracker(metrics)
        super().__init__(ours, settings, ours.clock, *told, Pause(), metrics, tracker)
        lifecycle.instance = self
        self.workers = ours.workers

    # --- life -------------------------------------------------------------------------------------

    def launch(self) -> None:
        """Fence what earlier lives on this disk left open, then start."""
        copies = len(self.disk.positions())
        self.world.history.add(
            self.name, f"starts (process {self.disk.process_id[-4:]}, {copies} copies on disk)"
        )
        self.ports.spawn(f"{self.name}-start", self._launch)

    def kill(self) -> None:
        """SIGKILL."""
        self.world.history.add(self.name, f"killed, it ran {_names(self.running())}")
        self.world.scheduler.kill(self.process)
        self.world.on_running(self, frozenset())

    def close(self, leave_group: bool | None = None, drain_ms: float | None = None) -> None:
        """`KafkaStreams.close`: drain if asked to, end the batches in flight, leave as told."""
        if not self.closing:
            drain_s = (
                (drain_ms or 0.0) / 1000
                if leaves(leave_group, static=self.instance_id is not None)
                else 0.0
            )
            self.world.history.add(
                self.name, f"closes, drains for {drain_s:g} s, it runs {_names(self.running())}"
            )
            self.lifecycle.close(leave_group, drain_s)

    def running(self) -> frozenset[TaskId]:
        """Tasks on a stream thread of this living process, those being given up included."""
        if not self.process.alive or self.ended:
            return frozenset()
        return frozenset(task for thread in self.threads for task in thread.tasks)

    @property
    def closing(self) -> bool:
        """Whether it ends or has ended."""
        return self.states.state in STOPPING

    @property
    def ended(self) -> bool:
        """Whether it has."""
        return self.states.state in ENDED

    @property
    def settled(self) -> bool:
        """All that the group wants here runs, and no rebalance is known of."""
        return self.member.stable and self.manager.all_running()

    def _launch(self) -> None:
        failure = self.lifecycle.start(self._begin)
        if isinstance(failure, EverflowError):
            self._note_failure(failure)
        elif failure is not None:
            raise failure

    def _begin(self) -> None:
        self.ports.fence(own=True)
        self.disk.transactional_ids = {
            transactional_id(self.disk, number) for number in range(self.settings.threads)
        }
        self.start()

    def _on_failed(self, error: EverflowError) -> None:
        self._note_failure(error)
        self.lifecycle.fail(error)

    def _note_failure(self, error: EverflowError) -> None:
        if self.error is None and not self.ended:
            self.error = error
            self.world.history.add(self.name, f"fails: [{error.code}] {error}")
            self.world.on_failed(self, error)

    def _on_ended(self) -> None:
        self.world.on_running(self, frozenset())
        self.world.history.add(self.name, "ended")
        self.world.scheduler.after(10.0, lambda: self.world.scheduler.kill(self.process))

    # --- what the simulation looks at -------------------------------------------------------------

    def on_member_event(self, event: MemberEvent) -> None:
        if isinstance(event, Assigned):
            self.assigned |= event.tasks
        elif isinstance(event, Revoked):
            self.assigned -= event.tasks
        elif isinstance(event, Lost | Failed):
            self.assigned = frozenset()
        super().on_member_event(event)
        self.world.on_claim(self, event)

    def _on_tasks_changed(self, all_running: bool) -> None:
        super()._on_tasks_changed(all_running)
        self.world.on_running(self, frozenset(self.manager.running) | self.manager.leaving)


def _names(tasks: Collection[TaskId]) -> str:
    return ", ".join(map(str, sorted(tasks))) or "nothing"
