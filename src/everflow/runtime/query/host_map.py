"""The host map of the last rebalance: as the leader sent it, or read from the group (note 005).

The leader leaves it out where it is too large to send."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping

from everflow.assignment.user_data import HostTasks, hosts_of
from everflow.clock import Clock
from everflow.errors import EverflowError
from everflow.kafka.group_channel import GroupSettings
from everflow.kafka.group_description import user_data_of_group

log = logging.getLogger("everflow")

RETRY_MS = 1_000.0


class HostMap:
    """``describe`` reads the user data of all members and may take a while. Safe from any
    thread."""

    group: GroupSettings | None = None
    """Which group to ask; set before the first rebalance."""

    def __init__(
        self,
        clock: Clock,
        describe: Callable[[GroupSettings], Iterable[tuple[bytes, bytes]]] = user_data_of_group,
    ) -> None:
        self._clock = clock
        self._describe = describe
        self._reading = threading.Lock()
        self._generation = -1
        self._hosts: Mapping[str, HostTasks] | None = None
        self._next_read_ms = 0.0

    def told(self, generation: int, hosts: Mapping[str, HostTasks] | None) -> None:
        """A rebalance has ended; None: the map was left out. Returns at once."""
        self._generation, self._hosts, self._next_read_ms = generation, hosts, 0.0

    def known(self) -> Mapping[str, HostTasks]:
        """What is known already: nobody is asked."""
        return self._hosts or {}

    def hosts(self) -> Mapping[str, HostTasks] | None:
        """Tasks by end point; None: not known (before the first rebalance, during one, or the
        brokers do not answer).

        Reads a map that was left out once for each generation, while others who ask wait; after a
        failure at most once a second.
        """
        group = self.group
        if self._hosts is not None or self._generation < 0 or group is None:
            return self._hosts
        with self._reading:
            generation, now_ms = self._generation, self._clock.monotonic_ms()
            if self._hosts is not None or now_ms < self._next_read_ms:
                return self._hosts
            try:
                found = hosts_of(self._describe(group))
            except EverflowError as error:
                log.warning("The host map cannot be read from the group: %s", error)
                found = {}
            if generation == self._generation and self._hosts is None:
                self._hosts = found or None
                self._next_read_ms = now_ms + RETRY_MS
            return self._hosts
