"""How a value or an error that the user's code made is shown, whatever its own methods do."""

from __future__ import annotations

import re

MOST_TEXT = 2_000
"""Characters of an error's text that are passed on: a record may be in it."""


UNDECODED = (
    "the value is undecoded bytes; give the stream a serde, e.g. value=serdes.json('a "
    "string, b double')"
)
"""For whoever takes a field of a value whose source has no serde."""


COLUMN_IN_FUNCTION = (
    "a Python function gets values, not Columns, and is called for each record: write v['amount'] "
    "> 1 and ... in it, or pass the "
    "Column itself, without the function: (F.col('value.amount') > 1) & (...)"
)
"""For whoever uses ``F.col`` in a function."""


def writable(text: str) -> str:
    """``text`` as it can be written as UTF-8, whatever a user's code put into it: half of a pair of
    surrogates, as from broken JSON or a file's name, as ``\\ud800``."""
    return text.encode("utf-8", "backslashreplace").decode()


_UNPRINTABLE = re.compile(
    "[\x00-\x1f\x7f-\x9f"  # C0, DEL, C1
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # which way text runs
    "\u2028\u2029\ufff9-\ufffb\U000e0000-\U000e007f\ud800-\udfff]"
)
"""What a terminal does not print but obeys, and what ends a line."""


def printable(text: str, keep: str = "\n\t") -> str:
    """``text`` with every control character written as JSON writes it (``\\u001b``), but for those
    in ``keep``: what a record, a serde or a client says of itself moves no cursor, hides no line
    and forges none. JSON stays the same JSON."""
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
    """Its class with the module, as in ``json.decoder.JSONDecodeError``; Python's own without."""
    kind = type(error)
    if kind.__module__ == "builtins":
        return kind.__qualname__
    return writable(f"{kind.__module__}.{kind.__qualname__}")
