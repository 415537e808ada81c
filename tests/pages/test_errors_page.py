"""docs/guide/errors.md has a paragraph for every error code in the code, and for no other."""

import ast
import re
from pathlib import Path

import pytest

import everflow
from everflow.errors import ConfigError, EverflowError, SetupError, TopologyError

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "guide" / "errors.md").read_text()
CODE = re.compile(r"EF-[A-Z]+(?:-[A-Z]+)*")
BASES = {"EverflowError", "RetriableError"}
"""What a class that is not public is called on the page: what a user may catch."""
SECTIONS = dict(re.findall(r"^### (\S+)\n(.*?)(?=^##|\Z)", PAGE, re.MULTILINE | re.DOTALL))


def codes(source: str) -> set[str]:
    texts = (
        node.value
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    )
    return {text for text in texts if CODE.fullmatch(text)}


SOURCES = [path for folder in ("src", "demo") for path in (ROOT / folder).rglob("*.py")]
IN_CODE = set().union(*(codes(path.read_text()) for path in SOURCES))


def classes(source: str) -> dict[str, str | None]:
    """Names of the classes in Python code -> the code that stands in their body or their head."""
    return {
        node.name: next(
            (
                text
                for part in (*node.body, *node.keywords)
                if isinstance(part, ast.Assign | ast.keyword)
                for text in codes(ast.unparse(getattr(part, "value", part)))
            ),
            None,
        )
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.ClassDef)
    }


CODE_OF = {name: code for path in SOURCES for name, code in classes(path.read_text()).items()}


def test_every_code_has_a_paragraph_and_every_paragraph_a_code() -> None:
    assert sorted(IN_CODE - SECTIONS.keys()) == [], "write their paragraphs in docs/guide/errors.md"
    assert sorted(SECTIONS.keys() - IN_CODE) == [], "these codes are gone"
    assert len(re.findall(r"^### ", PAGE, re.MULTILINE)) == len(SECTIONS), (
        "a code has two paragraphs"
    )


@pytest.mark.parametrize("code", sorted(SECTIONS))
def test_a_paragraph_says_what_it_means_its_cause_its_cure_and_whether_it_passes(code: str) -> None:
    text = SECTIONS[code].lower()
    assert re.search(r"\*\*means:\*\* .*\*\*cause:\*\* .*\*\*cure:\*\* ", text, re.DOTALL)
    assert (
        "passes by itself" in text.splitlines()[1]
        or "does not pass by itself" in text.splitlines()[1]
    )


@pytest.mark.parametrize("code", sorted(SECTIONS))
def test_the_class_that_is_named_exists_and_its_exit_code_is_the_command_s(code: str) -> None:
    line = SECTIONS[code].splitlines()[1]
    named = re.match(r"`(\w+)`", line)
    if named is None:
        assert line.startswith("no class")
        return
    name = named[1]
    assert name in CODE_OF, f"there is no class {name}"
    owners = {owner for owner, own in CODE_OF.items() if own == code}
    assert not owners or name in owners or name in BASES, f"the class with this code is {owners}"
    usage = issubclass(
        getattr(everflow.errors, name, EverflowError), ConfigError | TopologyError | SetupError
    )
    exit_code = re.search(r"exit code (\d)", line)
    assert exit_code is None or code == "EF-SERDE" or int(exit_code[1]) == (2 if usage else 1)


def test_a_code_is_found_wherever_it_stands() -> None:
    assert codes('class E:\n    code = "EF-ONE"\nraise E("see EF-TWO", code="EF-THREE")') == {
        "EF-ONE",
        "EF-THREE",
    }
