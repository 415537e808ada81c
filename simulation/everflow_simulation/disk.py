"""A simulated state folder: it survives a crash, may be lost, and knows its ids.

These are the process id, and the transactional ids that were used on it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from everflow.errors import StoreMismatchError
from everflow.instance.copies.known_copies import AtRest, Copies
from everflow.instance.copies.state_updater import FollowedTask
from everflow.instance.tasks.task import TaskStore
from everflow.records import TaskId, TopicPartition
from everflow_simulation.log import Fold


@dataclass(kw_only=True)
class SimulatedStore:
    """One store on one disk: content, position in the changelog, owner (D5). Also what the state
    updater sees of a store."""

    path: Path
    position: int = 0
    content: Mapping[TopicPartition, Fold] = field(default_factory=dict)
    incarnation: str = ""
    last_batch: str = ""
    inputs: dict[str, int] = field(default_factory=dict)

    def claim(self, incarnation: str) -> None:
        """A new owner; no batch applied by it yet."""
        self.incarnation, self.last_batch = incarnation, ""

    def load(
        self, content: Mapping[TopicPartition, Fold] | None, position: int, incarnation: str
    ) -> None:
        """A piece of the changelog and the position behind it, in one transaction; only by the
        owner."""
        if incarnation != self.incarnation:
            raise StoreMismatchError(f"{self.path}: owner is {self.incarnation}, not {incarnation}")
        if content is not None:
            self.content = content
        self.position = position

    def load_chunk(
        self,
        keys: Sequence[bytes],
        values: Sequence[bytes | None],
        timestamps: object,
        position: int,
        *,
        incarnation: str,
        now_ms: int = -1,
    ) -> None:
        """`LmdbStore.load_chunk`; the chunk's content travels in ``values``."""
        self.load(values or None, position, incarnation)  # type: ignore[arg-type]

    def apply(
        self,
        content: Mapping[TopicPartition, Fold] | None,
        position: int | None,
        expected: tuple[str, str],
        batch: str,
        inputs: Mapping[str, int],
    ) -> None:
        """`LmdbStore.apply`: conditional on owner and last batch."""
        if (self.incarnation, self.last_batch) != expected:
            raise StoreMismatchError(
                f"{self.path}: owner and batch are {self.incarnation}, {self.last_batch}, not "
                f"{expected}"
            )
        self.content = self.content if content is None else content
        self.last_batch = batch
        self.inputs.update(inputs)
        if position is not None:
            self.position = position

    def touch(self, now_ms: int) -> None:
        """Nothing: ages are not simulated."""

    def close(self) -> None:
        """Nothing is held open."""


@dataclass
class SimulatedDisk:
    """See the module."""

    process_id: str
    stores: dict[Path, SimulatedStore] = field(default_factory=dict)
    transactional_ids: set[str] = field(default_factory=set)

    def store(self, path: Path) -> SimulatedStore:
        """The store at a path, made empty on first use."""
        return self.stores.setdefault(path, SimulatedStore(path=path))

    def positions(self) -> dict[TaskId, int]:
        """Task -> position, of every copy that holds anything."""
        return {
            TaskId.parse(path.parts[0]): store.position
            for path, store in self.stores.items()
            if store.position > 0
        }

    def inputs(self, task: TaskId) -> dict[TopicPartition, int]:
        """What the copies of a task know to be committed."""
        return {
            TopicPartition.parse(tp): offset
            for path, store in self.stores.items()
            if path.parts[0] == str(task)
            for tp, offset in store.inputs.items()
        }


class SimulatedCopies(Copies):
    """`Copies` over a simulated disk; the rest of it is the real one."""

    def __init__(
        self,
        disk: SimulatedDisk,
        followed: Callable[[], Mapping[TaskId, FollowedTask]],
        running: Callable[[], Sequence[TaskId]],
    ) -> None:
        super().__init__(followed, running)
        self._disk = disk
        self._at_rest = {
            task: AtRest(position, inputs=disk.inputs(task))
            for task, position in disk.positions().items()
        }

    def rest(self, task: TaskId, stores: object) -> None:
        """See `Copies.rest`."""
        places: Sequence[TaskStore] = stores  # type: ignore[assignment]
        positions = [
            self._disk.store(place.path).position for place in places if place.changelog is not None
        ]
        if any(positions):
            self._at_rest[task] = AtRest(sum(positions))
        else:
            self._at_rest.pop(task, None)
