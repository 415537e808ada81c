"""Prints the rows of ``print_table`` where the instance runs.

Now and then, from a thread of its own, so that nothing waits for a terminal.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from everflow.runtime.commit.batch import Printed

PRINTED_EVERY_S = 0.5
"""How often a table is printed at most; each time as many rows as ``print_table`` was told."""
HEAD_EVERY = 40
"""After so many rows the head is printed again."""


@dataclass
class TableText:
    """Lines of tables, with columns that keep their widths as long as they do. Not thread-safe."""

    _last: tuple[str, Sequence[str]] | None = None
    _since_head: int = 0
    _widths: list[int] = field(default_factory=list)

    def lines(self, printed: Printed) -> list[str]:
        """The rows as lines; with a head where another table stood before, or none for long."""
        needed = [
            max(len(row[at]) for row in (printed.columns, *printed.rows))
            for at in range(len(printed.columns))
        ]
        this = printed.title, tuple(printed.columns)
        grown = this == self._last and any(
            want > have for want, have in zip(needed, self._widths, strict=True)
        )
        found = []
        if this != self._last or grown or self._since_head >= HEAD_EVERY:
            self._widths = (
                [max(pair) for pair in zip(needed, self._widths, strict=True)] if grown else needed
            )
            self._last, self._since_head = this, 0
            found = [f"--- {printed.title}", self._line(printed.columns)]
        found += [self._line(row) for row in printed.rows]
        self._since_head += len(printed.rows)
        if printed.left_out:
            found.append(f"... and {printed.left_out:,} more")
        return found

    def _line(self, cells: Sequence[str]) -> str:
        padded = (text.ljust(width) for text, width in zip(cells, self._widths, strict=True))
        return "  ".join(padded).rstrip()


class TablePrinter:
    """Prints tables from a thread of its own, now and then. `add` may be called from any thread and
    never waits."""

    def __init__(self, write: Callable[[str], object]) -> None:
        self._write = write
        self._text = TableText()
        self._pending: dict[tuple[str, tuple[str, ...]], Printed] = {}
        self._guard, self._writing = threading.Lock(), threading.Lock()
        self._some = threading.Event()
        self._thread: threading.Thread | None = None

    def add(self, printed: Iterable[Printed]) -> None:
        """Rows of a batch that was committed."""
        with self._guard:
            for one in printed:
                place = one.title, tuple(one.columns)
                before = self._pending.get(place)
                self._pending[place] = one if before is None else before.with_later(one)
            if self._pending and (self._thread is None or not self._thread.is_alive()):
                self._thread = threading.Thread(
                    target=self._run, name="everflow-print-table", daemon=True
                )
                self._thread.start()
        self._some.set()

    def flush(self) -> None:
        """Print what is there, now; it may wait for the terminal."""
        with self._writing:
            with self._guard:
                pending, self._pending = self._pending, {}
            lines = [line for one in pending.values() for line in self._text.lines(one)]
            if lines:
                self._write("\n".join(lines) + "\n")

    @contextmanager
    def written_by(self, write: Callable[[str], object]) -> Iterator[None]:
        """While the block runs, who has the terminal writes the rows, as a live line stands there;
        what has not been printed at its end is."""
        before = self._swap(write)
        try:
            yield
        finally:
            self.flush()
            self._swap(before)

    def _swap(self, write: Callable[[str], object]) -> Callable[[str], object]:
        with self._writing:
            before, self._write = self._write, write
        return before

    def _run(self) -> None:
        pause = threading.Event()
        while True:
            self._some.wait()
            self._some.clear()
            self.flush()
            pause.wait(PRINTED_EVERY_S)


def _to_stdout(text: str) -> None:
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except (OSError, ValueError):
        return  # closed, or nobody reads it any more


tables = TablePrinter(_to_stdout)
"""What this process prints: the instances in it share one terminal."""
