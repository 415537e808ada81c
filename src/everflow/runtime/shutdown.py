"""`InstanceShutdown`, a part of `KafkaStreams`: how its users end it."""

from __future__ import annotations

from typing import TypeVar

from everflow.runtime.drain import DRAIN_SHARE, leaves
from everflow.runtime.instance_life import Living

_Instance = TypeVar("_Instance", bound="InstanceShutdown")


class InstanceShutdown(Living):
    """These methods of `KafkaStreams` may be called from any thread."""

    def __enter__(self: _Instance) -> _Instance:
        """``with KafkaStreams(...) as streams:`` closes at the end of the block; `start` is still
        called inside."""
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """`close`. If the block itself ended well and the instance did not, raises what stopped
        it."""
        self.close()
        if kind is None and self.error is not None:
            raise self.error

    def close(self, timeout: float = 60.0, leave_group: bool | None = None) -> bool:
        """Hand the tasks over, finish the batches in flight, commit, leave the group, release the
        folder; False if that took more than ``timeout`` seconds (it goes on in the background).

        ``leave_group`` None: a dynamic member drains (every task is processed here until another
        instance has a hot copy of it, at most ``drain.timeout.ms`` and most of ``timeout``) and
        leaves; a static one (``group.instance.id``) stays in the group, silently: its tasks wait
        for its return. True: drain and leave, also a static one. False: stay silent, also a dynamic
        one (KIP-812).

        During `start`, from another thread: the start gives up what it waits for and returns, the
        state is NOT_RUNNING.
        """
        self._begin_close(timeout, leave_group)
        return self._life.states.wait_ended(timeout)

    def _begin_close(self, timeout: float, leave_group: bool | None) -> None:
        """`close` without the waiting."""
        drains = leaves(leave_group, static=self.config.group_instance_id is not None)
        self._life.close(
            leave_group,
            min(self.config.drain_timeout_ms / 1000, DRAIN_SHARE * timeout) if drains else 0.0,
        )

    def _hurry_up(self, timeout_s: float) -> bool:
        """Wait for an end that has begun: from now on it hands nothing over and cuts batches in
        flight off after a second."""
        self._life.hurry.set()
        return self._life.states.wait_ended(timeout_s)
