"""Codes that are cited (D6, I4, "reference 1.6", "note 005") exist; the index has every note."""

import re
from pathlib import Path

import pytest

from changed_tests import FOLDERS

ROOT = Path(__file__).parents[2]
NOTES = ROOT / "docs" / "design"
DICTIONARY = NOTES / "000-the-design.md"
INDEX = NOTES / "README.md"

_HEADING = re.compile(r"^### (.+)$", re.MULTILINE)
_LINK = re.compile(
    r"^\| \[(\d{3}) [^\]]+\]\((\d{3}-[a-z-]+\.md)\) \| (\S[^|]*) \| \d{4}-\d{2} \| \S[^|]* \|$",
    re.MULTILINE,
)
# A code stands alone: not in a name, a file's number, a hexadecimal text or a KIP's.
_CODE = re.compile(r"(?<![\w.`/-])([DIX]\d{1,2})(?![\w.]*[\w-])")
_SECTION = re.compile(r"\b(reference|design) (?:section )?(\d(?:\.\d)?)(?: and (\d\.\d))?\b")
_NOTE = re.compile(r"\bnote (\d{3})\b")


def anchors() -> set[str]:
    """What the dictionary defines, in lower case."""
    return {found.lower() for found in _HEADING.findall(DICTIONARY.read_text())}


def cited(text: str) -> set[str]:
    """The codes in a text, as the dictionary's headings spell them."""
    found = {code.lower() for code in _CODE.findall(text)}
    for kind, *numbers in _SECTION.findall(text):
        found |= {
            f"{'reference' if kind == 'reference' else 'design section'} {number}"
            for number in numbers
            if number
        }
    return found


def _files() -> list[Path]:
    return sorted(
        p
        for folder in (*FOLDERS, "docs")
        for suffix in ("py", "md")
        for p in (ROOT / folder).rglob(f"*.{suffix}")
    )


FILES = [path for path in _files() if path != Path(__file__)]


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_code_that_is_cited_is_in_the_dictionary(path: Path) -> None:
    assert cited(path.read_text()) - anchors() == set(), (
        f"define it in {DICTIONARY.name}, or say it in words"
    )


def test_every_note_that_is_cited_exists() -> None:
    numbers = {note.name[:3] for note in NOTES.glob("[0-9]*.md")}
    wrong = {
        (str(path.relative_to(ROOT)), found)
        for path in FILES
        for found in _NOTE.findall(path.read_text())
    }
    assert {place for place in wrong if place[1] not in numbers} == set()


def test_the_index_has_every_note_once_with_status_and_date() -> None:
    rows = _LINK.findall(INDEX.read_text())
    assert [name for _, name, _ in rows] == sorted(note.name for note in NOTES.glob("[0-9]*.md"))
    assert all(name.startswith(number) for number, name, _ in rows)


def test_every_definition_is_used() -> None:
    used = set().union(*(cited(path.read_text()) for path in FILES if path != DICTIONARY))
    unused = {anchor for anchor in anchors() if anchor not in used}
    assert unused <= {"d12", "i7"}, (
        "the decisions and invariants are a whole; a reference is there to be cited"
    )
