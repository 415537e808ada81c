"""A plugin of pytest shows what a test waits for.

The capture of a test's output would hide that Spark or a broker still starts.
"""

from __future__ import annotations

import sys
from functools import partial
from typing import Any

from everflow.retry import logged, shown_by


def pytest_configure(config: Any) -> None:
    """Show the waits of this run."""
    shown = shown_by(lambda what: logged(what, partial(_write, config)))
    shown.__enter__()
    config.add_cleanup(partial(shown.__exit__, None, None, None))


def _write(config: Any, line: str) -> None:
    """Above the report; the test's thread waits meanwhile, and so writes nothing."""
    reporter = config.pluginmanager.getplugin("terminalreporter")
    capture = config.pluginmanager.getplugin("capturemanager")
    if reporter is None:  # a worker of pytest-xdist
        return
    if capture is None:
        _report(reporter, line)
        return
    # The test's own, maybe; the capture puts its own there when it goes on.
    before = sys.stdout, sys.stderr
    with capture.global_and_fixture_disabled():
        _report(reporter, line)
    sys.stdout, sys.stderr = before


def _report(reporter: Any, line: str) -> None:
    reporter.ensure_newline()
    reporter.write_line(line)
    reporter.flush()
