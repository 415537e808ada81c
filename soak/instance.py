"""One instance of the soak, in a process of its own: ``python -m soak.instance EVENTS SETTINGS``
(`chaos.noted_instance`)."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT)]

from chaos.noted_instance import log_to_standard_error, run_noted  # noqa: E402
from soak.program import program  # noqa: E402

LOOK_S = 1.0


def main(path: Path, settings: dict[str, Any]) -> int:
    """Run until told to end; 0 after a clean end."""
    log_to_standard_error()
    return run_noted(program(settings["application.id"]), path, settings, LOOK_S)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), json.loads(sys.argv[2])))
