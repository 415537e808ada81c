"""docs/guide/configuration.md has tables made from the code: every key has a text, every text a
key."""

from __future__ import annotations

from collections import Counter

import pytest

from configuration_page import FIELDS, PREFIXES, TEXTS
from everflow import StreamsConfig
from everflow.config import (
    CLIENT_PREFIXES,
    SHARED_PREFIXES,
    TAG_PREFIX,
    WITHOUT_EFFECT,
    dotted_name,
)
from made_pages import GUIDE

BASE = {"application_id": "app", "bootstrap_servers": "broker:9092"}


def test_every_key_has_one_text_and_every_text_a_key() -> None:
    written = Counter(name for texts in TEXTS.values() for name in texts)
    assert written == Counter(FIELDS.keys()), "write the key's text in tests/settings.yaml"


def test_texts_say_something_and_can_stand_in_a_table() -> None:
    for texts in TEXTS.values():
        for name, text in texts.items():
            assert len(text) in (1, 2), name
            assert len(text[0].split()) >= 3, name
            assert not set("|\n") & set("".join(text)), name


def test_every_beginning_of_a_clients_key_is_explained() -> None:
    assert set(PREFIXES) == {*CLIENT_PREFIXES, *SHARED_PREFIXES, TAG_PREFIX}


@pytest.mark.parametrize("name", sorted(FIELDS))
def test_every_key_can_be_written_as_the_page_writes_it(name: str) -> None:
    value = getattr(StreamsConfig(**BASE), name)
    assert getattr(StreamsConfig(**{**BASE, name: value}), name) == value
    dotted = {dotted_name(key): given for key, given in {**BASE, name: value}.items()}
    assert getattr(StreamsConfig(**dotted), name) == value


def test_who_sets_a_key_without_effect_is_told_what_the_page_says() -> None:
    shown = (GUIDE / "configuration.md").read_text()
    for name, instead in WITHOUT_EFFECT.items():
        config = StreamsConfig(**BASE, **{name: getattr(StreamsConfig(**BASE), name)})
        assert [instead in warning for warning in config.warnings()] == [True]
        assert instead in shown
