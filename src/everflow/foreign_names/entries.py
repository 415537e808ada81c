"""What an entry of the tables of foreign names says."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, TypeAlias


class ForeignName(NamedTuple):
    """What a name of another API is here.

    ``here``: the attribute of the same class that does it, None where there is none. ``advice``:
    with ``here`` one expression as an example, else a sentence: what to do instead, or that it is
    not there yet.
    """

    here: str | None
    advice: str

    def __str__(self) -> str:
        return (
            self.advice
            if self.here is None
            else f"it is {self.here} here, for example {self.advice}"
        )


Names: TypeAlias = Mapping[str, ForeignName]


def is_called(here: str, example: str) -> ForeignName:
    """It is there under the name ``here`` (which may be the same one)."""
    return ForeignName(here, example)


def not_there(instead: str) -> ForeignName:
    """It is not there, or not a name of this class; ``instead`` says what does it, or what to do
    meanwhile."""
    return ForeignName(None, instead)
