"""./run: exit codes, any working directory, and when it may install Java."""

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def _run(
    script: Path, *arguments: str, cwd: Path, path: str | None = None
) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PATH": path or os.environ["PATH"]}
    return subprocess.run(
        ["bash", str(script), *arguments],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_what_it_cannot_do_ends_with_2(tmp_path: Path) -> None:
    done = _run(ROOT / "run", "nope", cwd=tmp_path)
    assert done.returncode == 2
    assert "unknown command: nope" in done.stderr


def _folders(name: str) -> set[str]:
    (found,) = re.findall(rf"^{name}=\((.*)\)$", (ROOT / "run").read_text(), re.MULTILINE)
    return set(found.split())


def test_every_folder_of_tests_is_run_once() -> None:
    always, tools = _folders("COMPUTING") | _folders("WAITING"), _folders("TOOLS")
    assert _folders("COMPUTING") & _folders("WAITING") == always & tools == set()
    there = {
        str(path.parent.relative_to(ROOT))
        for top in ("tests", "bench", "chaos", "deploy", "soak", "examples")
        for path in (ROOT / top).rglob("test_*.py")
    }
    listed = always | tools
    assert {one for one in there if not {one, *map(str, Path(one).parents)} & listed} == set()
    (paths,) = re.findall(r"^testpaths = (\[.*\])$", (ROOT / "pyproject.toml").read_text(), re.M)
    assert set(json.loads(paths)) == always
    assert tools <= set((ROOT / ".ci" / "run").read_text().split())


def test_help_needs_no_set_up(tmp_path: Path) -> None:
    done = _run(ROOT / "run", cwd=tmp_path)
    assert done.returncode == 0
    assert "usage: ./run" in done.stdout


def _executable(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


def _checkout(tmp_path: Path, java_check: str) -> tuple[Path, str, Path]:
    """A set-up checkout whose Python answers the Java check as told; its apt-get only notes."""
    checkout, tools, noted = (
        (tmp_path / "checkout").resolve(),
        tmp_path / "tools",
        tmp_path / "apt-calls",
    )
    checkout.mkdir()
    shutil.copy(ROOT / "run", checkout / "run")
    (checkout / "pyproject.toml").write_text("a\n")
    (checkout / "requirements.lock").write_text("b\n")
    _executable(checkout / ".venv/bin/python", f'[ "$1" = - ] || exit 0\n{java_check}')
    (checkout / ".venv/.everflow-setup").write_text(f"{checkout}\na\nb\n")
    _executable(tools / "apt-get", f'echo "$*" >> "{noted}"\nexit 100')
    _executable(tools / "id", "echo 0")
    return checkout / "run", f"{tools}:{os.environ['PATH']}", noted


def test_no_java_leads_root_to_an_installation_that_upgrades_nothing(tmp_path: Path) -> None:
    script, path, noted = _checkout(tmp_path, 'echo "Java 17 or newer is needed"; exit 3')
    done = _run(script, "test", cwd=tmp_path, path=path)
    assert done.returncode == 1
    assert "Java 17 or newer is needed" in done.stderr
    installs = [line for line in noted.read_text().splitlines() if line.startswith("install")]
    assert installs
    assert all("--no-upgrade" in line for line in installs)


def test_a_check_that_fails_for_another_reason_installs_nothing(tmp_path: Path) -> None:
    script, path, noted = _checkout(tmp_path, "echo 'No module named everflow' >&2; exit 1")
    done = _run(script, "test", cwd=tmp_path, path=path)
    assert done.returncode == 1
    assert "No module named everflow" in done.stderr
    assert not noted.exists()


@pytest.mark.parametrize(
    ("types", "tests", "code"), [(0, 0, 0), (1, 0, 1), (0, 1, 1)], ids=["both", "types", "tests"]
)
def test_types_or_tests_fail_a_check(tmp_path: Path, types: int, tests: int, code: int) -> None:
    script, path, _ = _checkout(tmp_path, "exit 0")
    ran = tmp_path / "ran"
    _executable(
        script.parent / ".venv/bin/python",
        'case "$*" in\n*changed_tests.py) echo tests/unit/test_x.py ;;\n'
        f'"-m mypy") exit {types} ;;\n"-m pytest"*) echo "$*" >"{ran}"; exit {tests} ;;\nesac',
    )
    done = _run(script, "check", cwd=tmp_path, path=path)
    assert done.returncode == code, done.stdout + done.stderr
    assert ran.read_text().split()[-1] == "tests/unit/test_x.py"


def test_a_check_without_tests_runs_lint_and_types(tmp_path: Path) -> None:
    script, path, _ = _checkout(tmp_path, "exit 0")
    ran = tmp_path / "ran"
    _executable(
        script.parent / ".venv/bin/python", f'case "$*" in -m*) echo "$2 $3" >>"{ran}" ;; esac'
    )
    assert _run(script, "check", cwd=tmp_path, path=path).returncode == 0
    assert sorted(ran.read_text().split("\n")[:-1]) == ["mypy ", "ruff check", "ruff format"]


def test_a_silent_installation_is_told_to_go_on_and_keeps_its_exit_code(tmp_path: Path) -> None:
    """The command ends once it has been told of twice."""
    told = tmp_path / "told"
    (tmp_path / "functions").write_text((ROOT / "run").read_text().removesuffix('main "$@"\n'))
    (tmp_path / "script").write_text(
        f"source {tmp_path}/functions\nTELL_EVERY_S=0.05\n"
        f"patiently 'installing packages' bash -c 'until [ \"$(grep -c still {told})\" -ge 2 ]; do "
        f":; done; exit 3' || exit $?\n"
    )
    with told.open("w") as out:
        done = subprocess.run(["bash", str(tmp_path / "script")], stderr=out, timeout=60)
    assert done.returncode == 3
    lines = told.read_text().splitlines()
    assert len(lines) >= 2
    assert all(re.fullmatch(r"set-up: still installing packages, \d+ s", line) for line in lines)
