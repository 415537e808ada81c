"""The command ``everflow``. Thin: every command loads, calls one part of the package, and prints.

`app` puts the commands together; each has a module with a ``register``: `run`, `topics`,
`record_commands`, `simulate`, `new_project`, those of the room `watching`. `usage` answers a line
that cannot be read. A program is found by `program` (and looked into by `program_source`), a
cluster by `cluster`; what they show on a terminal is in `console`.
May import everything; nothing below imports it. Modules that need Spark or a client are imported
when a command needs them.
"""

from __future__ import annotations

import logging
import sys
import threading

from everflow.stop_signals import StopRequestedError, StopSignals

__all__ = ["main"]


def main() -> None:
    """Entry point of the ``everflow`` command: it owns the signals from before the imports to the
    end of the process."""
    signals = StopSignals().install()
    threading.excepthook = _thread_failed
    try:
        from everflow.cli.app import app

        _require_text(sys.argv[1:])
        app()
    except StopRequestedError:
        sys.stderr.write("stopping: nothing had begun\n")
        sys.exit(signals.exit_code)
    except SystemExit as end:
        # An interrupt that reached the library of commands, outside of all of them, ends there with
        # 1.
        sys.exit(signals.exit_code if end.code == 1 and signals.interrupted else end.code)
    finally:
        signals.over()


def _require_text(arguments: list[str]) -> None:
    """Bytes that are no text in this locale cannot be told to a broker: names and settings are
    UTF-8 there."""
    for argument in arguments:
        if any("\udc80" <= letter <= "\udcff" for letter in argument):
            shown = argument.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
            sys.stderr.write(f"error: the argument {shown} is not UTF-8\n")
            sys.exit(2)


def _thread_failed(failure: threading.ExceptHookArgs) -> None:
    """Its traceback goes where all of them go."""
    if failure.exc_value is not None:
        name = "?" if failure.thread is None else failure.thread.name
        info = (failure.exc_type, failure.exc_value, failure.exc_traceback)
        logging.getLogger("everflow").error(
            "Thread %s failed: %r", name, failure.exc_value, exc_info=info
        )
