"""`InstanceOperations`, a part of `KafkaStreams`: listeners, pause, stream threads, clean-up."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

from everflow.errors import ConfigError
from everflow.runtime.client_state import ENDED, ClientState, IllegalStateError, StateListener
from everflow.runtime.instance_life import Living
from everflow.runtime.pause import Pause
from everflow.runtime.restore.restore_listener import RestoreListener
from everflow.runtime.restore.restore_progress import RestoreTracker
from everflow.runtime.restore.standby_listener import StandbyUpdateListener
from everflow.runtime.thread.retry_policy import (
    MOST_REPLACEMENTS,
    REPLACED_WITHIN_MS,
    ReplacementLimits,
)
from everflow.runtime.thread.uncaught import Uncaught, UncaughtExceptionHandler
from everflow.runtime.thread_count import ThreadCount
from everflow.state.lmdb_store import LmdbStore
from everflow.state.task_directory import StateDirectory
from everflow.windows import Duration, duration_ms

log = logging.getLogger("everflow")


class InstanceOperations(Living):
    """These methods of `KafkaStreams` may be called from any thread."""

    _pause: Pause
    _tracker: RestoreTracker
    _standby_listener: StandbyUpdateListener
    _uncaught: Uncaught

    def set_state_listener(self, listener: StateListener) -> None:
        """``listener(new, old)`` on every change, on the thread that made it: return quickly.
        Before `start` only."""
        self._require_created("a state listener is set")
        self._life.states.listener = listener

    def set_global_state_restore_listener(self, listener: RestoreListener) -> None:
        """Told of every restore, on the restore threads. Before `start` only."""
        self._require_created("a restore listener is set")
        self._tracker.listener = listener

    def set_standby_update_listener(self, listener: StandbyUpdateListener) -> None:
        """Told of what standby tasks do (KIP-988), on the state updater's thread. Before `start`
        only."""
        self._require_created("a standby update listener is set")
        self._standby_listener = listener

    def set_uncaught_exception_handler(
        self,
        handler: UncaughtExceptionHandler,
        *,
        most: int = MOST_REPLACEMENTS,
        within: Duration = REPLACED_WITHIN_MS,
    ) -> None:
        """``handler(error)`` says what becomes of a stream thread that cannot go on (KIP-671).
        Before `start` only.

        REPLACE_THREAD: the thread begins anew: its workers are ended and fenced, its tasks
        recovered. The task whose record or batch failed rests meanwhile (1 s, twice as long each
        time, a minute at most), and its `TaskStatus.trouble` says why; the others go on. Where all
        of the thread's tasks may be the cause, all of them rest. A thread is replaced ``most``
        times ``within`` a time (text such as ``"10 minutes"``, ms or a timedelta), and only for
        causes that may pass; then the instance ends.
        SHUTDOWN_CLIENT: this instance ends in state ERROR, as without a handler.
        SHUTDOWN_APPLICATION: all instances end, as after `shut_down_application`.

        It is called on the failing thread. What it raises is logged, and the instance ends. Other
        failures than a stream thread's (of the group's membership, of a missing topic) do not
        reach it. Raises IllegalStateError after the start, ConfigError where ``most`` is below 1,
        TopologyError for what is no duration.
        """
        self._require_created("an uncaught exception handler is set")
        if most < 1:
            raise ConfigError(
                f"set_uncaught_exception_handler: most is at least 1, found {most}. To end at the "
                f"first failure answer SHUTDOWN_CLIENT."
            )
        limits = ReplacementLimits(most, duration_ms(within))
        self._uncaught = replace(self._uncaught, handler=handler, limits=limits)

    def pause(self) -> None:
        """Process nothing, restore nothing, let standbys follow nothing, on this instance, until
        `resume` (KIP-834).

        Batches in flight end and commit. The instance stays a member of the group and keeps its
        tasks: heartbeats go on, rebalances are answered, and tasks that come meanwhile are paused
        too; its state stays what it is. A draining `close` does not wait for a resume. May be
        called before `start`. Not remembered by the next process, and the other instances go on.
        """
        self._pause.pause()

    def resume(self) -> None:
        """End a `pause`: everything goes on from where it stopped. Without one nothing happens."""
        self._pause.resume()

    def is_paused(self) -> bool:
        """Whether `pause` holds."""
        return self._pause.paused

    def add_stream_thread(self) -> str | None:
        """One stream thread more (KIP-663): its name once it has its share of this instance's
        tasks, or is about to get it.

        Returns when its workers run, some seconds later; until then it has no task. Tasks that come
        to it are handed over between two batches, without a restore; those that stay where they are
        do not pause. The group counts it from the next rebalance on, asked for at once. Not
        remembered by the next process: that is ``num.stream.threads``. None where the instance ends
        meanwhile, or the workers did not start within a minute.

        Raises IllegalStateError where the instance does not run, or Spark has no task slot left for
        it.
        """
        return self._counted().add()

    def remove_stream_thread(self, timeout: float | None = None) -> str | None:
        """One stream thread less (KIP-663), the one added last: its name when it has ended; None
        where the instance ends meanwhile.

        Its tasks go to the other threads after the batch in flight, without a restore; the group
        counts it no more from the next rebalance on. The last one cannot be removed.

        Raises IllegalStateError where the instance does not run or has one thread only;
        TaskTimeoutError if the batch in flight takes longer than ``timeout`` seconds (None: any
        time): the thread stays then.
        """
        return self._counted().remove(timeout)

    def shut_down_application(self) -> None:
        """End every instance of the application, this one too, for a fault that no restart mends
        (KIP-671).

        The request goes to the others with the next rebalance, which this one asks for at once.
        Each finishes as after a failure: state ERROR, ``error`` a ShutdownRequestedError that names
        who asked; nothing is drained, all leave the group. Does not wait for that. Instances that
        are started later run. Raises IllegalStateError where the instance is not a member of the
        group.
        """
        instance = self._life.instance
        if instance is None or self.state not in (ClientState.REBALANCING, ClientState.RUNNING):
            raise IllegalStateError(
                f"In state {self.state.name} an instance cannot ask the others to end: it asks "
                f"through the group, which it is in "
                f"while REBALANCING or RUNNING."
            )
        log.error("The whole application is asked to shut down")
        instance.member.shut_down_application()

    def clean_up(self) -> None:
        """Delete this instance's stores; the next start restores them from their changelogs. Before
        `start` or after the end only.

        All tasks' stores below ``<state.dir>/<application.id>`` go, under the folder's lock. What
        is left names the instance and the transactions it may have left open, so that the next
        start ends them. Without a folder there is nothing to clean.

        Raises IllegalStateError while the instance runs; StateLockedError if another process works
        on the folder; StateFormatError if it belongs to another application or a later release;
        StateDiskError.
        """
        if self.state is not ClientState.CREATED and self.state not in ENDED:
            raise IllegalStateError(
                f"In state {self.state.name} the stores are in use: clean up before the start, or "
                f"after close()."
            )
        remove_stores(Path(self.config.state_dir).expanduser(), self.config.application_id)

    def _counted(self) -> ThreadCount:
        instance = self._life.instance
        if instance is None or self.state not in (ClientState.REBALANCING, ClientState.RUNNING):
            raise IllegalStateError(
                f"In state {self.state.name} there are no stream threads to add to or to remove: "
                f"start the instance first."
            )
        return instance.thread_count

    def _require_created(self, what: str) -> None:
        if self.state is not ClientState.CREATED:
            raise IllegalStateError(
                f"In state {self.state.name} it is too late: {what} once, before anything else. To "
                f"run the topology again, close() "
                "this instance, then make a new KafkaStreams(...) and start that."
            )


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
