"""Modules, classes and functions that the pages for maintainers name are there, and where the pages
say."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from changed_tests import FOLDERS

ROOT = Path(__file__).parents[2]
NOTES = ROOT / "docs" / "design"
HOLDS = re.findall(
    r"^\| \[[^\]]+\]\((\S+)\) \| holds", (NOTES / "README.md").read_text(), re.MULTILINE
)
PAGES = [
    ROOT / "CONTRIBUTING.md",
    ROOT / "STYLE.md",
    ROOT / "RELEASING.md",
    ROOT / "docs" / "ARCHITECTURE.md",
    *(NOTES / name for name in HOLDS),
]
SOURCES = sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))
SOURCES.remove(Path(__file__))

OTHERS = {
    "005-elastic.md": {"StreamsPartitionAssignor"},  # Kafka Streams'
    "009-functions-travel.md": {"queue.py", "register_pickle_by_value"},
    "014-columns-in-the-step.md": {"UnsafeProjection"},  # Spark's
}
"""Names of others, and of examples."""

_SPAN = re.compile(r"`([^`\n]+)`")
_PLACE = re.compile(r"([\w/.]*\w\.py)(?:: ?([A-Za-z_][\w.]*))?")
_DOTTED = re.compile(r"([a-z]\w+)\.(?!py$)([A-Za-z_]\w+)")
_NAME = re.compile(r"(?<![\w.$-])(?:[A-Z][a-z]+\w*[A-Z]\w*|_?[A-Za-z]\w*_\w+|_[a-z]\w+)(?![\w=-])")


@cache
def defined(path: Path) -> frozenset[str]:
    """What a module defines at any depth, the parameters and values that it names, and what it
    imports."""
    found = {path.stem, path.parent.name}
    for node in ast.walk(ast.parse(path.read_text())):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                found.add(node.name)
            case ast.arg() | ast.keyword() if node.arg:
                found.add(node.arg)
            case ast.alias():
                found.add(node.asname or node.name)
            case ast.Name(ctx=ast.Store()):
                found.add(node.id)
            case ast.Attribute(ctx=ast.Store()):
                found.add(node.attr)
            case ast.Constant(str() as word) if word.isidentifier():
                found.add(word)
    return frozenset(found)


ALL = frozenset().union(*(defined(path) for path in SOURCES))


def member(path: Path, dotted: str) -> bool:
    """True if a module has what ``name`` or ``Class.name`` says."""
    if "." not in dotted:
        return dotted in defined(path)
    body: list[ast.stmt] = ast.parse(path.read_text()).body
    for part in dotted.split("."):
        named = [node for node in body if part in _names(node)]
        if not named:
            return False
        body = getattr(named[0], "body", [])
    return True


def _names(node: ast.stmt) -> set[str]:
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    return {
        getattr(node, "name", ""),
        *(target.id for target in targets if isinstance(target, ast.Name)),
    }


def wrong(text: str) -> Iterator[str]:
    """The names in code spans that lead nowhere."""
    for span in _SPAN.findall(re.sub(r"```.*?```", "", text, flags=re.DOTALL)):
        for file, name in _PLACE.findall(span):
            places = [path for path in SOURCES if f"/{path.relative_to(ROOT)}".endswith(f"/{file}")]
            if not places:
                yield file
            elif name and not any(member(path, name) for path in places):
                yield f"{file}:{name}"
        if dotted := _DOTTED.fullmatch(span):
            module, name = dotted.groups()
            homes = [path for path in SOURCES if path.stem == module]
            if homes and not any(name in defined(path) for path in homes):
                yield span
        yield from (
            name
            for name in _NAME.findall(_PLACE.sub("", span))
            if name not in ALL and not name.isupper()
        )


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_what_a_page_names_is_there(page: Path) -> None:
    known = OTHERS.get(page.name, set())
    assert sorted(set(wrong(page.read_text())) - known) == []


def test_no_exception_is_needless() -> None:
    for name, known in OTHERS.items():
        assert known - set(wrong((NOTES / name).read_text())) == set()
