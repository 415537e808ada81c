"""Folders for Unix sockets: short, as a socket's path ends at 108 bytes, and private to this user."""

from __future__ import annotations

import tempfile
from pathlib import Path

LONGEST = 100
"""Bytes of a socket's path that work on Linux and macOS."""
_NAME_ROOM = 40
_SHORT_BASE = "/tmp"


def socket_folder() -> Path:
    """A new folder, mode 0700, in the temporary folder, or in the system's short one where that path is too long for sockets. The
    caller removes it."""
    base = tempfile.gettempdir()
    if len(base.encode()) + _NAME_ROOM > LONGEST:
        base = _SHORT_BASE
    return Path(tempfile.mkdtemp(prefix="ef", dir=base))
