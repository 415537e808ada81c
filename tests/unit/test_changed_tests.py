"""Which tests `./run check` runs for which change."""

import subprocess
from pathlib import Path

import pytest

from changed_tests import changed, chosen, is_test

FILES = {
    "src/everflow/__init__.py": "from everflow.parts import Part",
    "src/everflow/parts.py": "class Part: ...",
    "src/everflow/user.py": "def use():\n    from everflow.parts import Part",
    "src/everflow/far.py": "import everflow.user",
    "tests/unit/test_parts.py": "from everflow import Part",
    "tests/unit/test_user.py": "from everflow.user import use",
    "tests/unit/test_far.py": "from everflow import far",
    "tests/unit/helper.py": "from everflow import parts",
    "tests/unit/test_helped.py": "from unit.helper import parts",
    "tests/integration/test_whole.py": "from everflow.parts import Part",
    "bench/__init__.py": "",
    "bench/load.py": "",
    "bench/tests/test_load.py": "from bench import load",
}


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    for path, text in FILES.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    return tmp_path


@pytest.mark.parametrize(
    ("touched", "tests"),
    [
        ("src/everflow/parts.py", ["test_parts", "test_helped", "test_user"]),
        ("src/everflow/user.py", ["test_user", "test_far"]),
        ("tests/unit/test_far.py", ["test_far"]),
        ("tests/unit/helper.py", ["test_helped"]),
        ("tests/integration/test_whole.py", []),
        ("bench/load.py", ["test_load"]),
        ("docs/page.md", []),
    ],
)
def test_a_change_is_tested_by_importers(checkout: Path, touched: str, tests: list[str]) -> None:
    assert [Path(path).stem for path in chosen(checkout, {touched})] == tests


def test_changed_tests_come_first(checkout: Path) -> None:
    touched = {"src/everflow/parts.py", "tests/unit/test_user.py"}
    assert chosen(checkout, touched)[0] == "tests/unit/test_user.py"


@pytest.mark.parametrize(
    ("path", "answer"),
    [
        ("tests/unit/state/test_store.py", True),
        ("tests/unit/state/stores.py", False),
        ("tests/contracts/test_store_contract.py", False),
        ("chaos/tests/test_chaos_rounds.py", True),
    ],
)
def test_a_test_is_told_by_its_place(path: str, answer: bool) -> None:
    assert is_test(path) is answer


def test_changed_is_what_main_has_not(checkout: Path) -> None:
    def git(*arguments: str) -> None:
        who = ["-c", "user.name=a", "-c", "user.email=a@b"]
        subprocess.run(["git", *who, *arguments], cwd=checkout, check=True, capture_output=True)

    git("init", "--initial-branch", "main")
    git("add", ".")
    git("commit", "-m", "all")
    git("switch", "-c", "work")
    (checkout / "src/everflow/parts.py").write_text("class Part:\n    x = 1")
    git("commit", "-am", "a part")
    (checkout / "src/everflow/user.py").unlink()
    (checkout / "src/everflow/new.py").write_text("")
    assert changed(checkout) == {f"src/everflow/{one}.py" for one in ("parts", "user", "new")}
    git("switch", "--discard-changes", "main")
    assert changed(checkout) == {"src/everflow/new.py"}


def test_without_git_nothing_has_changed(tmp_path: Path) -> None:
    assert changed(tmp_path) == set()
