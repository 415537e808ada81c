"""The life of an instance in a process of its own, as the commands of chaos and soak start it."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench.apps.instance_app import Events
from chaos.elastic_instance import BOUNCE, CLOSE_S, start
from everflow import KafkaStreams, Topology
from everflow.instance.client_state import ENDED, ClientState
from everflow.metrics import DROPPED_RECORDS


def log_to_standard_error() -> None:
    """everflow's lines; of the clients those that warn."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(levelname)s %(message)s")
    logging.getLogger("py4j").setLevel(logging.ERROR)
    logging.getLogger("kafka").setLevel(logging.WARNING)


def run_noted(topology: Topology, path: Path, settings: Mapping[str, Any], look_s: float) -> int:
    """Run until told to end; 0 after a clean end.

    Notes states, tasks and, each ``look_s`` seconds, dropped records in the file ``path``
    (`bench.events`). A line on the standard input ends it: ``bounce`` silently, anything else by
    leaving the group.
    """
    events = Events(path)
    streams = KafkaStreams(topology, **settings)
    streams.set_state_listener(events.state)
    threading.Thread(target=events.follow_tasks, args=(streams,), daemon=True).start()

    def listen() -> None:
        told = sys.stdin.readline().strip()
        streams.close(CLOSE_S, leave_group=told != BOUNCE)

    threading.Thread(target=listen, daemon=True).start()
    start(streams)
    pause, dropped = threading.Event(), 0.0
    while streams.state not in ENDED:
        pause.wait(look_s)
        now = float(streams.metrics().get(DROPPED_RECORDS, 0.0))
        if now != dropped:
            dropped = now
            events.write("dropped", records=now)
    return 0 if streams.state is ClientState.NOT_RUNNING else 1
