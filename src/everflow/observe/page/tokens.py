"""Whether a request comes with one of the tokens that are asked for."""

from __future__ import annotations

import base64
import binascii
import hmac
from collections.abc import Sequence

ASKS = {"WWW-Authenticate": 'Basic realm="everflow: any name, and the token as the password"'}


def allowed(tokens: Sequence[bytes], header: str) -> bool:
    """``header``: the request's ``Authorization``: ``Bearer TOKEN`` of a program, or what a browser
    sends for a name and the token as the password. Without tokens everybody may."""
    if not tokens:
        return True
    kind, _, given = header.partition(" ")
    text = given.strip().encode()
    if kind.lower() == "basic":
        try:
            text = base64.b64decode(text, validate=True).partition(b":")[2]
        except (binascii.Error, ValueError):
            return False
    elif kind.lower() != "bearer":
        return False
    found = [hmac.compare_digest(text, token) for token in tokens]
    return any(found)
