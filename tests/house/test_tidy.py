"""Small rules that keep the code readable and the checkout free of one machine's traces."""

import ast
import re
import subprocess
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
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
TESTS = [path for path in PYTHON if "tests" in path.relative_to(ROOT).parts]


def _id(path: Path) -> str:
    return str(path.relative_to(ROOT))


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


def banned(text: str) -> list[str]:
    """Say what of a text may not be in the checkout, with line numbers."""
    return [
        f"line {number}: {reason}: {match.group()}"
        for number, line in enumerate(text.splitlines(), 1)
        for pattern, reason in BANNED
        if (match := pattern.search(line))
    ]


@pytest.mark.parametrize("path", TESTS, ids=_id)
def test_tests_wait_for_conditions_and_never_sleep(path: Path) -> None:
    assert sleeps(path.read_text()) == []


@pytest.mark.parametrize("path", FILES, ids=_id)
def test_no_traces_of_one_machine(path: Path) -> None:
    assert banned(path.read_text(errors="replace")) == []


def test_files_of_tests_have_names_of_their_own() -> None:
    """Their folders are no packages: two of one name cannot be collected by one command."""
    names = Counter(path.name for path in TESTS if path.name.startswith("test_"))
    assert [name for name, count in names.items() if count > 1] == []


def test_the_rules_catch() -> None:
    assert sleeps("import time as t\nt.sleep(1)\nfrom time import sleep\n") == [2, 3]
    assert len(banned("see /" + "home/someone/x\n# TO" + "DO later")) == 2
    assert banned("#!/usr/bin/env bash, ~/.cache and $HOME are everyone's") == []
