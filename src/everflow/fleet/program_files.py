"""Packs the user's program for the hosts."""

from __future__ import annotations

import importlib.util
import zipfile
from collections.abc import Sequence
from pathlib import Path

from everflow.errors import ConfigError

INSTALLED = ("site-packages", "dist-packages")
LEFT_OUT = "__pycache__"


def source_of(module: str) -> Path | None:
    """The file of ``module``, or the folder of its package; None where it is installed, as it then
    is on the hosts, too."""
    spec = importlib.util.find_spec(module.partition(".")[0])
    if spec is None:
        return None
    if spec.submodule_search_locations:
        found = Path(next(iter(spec.submodule_search_locations)))
    elif spec.has_location and spec.origin is not None:
        found = Path(spec.origin)
    else:
        return None
    return None if set(INSTALLED) & set(found.parts) else found


def pack(module: str, more: Sequence[Path], to: Path) -> list[str]:
    """Write the program and ``more`` files and folders to the archive ``to``; the names at its top,
    in the folder that the program then runs in. ConfigError for one that is not there."""
    source = source_of(module)
    parts = [*([source] if source is not None else []), *more]
    with zipfile.ZipFile(to, "w", zipfile.ZIP_DEFLATED) as packed:
        for part in parts:
            if not part.exists():
                raise ConfigError(f"--files {part}: there is no such file or folder")
            for file in [part] if part.is_file() else sorted(part.rglob("*")):
                if file.is_file() and LEFT_OUT not in file.parts:
                    packed.write(file, file.relative_to(part.parent))
    return [part.name for part in parts]
