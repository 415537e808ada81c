"""Folders for Unix sockets: short, as a socket's path ends at 108 bytes, and private to this user."""

from __future__ import annotations

import os
import socket
import stat
import tempfile
import time
from pathlib import Path

LONGEST = 100
"""Bytes of a socket's path that work on Linux and macOS."""
ABANDONED_AFTER_S = 60.0
"""Younger folders may belong to a process that is just about to listen."""
_NAME_ROOM = 40
_SHORT_BASE = "/tmp"


def socket_folder(prefix: str = "ef") -> Path:
    """A new folder, mode 0700, in the temporary folder, or in the system's short one where that path is too long for sockets. The
    caller removes it. ``prefix``: of its name, a dozen characters at most."""
    return Path(tempfile.mkdtemp(prefix=prefix, dir=_base()))


def remove_abandoned(prefix: str, name: str, now_s: float | None = None) -> list[Path]:
    """Remove the socket folders with that prefix whose processes were killed: this user's, with nothing in them but a socket
    ``name`` that nobody listens on, or nothing at all. Gives those it removed; never raises. Only for sockets that may be
    connected to by anybody at any time."""
    before = (time.time() if now_s is None else now_s) - ABANDONED_AFTER_S
    removed = []
    for folder in Path(_base()).glob(f"{prefix}*"):
        try:
            found = folder.lstat()
            if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mtime > before:
                continue
            if _listened_on(folder / name):
                continue
            (folder / name).unlink(missing_ok=True)
            folder.rmdir()  # fails if anything else is in it
            removed.append(folder)
        except OSError:
            continue
    return removed


def _base() -> str:
    base = tempfile.gettempdir()
    return _SHORT_BASE if len(base.encode()) + _NAME_ROOM > LONGEST else base


def _listened_on(path: Path) -> bool:
    """False only where the system says that nobody does."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(str(path))
        except (FileNotFoundError, ConnectionRefusedError):
            return False
        except OSError:  # a full queue, no permission
            return True
    return True
