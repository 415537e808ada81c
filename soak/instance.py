"""One instance of the soak, in a process of its own: ``python -m soak.instance EVENTS SETTINGS``.

It notes states, tasks and dropped records (`bench.events`). A line on its standard input ends it:
it hands its tasks over and leaves.
"""

from __future__ import annotations

import json
import logging
import sys
import threading
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT)]

from bench.apps.instance_app import Events  # noqa: E402
from everflow import KafkaStreams  # noqa: E402
from everflow.metrics import DROPPED_RECORDS  # noqa: E402
from everflow.runtime.client_state import ENDED, ClientState  # noqa: E402
from soak.program import program  # noqa: E402

CLOSE_S = 120.0
LOOK_S = 1.0


def main(path: Path, settings: dict[str, Any]) -> int:
    """Run until told to end; 0 after a clean end."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(levelname)s %(message)s")
    for noisy in ("py4j", "kafka"):
        logging.getLogger(noisy).setLevel(logging.ERROR)
    events = Events(path)
    streams = KafkaStreams(program(settings["application.id"]), **settings)
    streams.set_state_listener(events.state)
    threading.Thread(target=events.follow_tasks, args=(streams,), daemon=True).start()

    def listen() -> None:
        sys.stdin.readline()
        streams.close(CLOSE_S, leave_group=True)

    threading.Thread(target=listen, daemon=True).start()
    streams.start()
    pause, dropped = threading.Event(), 0.0
    while streams.state not in ENDED:
        pause.wait(LOOK_S)
        now = float(streams.metrics().get(DROPPED_RECORDS, 0.0))
        if now != dropped:
            dropped = now
            events.write("dropped", records=now)
    return 0 if streams.state is ClientState.NOT_RUNNING else 1


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), json.loads(sys.argv[2])))
