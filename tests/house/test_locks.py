"""The lock files: exact versions with hashes, of all that is needed and of nothing else."""

import re
from collections.abc import Mapping
from pathlib import Path

import pytest

tomllib = pytest.importorskip("tomllib")  # of Python 3.11

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
LOCKS = {
    name: (ROOT / f"requirements{name}.lock").read_text()
    for name in ("", "-build", "-image", "-spark-4.2")
}


def locked(text: str) -> Mapping[str, str]:
    """Package -> version; each line is a package with its hashes, or a comment."""
    found = {}
    for block in re.sub(r" \\\n\s+", " ", text).splitlines():
        if block.startswith("#"):
            continue
        match = re.fullmatch(r"(\S+)==(\S+)(?: ; [^-]+?)?((?: --hash=sha256:[0-9a-f]{64})+)", block)
        assert match is not None, block
        found[match[1]] = match[2]
    return found


def named(requirements: list[str]) -> set[str]:
    return {re.split(r"[^A-Za-z0-9._-]", one)[0].lower().replace("_", "-") for one in requirements}


@pytest.mark.parametrize("name", LOCKS)
def test_each_version_has_its_hashes(name: str) -> None:
    assert len(locked(LOCKS[name])) > 5


def test_they_have_what_is_needed_in_one_version() -> None:
    everything, build, image, older = (locked(LOCKS[name]) for name in LOCKS)
    needs = named(PROJECT["project"]["dependencies"])
    extras = PROJECT["project"]["optional-dependencies"]
    assert needs <= set(image)
    assert needs | named([*extras["test"], *extras["demo"]]) <= set(everything)
    assert named(PROJECT["build-system"]["requires"]) | {"setuptools", "editables"} <= set(build)
    assert image.items() <= everything.items()
    assert older["pyspark"].startswith("4.2.")
    assert {**older, "pyspark": everything["pyspark"]} == everything
    for package in build.keys() & everything.keys():
        assert build[package] == everything[package]
    assert not {"pytest", "hatchling", "setuptools"} & set(image)


def test_what_installs_them_asks_for_hashes_and_builds_by_them() -> None:
    run = (ROOT / "run").read_text()
    for name in ("$LOCK", "$ROOT/requirements-build.lock"):
        assert re.search(rf'--require-hashes [^\n]*-r "{re.escape(name)}"', run)
    for line in run.splitlines():
        if '-r "$LOCK"' in line or '-e "$ROOT"' in line:
            assert "--no-build-isolation" in line, line
