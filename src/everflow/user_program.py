"""The user's program, as everflow shows it: its lines, its values and errors, its listeners."""

from __future__ import annotations

import difflib
import logging
import os
import re
import sys
import threading
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import FrameType

log = logging.getLogger("everflow")

_PACKAGE = str(Path(__file__).resolve().parent) + os.sep
_USER_SIDE = _PACKAGE + "cli"


def is_everflow(file: str) -> bool:
    """True if a source file is the library's; the commands count as the user's side."""
    return file.startswith(_PACKAGE) and not file.startswith(_USER_SIDE)


def user_line() -> str | None:
    """``file:line`` of the innermost frame outside the library; None where there is none."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if not _is_ours(frame) and not file.startswith("<frozen importlib"):
            return f"{file}:{frame.f_lineno}"
        frame = frame.f_back
    return None


def _is_ours(frame: FrameType) -> bool:
    """Code of the library; what `dataclasses` makes for it, which has no file, and calls."""
    file, module = frame.f_code.co_filename, str(frame.f_globals.get("__name__", ""))
    made = file == "<string>" and module.startswith("everflow.")
    return made or module == "dataclasses" or is_everflow(file)


def place(where: str) -> str:
    """``file:line`` as its reader knows it: in a notebook ``Cell In[4]:7``, where Jupyter's kernel
    has a file of its own."""
    file, _, line = where.rpartition(":")
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    named = getattr(getattr(shell, "compile", None), "format_code_name", lambda _: None)(file)
    return where if named is None else f"{' '.join(named)}:{line}"


def short(file: str, roots: Sequence[str]) -> str:
    """A file as its import names it, or by its last name: no folder of anybody's home is shown."""
    within = [root for root in roots if root and file.startswith(f"{root.rstrip('/')}/")]
    if not within:
        return file.rpartition("/")[2]
    longest = max(within, key=len)
    return file[len(longest.rstrip("/")) + 1 :]


MOST_TEXT = 2_000
"""Characters of an error's text that are passed on: a record may be in it."""


UNDECODED = (
    "the value is undecoded bytes; give the stream a serde, e.g. value=serdes.json('a "
    "string, b double')"
)
"""The error for a field of a value whose source has no serde."""


COLUMN_IN_FUNCTION = (
    "a Python function gets values, not Columns, and is called for each record: write v['amount'] "
    "> 1 and ... in it, or pass the "
    "Column itself, without the function: (F.col('value.amount') > 1) & (...)"
)
"""The error for ``F.col`` in a function."""


def writable(text: str) -> str:
    """``text`` as it can be written as UTF-8: half of a pair of surrogates as ``\\ud800``."""
    return text.encode("utf-8", "backslashreplace").decode()


_UNPRINTABLE = re.compile(
    "[\x00-\x1f\x7f-\x9f"  # C0, DEL, C1
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # which way text runs
    "\u2028\u2029\ufff9-\ufffb\U000e0000-\U000e007f\ud800-\udfff]"
)
"""What a terminal does not print but obeys, and what ends a line."""


def printable(text: str, keep: str = "\n\t") -> str:
    """``text`` with every control character but those in ``keep`` as JSON writes it (``\\u001b``):
    what a record says moves no cursor and forges no line. JSON stays the same JSON."""
    if text.isprintable():  # the usual case
        return text
    return _UNPRINTABLE.sub(
        lambda found: found[0] if found[0] in keep else _escaped(found[0]), text
    )


def one_line(text: str) -> str:
    """`printable`, without line breaks and tabs: for a part of a line."""
    return printable(text, keep="")


def _escaped(character: str) -> str:
    known = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}.get(character)
    if known is not None:
        return known
    units = character.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))


def shown(value: object, most: int = 200) -> str:
    """``repr(value)``, at most ``most`` characters of it; the class where that fails."""
    try:
        text = writable(repr(value))
    except BaseException as error:
        return f"<{type(value).__name__}, whose __repr__ raises {type(error).__name__}>"
    return text if len(text) <= most else f"{text[:most]}..."


def did_you_mean(name: object, known: Iterable[str]) -> str:
    """The end of a sentence about a wrong ``name``: the known one that is nearest, or nothing."""
    near = difflib.get_close_matches(str(name), list(known), n=1)
    return f"; did you mean {near[0]!r}?" if near else ""


def error_text(error: BaseException) -> str:
    """Class and message; what ends a program says that it does not end this one."""
    try:
        message = writable(str(error))
    except BaseException as failed:
        message = f"(its __str__ raises {type(failed).__name__})"
    text = f"{type(error).__name__}: {message}".removesuffix(": ")
    if isinstance(error, SystemExit | KeyboardInterrupt):
        text += (
            " (a function cannot end the application: raise an error, or call "
            "KafkaStreams.close from the program)"
        )
    return text if len(text) <= MOST_TEXT else f"{text[:MOST_TEXT]}..."


def class_of(error: BaseException) -> str:
    """An error's class with its module, ``json.decoder.JSONDecodeError``; Python's without."""
    kind = type(error)
    if kind.__module__ == "builtins":
        return kind.__qualname__
    return writable(f"{kind.__module__}.{kind.__qualname__}")


ANY_FAILURE = (Exception, SystemExit)
"""What the user's code raises that is called on a thread of everflow: ``sys.exit()`` there would
end that thread alone, and nobody would hear of it."""


class ListenerGuard:
    """Around a listener, any thread. Of a call's failures the 1st, 2nd, 4th, 8th... are logged."""

    def __init__(self, listener: str) -> None:
        self._listener = listener
        self._lock = threading.Lock()
        self._failures: Counter[str] = Counter()

    def tell(self, event: str, call: Callable[[], object]) -> None:
        try:
            call()
        except ANY_FAILURE as error:  # the user's code must not stop the instance
            with self._lock:
                self._failures[event] += 1
                count = self._failures[event]
            if count & (count - 1):
                return
            line = traceback.extract_tb(error.__traceback__)[-1]
            times = "" if count == 1 else f", for the {count}th time"
            log.error(
                "The %s failed in %s at %s:%s%s: %s. Processing goes on.",
                self._listener,
                event,
                line.filename,
                line.lineno,
                times,
                error_text(error),
                exc_info=True,
            )
