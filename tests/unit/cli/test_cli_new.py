"""`everflow new`: what it writes, and which names and folders it refuses."""

import ast
import re
import shlex
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from typer.testing import CliRunner

from everflow.cli.app import app
from everflow.cli.new_project import FILES, FILES_OF_A_REGISTRY, TEMPLATES, module_name


@pytest.fixture(autouse=True)
def current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_project_has_a_program_its_test_and_how_to_run_it(current_folder: Path) -> None:
    done = CliRunner().invoke(app, ["new", "shop-views"])
    assert done.exit_code == 0, done.output
    written = {
        str(path.relative_to(current_folder / "shop-views"))
        for path in (current_folder / "shop-views").rglob("*.*")
    }
    assert written == {
        "shop_views.py",
        "tests/test_shop_views.py",
        "sample.jsonl",
        "README.md",
        "pyproject.toml",
        ".gitignore",
    }
    for python in ("shop_views.py", "tests/test_shop_views.py"):
        ast.parse((current_folder / "shop-views" / python).read_text())
    readme = (current_folder / "shop-views/README.md").read_text()
    assert "everflow run shop_views:builder --application-id shop-views" in readme
    assert not [
        path for path in (current_folder / "shop-views").rglob("*.*") if "$" in path.read_text()
    ]
    for command in (
        "cd shop-views",
        "-m pytest",
        "broker",
        "run shop_views:builder",
        "produce",
        "consume",
    ):
        assert command in done.output


def test_a_project_of_avro_has_its_schema_and_how_to_register_it(current_folder: Path) -> None:
    done = CliRunner().invoke(app, ["new", "views", "--schema", "avro"])
    assert done.exit_code == 0, done.output
    program = (current_folder / "views/views.py").read_text()
    ast.parse(program)
    assert "serdes.avro(" in program
    ast.parse((current_folder / "views/tests/conftest.py").read_text())
    assert "everflow[schemas]" in (current_folder / "views/pyproject.toml").read_text()
    readme = (current_folder / "views/README.md").read_text()
    for text in (done.output, readme):
        assert "VIEW.version()" in text
        assert "produce page-views --schema http://localhost:8081" in text
    assert not [path for path in (current_folder / "views").rglob("*.*") if "$" in path.read_text()]


def test_the_name_may_end_a_path_and_an_empty_folder_may_be_there(current_folder: Path) -> None:
    (current_folder / "far" / "views").mkdir(parents=True)
    done = CliRunner().invoke(app, ["new", "far/views"])
    assert done.exit_code == 0, done.output
    assert (current_folder / "far/views/views.py").is_file()


def test_the_next_steps_can_be_typed_where_a_folder_has_a_blank(current_folder: Path) -> None:
    done = CliRunner().invoke(app, ["new", "a b/it's/views"])
    assert done.exit_code == 0, done.output
    (step,) = [line for line in done.output.splitlines() if line.startswith("  cd ")]
    assert shlex.split(step) == ["cd", "a b/it's/views"]


@pytest.mark.parametrize(
    ("name", "says", "proposes"),
    [
        ("9 lives", "letters, digits", "lives"),
        ("My App!", "letters, digits", "my-app"),
        ("", "letters, digits", "my-program"),
        ("x" * 101, "100 at most", "x" * 90),
        ("class", "'class' is a word", "my-class"),
        ("json", "the installed module 'json'", "my-json"),
        ("everflow", "the installed module 'everflow'", "my-everflow"),
        ("queue", "the installed module 'queue'", "my-queue"),
        ("pandas", "the installed module 'pandas'", "my-pandas"),
        ("tests", "its own tests", "my-tests"),
        ("conftest", "pytest's file", "my-conftest"),
        ("setup", "builds a package", "my-setup"),
        ("PySpark!", "letters, digits", "my-pyspark"),
    ],
)
def test_a_name_that_will_not_do(name: str, says: str, proposes: str, current_folder: Path) -> None:
    done = CliRunner().invoke(app, ["new", name])
    assert done.exit_code == 2
    assert says in done.output
    assert done.output.rstrip().endswith(f"How about {proposes}?")
    assert module_name(proposes)
    assert not list(current_folder.iterdir())


def test_a_folder_that_holds_something_is_left_alone(current_folder: Path) -> None:
    (current_folder / "views").mkdir()
    (current_folder / "views" / "mine.txt").write_text("mine")
    done = CliRunner().invoke(app, ["new", "views"])
    assert done.exit_code == 2
    assert re.search("views .* empty", done.output)
    assert [path.name for path in (current_folder / "views").iterdir()] == ["mine.txt"]


def test_a_file_of_that_name_is_no_folder(current_folder: Path) -> None:
    (current_folder / "views").write_text("mine")
    done = CliRunner().invoke(app, ["new", "views"])
    assert done.exit_code == 2
    assert re.search("views .* not a folder", done.output)


def test_every_template_is_used() -> None:
    assert sorted(path.name for path in TEMPLATES.iterdir()) == sorted(
        {**FILES, **FILES_OF_A_REGISTRY}
    )


@pytest.mark.slow
def test_the_wheel_has_the_templates(tmp_path: Path) -> None:
    root = Path(__file__).parents[3]
    pip = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "-q",
        "--no-deps",
        "--no-build-isolation",
        "-w",
        str(tmp_path),
        str(root),
    ]
    subprocess.run(pip, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert not {
        f"everflow/cli/project/{template}" for template in {**FILES, **FILES_OF_A_REGISTRY}
    } - set(names)
