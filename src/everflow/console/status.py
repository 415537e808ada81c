"""The live progress line: redrawn on a terminal, elsewhere a plain line every few seconds."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console
from rich.status import Status
from rich.text import Text

from everflow.instance.client_state import LAST_STATES, STATE
from everflow.retry import telling
from everflow.user_program import printable

PLAIN_INTERVAL_S = 5.0
_TICK_S = 1.0


@dataclass(eq=False)
class StatusLine:
    """A context manager around a run. `show` and `say` may be called from different threads.

    Without a terminal a line is printed only if ``interval_s`` has passed since the last one and
    the text differs, so that an idle instance does not fill a log file. ``stamp``: the time that
    stands before each `event`, and before progress lines where there is no terminal.
    """

    console: Console
    interval_s: float = PLAIN_INTERVAL_S
    clock: Callable[[], float] = time.monotonic
    stamp: Callable[[], str] | None = None
    last_event: str = ""
    """The last `event`, for who shows how long it has been the last."""
    _lock: Any = field(default_factory=threading.RLock)
    _status: Status | None = None
    _printed_at: float | None = None
    _printed: str = ""
    _ended: bool = False
    _waits: list[object] = field(default_factory=list)

    @property
    def has_below(self) -> bool:
        return self.console.is_terminal

    def __enter__(self) -> StatusLine:
        return self

    def __exit__(self, *_: object) -> None:
        self._ended = True
        self.clear()

    def clear(self) -> None:
        """Take the live line away; the next `show` brings it back."""
        with self._lock:
            if self._status is not None:
                self._status.stop()
                self._status = None

    @contextmanager
    def waiting(self, what: str, *, after_s: float = 0.0) -> Iterator[None]:
        """While the block runs, show what is waited for and for how long: ``starting Spark, 5 s``.
        Nothing is shown of a wait shorter than ``after_s``; of nested ones the innermost is."""
        wait, first = object(), True
        self._waits.append(wait)

        def tell(elapsed_s: float) -> float:
            nonlocal first
            if self._waits[-1] is wait:
                self.show(f"{what}, {elapsed_s:.0f} s" if elapsed_s >= _TICK_S else what, now=first)
                first = False
            return _TICK_S

        try:
            with telling(tell, after_s, self.clock):
                yield
        finally:
            self._waits.remove(wait)
            self.clear()

    def say(self, text: str) -> None:
        """Print lasting lines as they are (above the live one)."""
        self.console.print(
            printable(text.removesuffix("\n")),
            markup=False,
            emoji=False,
            highlight=False,
            soft_wrap=True,
        )

    def line(self, text: str) -> None:
        """Take a line of an instance (`everflow.logs.lines_to`): an `event`, or a state."""
        with self._lock:
            if text.startswith(LAST_STATES):
                self._ended = True
                self.clear()
            if text.startswith(STATE):
                self.say(self._stamped(text))
            else:
                self.event(text)

    def event(self, text: str) -> None:
        self.last_event = text
        self.say(self._stamped(text))

    def _stamped(self, text: str) -> str:
        return text if self.stamp is None else f"{self.stamp()} {text}"

    def show(self, text: str, *, below: Sequence[str] = (), now: bool = False) -> None:
        """Replace the progress line, which may have several lines itself. ``below``: more lines, on
        a terminal only. ``now``: print it elsewhere, too, before the interval is over."""
        with self._lock:
            if self._ended:
                return
            if self.console.is_terminal:
                lines = printable("\n".join((text, *below)))
                live = Text(lines, no_wrap=True, overflow="ellipsis")
                if self._status is None:
                    self._status = self.console.status(live)
                    self._status.start()
                self._status.update(live)
                return
            at = self.clock()
            due = now or self._printed_at is None or at - self._printed_at >= self.interval_s
            if due and text != self._printed:
                self._printed_at, self._printed = at, text
                self.say(self._stamped(text))
