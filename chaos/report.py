"""What all chaos runs tell and leave, and how."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass
class ChaosReport:
    """The result in the format of all chaos runs."""

    rounds: int = 0
    seed: int = 0
    faults: dict[str, int] = field(default_factory=dict)
    lost: int = 0
    duplicated: int = 0
    stores_wrong: int = 0
    stores_wiped: int = 0

    @property
    def clean(self) -> bool:
        return not (self.lost or self.duplicated or self.stores_wrong or self.stores_wiped)


def tell(told: Mapping[str, Any], file: Path | None) -> None:
    """Print a result as JSON, and write it where that was asked for (``--json``)."""
    text = json.dumps(told, indent=1)
    print(text)
    if file is not None:
        file.write_text(text + "\n")


def unused_folder(text: str) -> Path:
    """Of ``--keep``: an earlier run's topics and state would be taken for this one's."""
    folder = Path(text)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise argparse.ArgumentTypeError(f"{text} holds something: name a new folder")
    return folder
