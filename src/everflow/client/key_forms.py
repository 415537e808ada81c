"""The JSON forms of a store's keys: the query service refuses others, its client sends none."""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Integral, Real
from typing import Any, Final

from everflow.user_program import shown

TEXT: Final = "text"
BYTES: Final = "bytes"
"""Base64 in JSON."""
WHOLE: Final = "integer"
NUMBER: Final = "number"
TRUTH: Final = "boolean"
OBJECT: Final = "object"
LIST: Final = "list"
OTHER: Final = "other"
"""Times, decimals, maps: whatever their reader takes."""

_FORMS: Mapping[str, tuple[tuple[type, ...], str]] = {
    TEXT: ((str,), "text"),
    BYTES: ((str, bytes), "bytes, which are base64 in JSON"),
    WHOLE: ((Integral,), "a whole number"),
    NUMBER: ((Real,), "a number"),
    TRUTH: ((bool,), "true or false"),
    OBJECT: ((Mapping,), "an object with the key's fields"),
    LIST: ((list, tuple), "a list"),
    OTHER: ((object,), ""),
}
"""By form: the classes of its values, and what it is in words."""


def refusal(store: str, keys: str, form: str, key: Any) -> str | None:
    """Why ``key`` does not fit a store with keys of ``form`` (in words ``keys``); None: it does."""
    if key is None:
        return f"Keys of store {store!r} are {keys}, never null."
    classes, expected = _FORMS[form]
    if isinstance(key, classes) and (not isinstance(key, bool) or form in (TRUTH, OTHER)):
        return None
    return (
        f"Keys of store {store!r} are {keys}: expected {expected}, found "
        f"{type(key).__name__} {shown(key, 100)}"
    )
