"""What other threads want of a stream thread: to take tasks over, to give them up.

It looks between two batches only, so that a batch never loses a task under its feet.
"""

from __future__ import annotations

import queue
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from everflow.records import TaskId
from everflow.runtime.tasks.task import ActiveTask


@dataclass
class _Add:
    tasks: Sequence[ActiveTask]


@dataclass
class _Drop:
    tasks: frozenset[TaskId]
    done: Callable[[Sequence[ActiveTask]], None]


class ThreadCommands:
    """`take` and `refuse` are the stream thread's; any thread may call the others."""

    def __init__(self) -> None:
        self._waiting: queue.SimpleQueue[_Add | _Drop] = queue.SimpleQueue()
        self._arriving: dict[TaskId, ActiveTask] = {}

    def add(self, tasks: Sequence[ActiveTask]) -> None:
        """See `StreamThread.add`."""
        self._arriving.update({task.id: task for task in tasks})
        self._waiting.put(_Add(tasks))

    def drop(self, tasks: Collection[TaskId], done: Callable[[Sequence[ActiveTask]], None]) -> None:
        """See `StreamThread.drop`."""
        self._waiting.put(_Drop(frozenset(tasks), done))

    def arriving(self) -> list[ActiveTask]:
        """Given to the thread, not taken over yet."""
        return list(self._arriving.values())

    def take(self, tasks: dict[TaskId, ActiveTask]) -> bool:
        """Carry all of them out on ``tasks``; whether those have changed."""
        changed = False
        while (command := self._next()) is not None:
            if isinstance(command, _Add):
                for task in command.tasks:
                    tasks[task.id] = task
                    self._arriving.pop(task.id, None)
                changed = changed or bool(command.tasks)
            else:
                dropped = [tasks.pop(task) for task in sorted(command.tasks) if task in tasks]
                changed = changed or bool(dropped)
                command.done(dropped)
        return changed

    def refuse(self, known: dict[TaskId, ActiveTask]) -> None:
        """The thread ends: whoever waits for tasks to be given up must not wait for ever."""
        while (command := self._next()) is not None:
            if isinstance(command, _Drop):
                command.done([known.pop(task) for task in sorted(command.tasks) if task in known])

    def _next(self) -> _Add | _Drop | None:
        try:
            return self._waiting.get_nowait()
        except queue.Empty:
            return None
