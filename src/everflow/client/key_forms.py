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

_CLASSES: Mapping[str, tuple[type, ...]] = {
    TEXT: (str,),
    BYTES: (str, bytes),
    WHOLE: (Integral,),
    NUMBER: (Real,),
    TRUTH: (bool,),
    OBJECT: (Mapping,),
    LIST: (list, tuple),
    OTHER: (object,),
}
_EXPECTED: Mapping[str, str] = {
    TEXT: "text",
    BYTES: "bytes, which are base64 in JSON",
    WHOLE: "a whole number",
    NUMBER: "a number",
    TRUTH: "true or false",
    OBJECT: "an object with the key's fields",
    LIST: "a list",
}


def refusal(store: str, keys: str, form: str, key: Any) -> str | None:
    """Why ``key`` is none of the store's, which are of a ``form`` and ``keys`` in words; None: it
    is one. A number that stands in a text is a text."""
    if key is None:
        return f"Keys of store {store!r} are {keys}, never null."
    if isinstance(key, _CLASSES[form]) and (not isinstance(key, bool) or form in (TRUTH, OTHER)):
        return None
    return (
        f"Keys of store {store!r} are {keys}: expected {_EXPECTED[form]}, found "
        f"{type(key).__name__} {shown(key, 100)}"
    )
