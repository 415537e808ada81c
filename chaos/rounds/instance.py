"""One instance of the program, in a process of its own: ``python -m chaos.rounds.instance EVENTS
SETTINGS`` (`chaos.noted_instance`).

``EVERFLOW_CHAOS_MUTATION`` takes one of the product's guards away first (`chaos.rounds.mutations`).
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT)]

from chaos.noted_instance import log_to_standard_error, run_noted  # noqa: E402
from chaos.rounds import mutations  # noqa: E402
from chaos.rounds.program import program  # noqa: E402

LOOK_S = 0.1


def main(path: Path, settings: dict[str, Any]) -> int:
    """Run until told to end; 0 after a clean end."""
    log_to_standard_error()
    mutations.mutate_here()
    return run_noted(program(settings["application.id"]), path, settings, LOOK_S)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), json.loads(sys.argv[2])))
