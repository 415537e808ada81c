"""``python -m everflow.cli.packed_stores MODULE:NAME APPLICATION OPTIMIZATION FILE``.

Writes the stores of a program into a file, packed as a worker opens them: for whoever must not have
a Spark in its own process (`everflow.snapshots.state_source`).
"""

from __future__ import annotations

import sys
from pathlib import Path

from everflow.cli.program import load_topology
from everflow.errors import EverflowError
from everflow.snapshots.logged_stores import logged_stores
from everflow.spark.session import get_context
from everflow.travel.parcel import Parcel


def main(target: str, application_id: str, optimization: str, file: str) -> int:
    """The exit code; what is wrong with the program is said on stderr."""
    try:
        topology = load_topology(target, start_spark=get_context)
        stores = logged_stores(topology, application_id, optimization)
        Path(file).write_bytes(Parcel.of(stores).data)
    except EverflowError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
