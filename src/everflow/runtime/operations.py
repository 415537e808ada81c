"""What an operator may ask of an instance besides start and close: pause, shut all of the application down, clean up.

`InstanceOperations` is a part of `KafkaStreams`.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING

from everflow.errors import EverflowError
from everflow.runtime.client_state import ENDED, ClientState
from everflow.runtime.pause import Pause
from everflow.state.lmdb_store import LmdbStore
from everflow.state.task_directory import StateDirectory

if TYPE_CHECKING:
    from everflow.config import StreamsConfig
    from everflow.membership.member import GroupMember

log = logging.getLogger("everflow")


class IllegalStateError(EverflowError):
    """An instance was asked for what it cannot do in its present state; the message says in which it can."""

    code = "EF-ILLEGAL-STATE"


class InstanceOperations:
    """These methods of `KafkaStreams` may be called from any thread."""

    config: StreamsConfig
    _pause: Pause
    _member: GroupMember | None

    @property
    def state(self) -> ClientState:
        """The state now."""
        raise NotImplementedError

    def pause(self) -> None:
        """Process nothing, restore nothing, let standbys follow nothing, on this instance, until `resume` (KIP-834).

        Batches in flight end and commit. The instance stays a member of the group and keeps its tasks: heartbeats go on, rebalances
        are answered, and tasks that come meanwhile are paused too; its state stays what it is. A draining `close` does not wait for
        a resume. May be called before `start`. Not remembered by the next process, and the other instances go on.
        """
        self._pause.pause()

    def resume(self) -> None:
        """End a `pause`: everything goes on from where it stopped. Without one nothing happens."""
        self._pause.resume()

    def is_paused(self) -> bool:
        """Whether `pause` holds."""
        return self._pause.paused

    def shut_down_application(self) -> None:
        """End every instance of the application, this one too, for a fault that no restart mends (KIP-671).

        The request goes to the others with the next rebalance, which this one asks for at once. Each finishes as after a failure:
        state ERROR, ``error`` a ShutdownRequestedError that names who asked; nothing is drained, all leave the group. Does not wait
        for that. Instances that are started later run. Raises IllegalStateError where the instance is not a member of the group.
        """
        member = self._member
        if member is None or self.state not in (ClientState.REBALANCING, ClientState.RUNNING):
            raise IllegalStateError(
                f"In state {self.state.name} an instance cannot ask the others to end: it asks through the group, which it is in "
                f"while REBALANCING or RUNNING."
            )
        log.error("The whole application is asked to shut down")
        member.shut_down_application()

    def clean_up(self) -> None:
        """Delete this instance's stores; the next start restores them from their changelogs. Before `start` or after the end only.

        All tasks' stores below ``<state.dir>/<application.id>`` go, under the folder's lock. What is left names the instance and
        the transactions it may have left open, so that the next start ends them. Without a folder there is nothing to clean.

        Raises IllegalStateError while the instance runs; StateLockedError if another process works on the folder; StateFormatError
        if it belongs to another application or a later release; StateDiskError.
        """
        if self.state is not ClientState.CREATED and self.state not in ENDED:
            raise IllegalStateError(
                f"In state {self.state.name} the stores are in use: clean up before the start, or after close()."
            )
        remove_stores(Path(self.config.state_dir).expanduser(), self.config.application_id)

    def _require_created(self, what: str) -> None:
        if self.state is not ClientState.CREATED:
            raise IllegalStateError(f"In state {self.state.name} it is too late: {what} once, before anything else.")


def remove_stores(state_dir: Path, application_id: str) -> None:
    """Remove all tasks' stores of an application's folder; see `InstanceOperations.clean_up`."""
    if not (state_dir / application_id).is_dir():
        return
    directory = StateDirectory.open(state_dir, application_id)
    try:
        for task in directory.tasks():
            for store in directory.stores(task):
                LmdbStore.close_at(directory.store_path(task, store))
            directory.remove_task(task)
        log.info("Deleted the stores in %s", directory.path)
    finally:
        directory.close()
