"""The command ``everflow``. Thin: every command loads, calls one part of the package, and prints.

`commands` has what they share: the decorator ``command``, options, errors, a cluster. `app` has
the short commands and imports the others. `program` finds the user's program.
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
    """The command ``everflow``: it owns the signals from before the imports to the very end."""
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
        # An interrupt that reached the library of commands, outside of all of them, ends with 1.
        sys.exit(signals.exit_code if end.code == 1 and signals.interrupted else end.code)
    finally:
        signals.over()


def _require_text(arguments: list[str]) -> None:
    """End the process for an argument that is not UTF-8: names and settings are UTF-8 in Kafka."""
    for argument in arguments:
        if any("\udc80" <= letter <= "\udcff" for letter in argument):
            shown = argument.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
            sys.stderr.write(f"error: the argument {shown} is not UTF-8\n")
            sys.exit(2)


def _thread_failed(failure: threading.ExceptHookArgs) -> None:
    if failure.exc_value is not None:
        name = "?" if failure.thread is None else failure.thread.name
        info = (failure.exc_type, failure.exc_value, failure.exc_traceback)
        logging.getLogger("everflow").error(
            "Thread %s failed: %r", name, failure.exc_value, exc_info=info
        )
