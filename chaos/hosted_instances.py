"""Instances of programs in one process, one after the other or several, as a JVM takes longest to
start. The commands that need them have a module each, which says how a topology is made.

A line of standard input is an `Order` in JSON: an instance starts, or drains and leaves its group.
At the end of the input the process ends, and its instances with it.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from bench.apps.instance_app import Events
from chaos.elastic_instance import CLOSE_S, start
from chaos.noted_instance import log_to_standard_error
from everflow import KafkaStreams, Topology
from everflow.instance.client_state import ENDED, ClientState
from everflow.metrics import DROPPED_RECORDS

JOIN, LEAVE = "join", "leave"
LOOK_S = 0.5


class Order(NamedTuple):
    """``name``: of the instance in its application. ``given`` says what its topology is made of,
    ``settings`` are further ones of its own."""

    word: str
    name: str
    application: str
    given: Mapping[str, Any]
    settings: Mapping[str, Any]

    def __str__(self) -> str:
        return json.dumps(self)


def host(settings: Mapping[str, Any], path: Path, topology: Callable[..., Topology]) -> int:
    """Serve orders; 1 as soon as an instance fails. ``topology`` is called with what an order has
    given. Notes states (``member``) and dropped records (``dropped``) in ``path``
    (`bench.events`)."""
    log_to_standard_error()
    events = Events(path)
    members: dict[tuple[str, str], KafkaStreams] = {}

    def begin(order: Order, streams: KafkaStreams) -> None:
        try:
            start(streams)
        finally:
            if streams.state is ClientState.ERROR:
                traceback.print_exc()
                os._exit(1)
        threading.Thread(target=look, args=(order, streams), daemon=True).start()

    def look(order: Order, streams: KafkaStreams) -> None:
        pause, told = threading.Event(), 0.0
        while streams.state not in ENDED:
            told = tell_dropped(order, streams, told)
            pause.wait(LOOK_S)

    def tell_dropped(order: Order, streams: KafkaStreams, told: float = 0.0) -> float:
        now = float(streams.metrics().get(DROPPED_RECORDS, 0.0))
        if now > told:
            events.write("dropped", application=order.application, name=order.name, records=now)
        return max(now, told)

    def join(order: Order) -> None:
        own = {
            "application.id": order.application,
            "state.dir": f"{settings['state.dir']}/{order.name}",
            **order.settings,
        }
        streams = KafkaStreams(topology(**order.given), **{**settings, **own})
        members[order.application, order.name] = streams
        noted = {"application": order.application, "name": order.name}
        streams.set_state_listener(lambda new, _: events.write("member", **noted, state=new.name))
        threading.Thread(target=begin, args=(order, streams), daemon=True).start()

    def leave(order: Order, streams: KafkaStreams) -> None:
        tell_dropped(order, streams)
        streams.close(CLOSE_S, leave_group=True)

    for line in sys.stdin:
        order = Order(*json.loads(line))
        if order.word == JOIN:
            join(order)
        else:
            closing = members.pop((order.application, order.name))
            threading.Thread(target=leave, args=(order, closing), daemon=True).start()
    for streams in members.values():
        streams.close(CLOSE_S)
    return 0
