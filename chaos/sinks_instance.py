"""Instances of programs of `chaos.sink_places` in one process, as a JVM takes longest to start.

``python -m chaos.sinks_instance EVENTS SETTINGS``. A line of standard input is an `Order` in JSON:
an instance starts, or drains and leaves its group. At the end of the input the process ends, and
its instances with it.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import traceback
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from bench.apps.instance_app import Events  # noqa: E402
from chaos.elastic_instance import CLOSE_S, start  # noqa: E402
from chaos.noted_instance import log_to_standard_error  # noqa: E402
from chaos.sink_places import Place  # noqa: E402
from everflow import KafkaStreams  # noqa: E402
from everflow.instance.client_state import ClientState  # noqa: E402

JOIN, LEAVE = "join", "leave"


class Order(NamedTuple):
    """``kind`` and ``at`` are those of the `Place` of the instance's program; its application is
    named after the kind."""

    word: str
    name: str
    kind: str
    at: str

    def __str__(self) -> str:
        return json.dumps(self)


def main(path: Path, settings: dict[str, Any]) -> int:
    """1 as soon as an instance fails."""
    log_to_standard_error()
    events = Events(path)
    members: dict[tuple[str, str], KafkaStreams] = {}

    def note(order: Order, new: ClientState) -> None:
        events.write("member", kind=order.kind, name=order.name, state=new.name)

    def begin(streams: KafkaStreams) -> None:
        try:
            start(streams)
        finally:
            if streams.state is ClientState.ERROR:
                traceback.print_exc()
                os._exit(1)

    def join(order: Order) -> None:
        application = application_of(order.kind)
        topology = Place(order.kind, order.at).program(f"{application}-in").build()
        own = {
            "application.id": application,
            "state.dir": f"{settings['state.dir']}/{order.name}",
            "group.instance.id": order.name,
        }
        streams = members[order.kind, order.name] = KafkaStreams(topology, **{**settings, **own})
        streams.set_state_listener(lambda new, _: note(order, new))
        threading.Thread(target=begin, args=(streams,), daemon=True).start()

    for line in sys.stdin:
        order = Order(*json.loads(line))
        if order.word == JOIN:
            join(order)
        else:
            closing = members.pop((order.kind, order.name))
            threading.Thread(target=closing.close, args=(CLOSE_S, True), daemon=True).start()
    for streams in members.values():
        streams.close(CLOSE_S)
    return 0


def application_of(kind: str) -> str:
    return f"chaos-{kind}"


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), json.loads(sys.argv[2])))
