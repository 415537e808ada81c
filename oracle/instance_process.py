"""An instance of drawn programs, which `instances` starts, kills and ends: ``instance_process.py
PROGRAMS APPLICATION_ID BOOTSTRAP STATE_DIR``."""

from __future__ import annotations

import json
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT)]

from everflow import KafkaStreams, StreamsBuilder  # noqa: E402
from oracle.programs import Program, put_in  # noqa: E402


def main() -> None:
    programs, application_id, bootstrap, state_dir = sys.argv[1:]
    builder = StreamsBuilder()
    for program in json.loads(Path(programs).read_text()):
        put_in(builder, Program(**program))
    streams = KafkaStreams(
        builder.build(),
        application_id=application_id,
        bootstrap_servers=bootstrap,
        state_dir=state_dir,
        num_stream_threads=1,
        session_timeout_ms=6_000,
        emit_every_update=True,
        processing_guarantee="exactly_once_v2",
    )
    streams.set_state_listener(lambda new, old: print(f"state {new.name}", flush=True))
    streams.run()


if __name__ == "__main__":
    main()
