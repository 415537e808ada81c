"""A process that sends orders at one pace until its standard input ends:
`python -m bench.migrate.sender ...`. The time of each record is the moment when it is due."""

from __future__ import annotations

import json
import time

from bench.load.steady_sender import parser, run
from bench.migrate.orders import row_of, time_ms

METADATA_MS = 500
"""So soon it writes to partitions that a topic has got."""


def main() -> None:
    """First write `began_ms`, the time of the first record, as JSON."""
    options = parser()
    options.add_argument("--began-file", required=True)
    given = options.parse_args()
    rate, began_ms = round(given.rate), time.time_ns() // 1_000_000
    with open(given.began_file, "w") as file:
        json.dump({"began_ms": began_ms}, file)
    run(
        given,
        lambda number: (*row_of(number, given.keys, rate), time_ms(number, rate, began_ms)),
        {"topic.metadata.refresh.interval.ms": METADATA_MS},
    )


if __name__ == "__main__":
    main()
