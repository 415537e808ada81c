"""Readers of changelogs with connections of their own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from everflow.config import StreamsConfig
from everflow.kafka.admin import ClusterAdmin
from everflow.kafka.reading.log_reader import LogReader
from everflow.snapshots.logged_stores import LoggedStore
from everflow.snapshots.snapshot import room
from everflow.snapshots.state_parts import PartReader
from everflow.snapshots.state_reader import StateReader

REACH_S = 20.0
"""As long as the commands wait."""


@contextmanager
def reading(
    store: LoggedStore, config: StreamsConfig, folder: Path | None
) -> Iterator[StateReader]:
    """Of the whole store. TaskTimeoutError where no broker answers within ``REACH_S`` seconds."""
    with closing(ClusterAdmin(config.admin())) as admin:
        admin.wait_until_reachable(REACH_S)
        with LogReader(config.consumer(), latest=True) as reader:
            yield StateReader(store=store, admin=admin, reader=reader, folder=folder)


@contextmanager
def reading_parts(
    store: LoggedStore, config: StreamsConfig, folder: Path | None
) -> Iterator[PartReader]:
    """Of parts that somebody else has looked for."""
    with room(folder) as home, LogReader(config.consumer(), latest=True) as reader:
        yield PartReader(store, reader, home)
