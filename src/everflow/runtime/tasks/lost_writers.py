"""Fences what a vanished instance may have left open (D6).

A transaction that nobody ends blocks committed offsets and readers until its time-out, 10 to 20 s
after the kill.

Who took over a task asks which transactions are open, which processes live, and re-initialises the
ids of those that do not. A member's client id ends with its process id (`wiring.group_settings`);
where one does not, nothing is done.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

from everflow.errors import EverflowError

log = logging.getLogger("everflow")

_PROCESS = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}$")


def lost_writers(
    application_id: str, open_ids: Iterable[str], clients: Collection[str], own_process: str
) -> list[str]:
    """Those of ``open_ids`` that belong to a process of the application which is no member any
    more.

    ``clients``: client ids of the group's members at a moment after ``open_ids`` was read: whoever
    opened one of them as a member of now is among them. A member whose process cannot be told could
    own any of them: then none is lost.
    """
    live = {own_process}
    for client in clients:
        found = _PROCESS.search(client)
        if found is None:
            return []
        live.add(found.group())
    lost = []
    for transactional_id in open_ids:
        owner, _, thread = transactional_id.rpartition("-")
        process = owner.removeprefix(f"{application_id}-")
        ours = (
            owner.startswith(f"{application_id}-")
            and thread.isdigit()
            and _PROCESS.fullmatch(process) is not None
        )
        if ours and process not in live:
            lost.append(transactional_id)
    return sorted(lost)


@dataclass(frozen=True)
class LostWriters:
    """``open_ids``, ``clients`` and ``fence`` ask the brokers and block; `fence_all` is called on a
    thread that may wait."""

    application_id: str
    own_process: str
    open_ids: Callable[[], Collection[str]]
    clients: Callable[[], Collection[str]]
    fence: Callable[[Collection[str]], None]

    def fence_all(self) -> list[str]:
        """Fence every lost writer; what fails is said: then the transactions' time-out ends them.
        The ids, if all were fenced."""
        fenced: list[str] = []
        try:
            open_ids = self.open_ids()
            clients = self.clients() if open_ids else ()
            lost = lost_writers(self.application_id, open_ids, clients, self.own_process)
            if lost:
                self.fence(lost)
                fenced = lost
        except EverflowError as error:
            log.warning(
                (
                    "Transactions of instances that are gone could not be ended, their time-out "
                    "will: "
                    "%s"
                ),
                error,
            )
        if fenced:
            log.info(
                "Ended the open transactions of instances that are gone: %s", ", ".join(fenced)
            )
        return fenced
