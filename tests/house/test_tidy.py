"""Small rules that keep the code readable and the checkout free of one machine's traces."""

from __future__ import annotations

import ast
import re
import subprocess
import warnings
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LONG_FUNCTION_LINES = 80
LONG_MODULE_LINES = 900
MAX_FIELDS = 5
MAX_LATE_FIELDS = 15
CONSTRUCTORS = ("__init__", "__post_init__", "__new__")
TEXT_SUFFIXES = {
    ".py",
    ".md",
    ".toml",
    ".xml",
    ".properties",
    ".lock",
    ".java",
    ".yml",
    ".yaml",
    ".sh",
    "",
}

# Spelled in pieces, so that this file passes its own test. Each with the reason a reader gets.
BANNED = (
    (re.compile(r"(?<![\w.~])/" + r"(?:work|root|home|Users|tmp)/\w"), "a path of one machine"),
    (
        re.compile("(?:repo1?|registry|files)" + r"\.(?:maven|npmjs|pythonhosted)\b"),
        "a package registry's address",
    ),
    (re.compile(r"\bpypi" + r"\.org\b|\bmaven" + r"\.org\b"), "a package registry's address"),
    (
        re.compile(
            "(?i)\\b(?:coding (?:session|assistant)|sub-?age" + "nt|language mod" + "el)s?\\b"
        ),
        "not about us",
    ),
    (
        re.compile(r"\b(?:TO" + r"DO|FIX" + r"ME|X" + r"XX)\b"),
        "unfinished work belongs in an issue",
    ),
)


def _tracked() -> list[Path]:
    """Files of the checkout: what git knows or would add; outside git, what lies there."""
    listing = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if listing.returncode == 0:
        names = [ROOT / line for line in listing.stdout.splitlines()]
    else:
        names = [p for top in ("src", "tests", "docs", "bench") for p in (ROOT / top).rglob("*")]
    return sorted(p for p in names if p.is_file() and p.suffix in TEXT_SUFFIXES)


FILES = _tracked()
PYTHON = [path for path in FILES if path.suffix == ".py"]
PACKAGE = [path for path in PYTHON if path.is_relative_to(ROOT / "src")]
TESTS = [path for path in PYTHON if "tests" in path.relative_to(ROOT).parts]


def _id(path: Path) -> str:
    return str(path.relative_to(ROOT))


def long_functions(source: str) -> list[str]:
    """Name the functions that are long, their docstrings counted."""
    return [
        f"{node.name}: {node.end_lineno - node.lineno + 1} lines"
        for node in ast.walk(ast.parse(source))
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        and node.end_lineno is not None
        and node.end_lineno - node.lineno + 1 > LONG_FUNCTION_LINES
    ]


def crowded_classes(source: str) -> list[str]:
    """Name the public classes whose methods set more fields than the limit, those of the
    constructor not counted: nobody keeps so many changing values in mind."""
    found = []
    for kind in ast.walk(ast.parse(source)):
        if not isinstance(kind, ast.ClassDef) or kind.name.startswith("_"):
            continue
        methods = [
            m
            for m in kind.body
            if isinstance(m, ast.FunctionDef | ast.AsyncFunctionDef) and m.name not in CONSTRUCTORS
        ]
        late = {
            node.attr
            for method in methods
            for node in ast.walk(method)
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
            if method.args.args
            and isinstance(node.value, ast.Name)
            and node.value.id == method.args.args[0].arg
        }
        if len(late) > MAX_LATE_FIELDS:
            found.append(f"{kind.name}: {len(late)} fields ({', '.join(sorted(late))})")
    return found


def sleeps(source: str) -> list[int]:
    """Lines that call ``time.sleep`` (under any alias of the module) or import it."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.module in ("time", "asyncio"):
            found += [node.lineno for alias in node.names if alias.name == "sleep"]
        elif (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr == "sleep"
        ):
            found.append(node.lineno)
    return sorted(found)


def positional_records(source: str) -> list[str]:
    """Name the dataclasses of more fields than a reader counts, that may be called without naming
    them."""
    return [
        node.name
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.ClassDef)
        and sum(
            isinstance(part, ast.AnnAssign) and "ClassVar" not in ast.unparse(part)
            for part in node.body
        )
        > MAX_FIELDS
        and any(
            re.match(r"dataclass\b(?!.*(?:kw_only=True|init=False))", ast.unparse(one))
            for one in node.decorator_list
        )
    ]


def public_classes(source: str) -> dict[str, bool]:
    """The public classes of a module; True for a Protocol."""
    return {
        node.name: any(ast.unparse(base).startswith("Protocol") for base in node.bases)
        for node in ast.parse(source).body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    }


def banned(text: str) -> list[str]:
    """Say what of a text may not be in the checkout, with line numbers."""
    return [
        f"line {number}: {reason}: {match.group()}"
        for number, line in enumerate(text.splitlines(), 1)
        for pattern, reason in BANNED
        if (match := pattern.search(line))
    ]


def test_what_is_long_is_told() -> None:
    """A warning, no failure: a limit cuts a module where it is full, not where an idea ends."""
    for path in PYTHON:
        text = path.read_text()
        if (lines := len(text.splitlines())) > LONG_MODULE_LINES:
            warnings.warn(f"{_id(path)}: {lines} lines", stacklevel=1)
        for function in long_functions(text):
            warnings.warn(f"{_id(path)}: {function}", stacklevel=1)


def test_classes_change_few_fields() -> None:
    assert [found for path in PACKAGE for found in crowded_classes(path.read_text())] == []


@pytest.mark.parametrize("path", PACKAGE, ids=_id)
def test_large_records_are_made_by_their_fields_names(path: Path) -> None:
    assert positional_records(path.read_text()) == [], (
        f"more than {MAX_FIELDS} fields: kw_only=True"
    )


def test_a_public_class_name_means_one_thing() -> None:
    """A port and its one implementation may share a name."""
    found: dict[str, list[tuple[bool, str]]] = {}
    for path in PACKAGE:
        for name, port in public_classes(path.read_text()).items():
            found.setdefault(name, []).append((port, _id(path)))
    assert {
        name: [where for _, where in places]
        for name, places in found.items()
        if len(places) > 1 and sorted(port for port, _ in places) != [False, True]
    } == {}


@pytest.mark.parametrize("path", TESTS, ids=_id)
def test_tests_wait_for_conditions_and_never_sleep(path: Path) -> None:
    assert sleeps(path.read_text()) == []


@pytest.mark.parametrize("path", FILES, ids=_id)
def test_no_traces_of_one_machine(path: Path) -> None:
    assert banned(path.read_text(errors="replace")) == []


def test_the_rules_catch() -> None:
    assert long_functions("def f():\n" + "    pass\n" * LONG_FUNCTION_LINES) == [
        f"f: {LONG_FUNCTION_LINES + 1} lines"
    ]
    sets = [f"self.f{n} = self.shown.f = {n}" for n in range(MAX_LATE_FIELDS + 1)]
    crowded = "class C:\n  def __init__(self):\n    {}\n  def g(self):\n    {}\n"
    assert [
        text.split(" (")[0] for text in crowded_classes(crowded.format("pass", "; ".join(sets)))
    ] == ["C: 16 fields"]
    assert crowded_classes(crowded.format("; ".join(sets), "; ".join(sets[1:]))) == []
    assert sleeps("import time as t\nt.sleep(1)\nfrom time import sleep\n") == [2, 3]
    fields = "".join(f"    f{number}: int\n" for number in range(MAX_FIELDS + 1))
    assert positional_records(f"@dataclass(frozen=True)\nclass Many:\n{fields}") == ["Many"]
    assert positional_records(f"@dataclass(kw_only=True)\nclass Many:\n{fields}") == []
    assert public_classes("class A(Protocol[T]): ...\nclass B: ...\nclass _C: ...\n") == {
        "A": True,
        "B": False,
    }
    assert len(banned("see /" + "home/someone/x\n# TO" + "DO later")) == 2
    assert banned("#!/usr/bin/env bash, ~/.cache and $HOME are everyone's") == []
