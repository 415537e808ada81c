"""What is public: where it is imported from, and that its docstrings are contracts."""

import ast
import dataclasses
import enum
import importlib
import inspect
import json
import re
import sys
import textwrap
from collections.abc import Iterator
from typing import Any

import pytest

from markdown_pages import ROOT, blocks, page_id, pages
from reference_page import PLACES, SECTIONS, found, members

MODULES = (
    "everflow",
    "everflow.assignment",
    "everflow.client",
    "everflow.errors",
    "everflow.metrics",
    "everflow.serdes",
    "everflow.testing",
)
"""Users import from these, and from nowhere below them. `agg`, `errors` and `serdes` are also names
of `everflow`."""
OF_A_NAME = frozenset(
    re.findall(
        r"\w+",
        "a an and are as at be by each for from if in is it its no not of on one or per that the "
        "this to where with",
    )
)
FEWEST_WORDS = 3
TIME = re.compile(r"timeout|size|gap|advance|grace|duration|^by$|interval|time(?:stamp)?(?:_|$)")
UNIT = re.compile(r"\b(?:ms|s|seconds|durations?)\b", re.IGNORECASE)


def public() -> Iterator[tuple[str, Any, Any]]:
    """Every entry of the reference: (name, it, the class or module that has it)."""
    for name in (name for section in SECTIONS for name in section.names.split()):
        thing = found(name) if name in PLACES else importlib.import_module(f"everflow.{name}")
        yield name, thing, thing
        for member, value in members(name, thing):
            yield f"{name}.{member}", value.fget if isinstance(value, property) else value, thing


ENTRIES = [
    entry for entry in public() if entry[0] != "StateListener"
]  # a type alias: the page has its words
CLASSES = [
    (name, thing)
    for name, thing, owner in ENTRIES
    if thing is owner
    and isinstance(thing, type)
    and not issubclass(thing, enum.Enum | Exception | tuple)
    and not dataclasses.is_dataclass(thing)
]


def said_around(thing: Any, owner: Any) -> str:
    """What a reader knows of ``thing``: its docstring, its class's with bases, their modules'."""
    readable = [thing, *(owner.__mro__ if isinstance(owner, type) else [owner])]
    homes = [sys.modules.get(getattr(one, "__module__", "")) for one in readable]
    return "\n".join(
        inspect.getdoc(one) or ""
        for one in [*readable, *homes]
        if one is not None and one is not object
    )


def restates(name: str, said: str) -> bool:
    """True if a docstring says hardly more than the name does."""
    words = re.findall(r"[a-z]+|`[^`]+`", said.lower())
    of_the_name = set(
        re.findall(r"[a-z]+", re.sub(r"([A-Z])", r" \1", name.replace("_", " ")).lower())
    )
    return (
        len([word for word in words if word not in OF_A_NAME and word not in of_the_name])
        < FEWEST_WORDS
    )


def raised(source: str) -> set[str]:
    """Names of the errors that a function's own lines raise."""
    calls = [
        node.exc.func
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call)
    ]
    return {call.id for call in calls if isinstance(call, ast.Name) and not call.id.startswith("_")}


def private_imports(source: str) -> list[str]:
    """Imports from everflow that are not of the public face."""
    wrong = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            wrong += [
                one.name
                for one in node.names
                if one.name.startswith("everflow") and one.name not in MODULES
            ]
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "everflow":
            listed = set(getattr(importlib.import_module(node.module or ""), "__all__", ()))
            public_here = {one.name for one in node.names if one.name in listed or not listed}
            below = {one.name for one in node.names if f"{node.module}.{one.name}" in MODULES}
            wrong += [
                f"{node.module}.{one.name}"
                for one in node.names
                if node.module not in MODULES or one.name not in public_here | below
            ]
    return wrong


def programs() -> Iterator[tuple[str, str]]:
    """All Python that readers see: the pages' blocks (hidden set-up is ours), the examples, the
    templates of new projects."""
    for page in pages():
        for block in blocks(page.read_text(), page_id(page)):
            if block.language == "python" and not block.hidden and "skip" not in block.options:
                yield (
                    block.where,
                    re.sub(r"^(?:>>> |\.\.\. ?)", "", block.text, flags=re.MULTILINE)
                    if ">>> " in block.text
                    else block.text,
                )
    for path in sorted((ROOT / "examples").glob("*.py")):
        yield page_id(path), path.read_text()
    for path in sorted((ROOT / "examples").glob("*.ipynb")):
        for number, cell in enumerate(json.loads(path.read_text())["cells"]):
            if cell["cell_type"] == "code":
                yield f"{page_id(path)}, cell {number}", "".join(cell["source"])
    for path in sorted((ROOT / "src" / "everflow" / "cli" / "project").glob("*.py.tmpl")):
        yield page_id(path), path.read_text().replace("$module", "program")


def import_lines(text: str) -> str:
    """The imports of a text that may hold outputs, too."""
    statements = re.findall(r"^[ \t]*((?:from|import) [^\n(]*(?:\([^)]*\))?)", text, re.MULTILINE)
    readable = []
    for statement in statements:
        try:
            ast.parse(statement)
        except SyntaxError:
            continue
        readable.append(statement)
    return "\n".join(readable)


@pytest.mark.parametrize(
    ("where", "text"), [pytest.param(*program, id=program[0]) for program in programs()]
)
def test_docs_and_examples_import_public_names_only(where: str, text: str) -> None:
    assert private_imports(import_lines(text)) == []


def test_every_name_of_a_public_module_is_in_the_reference() -> None:
    assert set(PLACES.values()) | {"everflow.errors", "everflow.metrics", "everflow.serdes"} == set(
        MODULES
    )
    in_a_section = {name for section in SECTIONS for name in section.names.split()}
    errors = {
        name
        for name in PLACES
        if isinstance(found(name), type) and issubclass(found(name), Exception)
    }
    assert set(PLACES) - errors == in_a_section


@pytest.mark.parametrize(
    ("name", "thing", "owner"), [pytest.param(*entry, id=entry[0]) for entry in ENTRIES]
)
def test_a_docstring_says_more_than_the_name(name: str, thing: Any, owner: Any) -> None:
    assert not restates(name.rpartition(".")[2], inspect.getdoc(thing) or ""), (
        "say what it gives or does, for whom, when not"
    )


@pytest.mark.parametrize(
    ("name", "thing", "owner"), [pytest.param(*entry, id=entry[0]) for entry in ENTRIES]
)
def test_what_it_raises_is_said(name: str, thing: Any, owner: Any) -> None:
    if inspect.isfunction(thing):
        said = said_around(thing, owner)
        assert {
            error
            for error in raised(textwrap.dedent(inspect.getsource(thing)))
            if error not in said
        } == set()


@pytest.mark.parametrize(
    ("name", "thing", "owner"), [pytest.param(*entry, id=entry[0]) for entry in ENTRIES]
)
def test_times_have_units(name: str, thing: Any, owner: Any) -> None:
    if inspect.isfunction(thing):
        times = [
            one
            for one in inspect.signature(thing).parameters
            if TIME.search(one) and not one.endswith(("_ms", "_s", "_bytes"))
        ]
        assert not times or UNIT.search(said_around(thing, owner)), f"in which unit are {times}?"


@pytest.mark.parametrize(
    ("name", "thing"), [pytest.param(*entry, id=entry[0]) for entry in CLASSES]
)
def test_a_class_says_which_threads_may_use_it(name: str, thing: type) -> None:
    assert "thread" in said_around(thing, thing)


def test_the_rules_catch() -> None:
    assert restates("close", "Close it.")
    assert restates("read_records", "Read the records.")
    assert not restates("close", "Hands the tasks over, commits and leaves the group.")
    assert raised("def f():\n    if x:\n        raise ConfigError(1)\n    raise") == {"ConfigError"}
    assert (
        private_imports(
            "from everflow import KafkaStreams, agg\nfrom everflow.testing import "
            "wait_until\nimport everflow.errors"
        )
        == []
    )
    assert private_imports("from everflow.kafka.admin import ClusterAdmin") == [
        "everflow.kafka.admin.ClusterAdmin"
    ]
    assert private_imports("from everflow import topology\nimport everflow.records") == [
        "everflow.topology",
        "everflow.records",
    ]
    assert (
        import_lines(">>> x\nfrom everflow import (\n    agg,\n)\nfrom here to there")
        == "from everflow import (\n    agg,\n)"
    )
