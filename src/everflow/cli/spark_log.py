"""Spark's own log, kept out of the terminal: the JVM and the Python workers write to a file instead of our stderr.

They inherit file descriptor 2 of the process that starts them, and nothing in Spark's settings covers what
the JVM says before its logging is set up.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from everflow.errors import ConfigError, TopologyError

StartSession = Callable[[], object]


@contextmanager
def spark_log(start_session: StartSession, *, show: bool) -> Iterator[StartSession]:
    """Gives ``start_session`` wrapped, so that what it starts has its stderr in a temporary file.

    The file is deleted at the end, but after a failure that Spark may say more about it is kept and named
    on stderr. With ``show`` nothing is redirected. Call the wrapped function from the main thread while no
    other one writes to stderr: for the moment of the start the redirection is the whole process's.
    """
    if show:
        yield start_session
        return
    descriptor, name = tempfile.mkstemp(prefix="everflow-spark-", suffix=".log")
    path = Path(name)

    def start() -> object:
        sys.stderr.flush()
        before = os.dup(2)
        os.dup2(descriptor, 2)
        try:
            return start_session()
        finally:
            os.dup2(before, 2)
            os.close(before)

    keep = False
    try:
        yield start
    except (ConfigError, TopologyError):
        raise
    except Exception:
        keep = path.stat().st_size > 0
        raise
    finally:
        os.close(descriptor)
        if keep:
            print(f"Spark's log is in {path}", file=sys.stderr)
        else:
            path.unlink(missing_ok=True)
