"""docs/guide/reference.md: every public name, made from today's docstrings."""

from collections import Counter

import everflow.client
from everflow.foreign_names import OWN
from reference_page import PAGE, SECTIONS, entries, found, made, public_names


def test_the_page_is_made_from_the_docstrings_of_today() -> None:
    assert PAGE.read_text() == made(), "run .venv/bin/python tests/reference_page.py"


def test_every_public_name_has_one_entry() -> None:
    listed = Counter(entries())
    in_a_section = {name for section in SECTIONS for name in section.names.split()}
    errors = {
        name
        for name in (*everflow.__all__, *everflow.client.__all__)
        if isinstance(found(name), type) and issubclass(found(name), Exception)
    }
    assert public_names() - errors <= in_a_section, "see tests/reference_page.py"
    assert [name for name, times in listed.items() if times > 1] == []


def test_what_is_left_out_exists() -> None:
    assert [
        name for name in OWN if not hasattr(found(name.partition(".")[0]), name.partition(".")[2])
    ] == []


def test_every_entry_says_something_and_no_signature_shows_an_object() -> None:
    rows = [
        line
        for line in PAGE.read_text().splitlines()
        if line.startswith(("- `", "`")) and ": " in line
    ]
    assert len(rows) > 150
    assert [row for row in rows if len(row.partition(": ")[2].split()) < 2] == []
    assert [
        row for row in rows if " object at 0x" in row or "<function" in row or "<factory>" in row
    ] == []
