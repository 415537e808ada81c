"""docs/guide/first-hour.md: five commands at the most, and they do what it shows."""

import contextlib
import doctest
import os
import re
import shlex
import signal
import socket
import subprocess
import sysconfig
import venv
from collections.abc import Iterator
from pathlib import Path

import pytest

from everflow.testing.waiting import wait_until
from markdown_pages import ROOT, blocks, shell_commands

PAGE = (ROOT / "docs" / "guide" / "first-hour.md").read_text()
TRANSCRIPT = [
    block for block in blocks(PAGE, "docs/guide/first-hour.md") if block.language == "console"
]
COMMANDS = [command for block in TRANSCRIPT for command in shell_commands(block)]
RESULT = re.compile(r'^(\w+)@(\S+)\t\{"views":(\d+),"mean_ms":([\d.]+)\}$', re.MULTILINE)
PATIENCE_S = 120


def counts(text: str) -> dict[str, int]:
    """Views per section that `everflow consume` printed: each minute's last line, added up."""
    last = {(section, minute): int(views) for section, minute, views, _ in RESULT.findall(text)}
    return {
        name: sum(n for (section, _), n in last.items() if section == name)
        for name in sorted({s for s, _ in last})
    }


def test_it_is_five_commands_at_the_most() -> None:
    assert len(COMMANDS) <= 5
    assert counts(TRANSCRIPT[-1].text) == {"home": 2, "news": 3, "sport": 2}


def test_the_programs_lines_on_the_page_are_those_of_the_project() -> None:
    (program,) = [
        block.text for block in blocks(PAGE, "first-hour.md") if block.language == "python"
    ]
    assert (
        program in (ROOT / "src" / "everflow" / "cli" / "project" / "program.py.tmpl").read_text()
    )


@pytest.mark.slow
@pytest.mark.broker
@pytest.mark.spark
@pytest.mark.timeout(900)
def test_the_transcript_does_what_it_shows(tmp_path: Path) -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("a checkout of git is needed to be cloned")
    port = _free_port()  # instead of the page's, also where its commands take the usual one
    clone, make, broker, run, count = (command.replace("9092", port) for command in COMMANDS)
    home = {**os.environ, "EVERFLOW": str(ROOT), "XDG_STATE_HOME": str(tmp_path / "state")}
    home["EVERFLOW_BOOTSTRAP_SERVERS"] = f"localhost:{port}"
    _done(clone, tmp_path, home)
    _set_up(tmp_path / "everflow")
    assert TRANSCRIPT[0].text.splitlines()[2] in _done(make, tmp_path, home)
    folder = tmp_path / "page-views"
    with _staying(
        broker,
        folder,
        home,
        tmp_path / "broker.txt",
        f"broker is up, bootstrap servers: 127.0.0.1:{port}",
    ):
        said = tmp_path / "run.txt"
        with _staying(run, folder, home, said, "-> RUNNING"):
            shown = TRANSCRIPT[1].text.partition("\n")[2].replace("9092", port)
            told = said.read_text() + "\n"  # an ellipsis may stand for nothing
            assert doctest.OutputChecker().check_output(shown, told, doctest.ELLIPSIS), told
            assert counts(_done(count, folder, home)) == counts(TRANSCRIPT[-1].text)


def _free_port() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


def _set_up(checkout: Path) -> None:
    """As `./run` would make it, but with the packages of this one: installing takes minutes."""
    place = checkout / ".venv"
    venv.create(place, symlinks=True)
    (packages,) = place.glob("lib/python*/site-packages")
    here = sysconfig.get_paths()["purelib"]
    (packages / "packages.pth").write_text(
        f"{checkout / 'src'}\nimport site; site.addsitedir({here!r})\n"
    )
    command = place / "bin" / "everflow"
    command.write_text(f"#!{place / 'bin' / 'python'}\nfrom everflow.cli import main\nmain()\n")
    command.chmod(0o755)
    wanted = f"{checkout}\n" + "".join(
        (checkout / name).read_text() for name in ("pyproject.toml", "requirements.lock")
    )
    (place / ".everflow-setup").write_text(wanted.rstrip("\n") + "\n")


def _done(command: str, folder: Path, environment: dict[str, str]) -> str:
    done = subprocess.run(
        ["bash", "-e", "-c", command],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    return done.stdout


@contextlib.contextmanager
def _staying(
    command: str, folder: Path, environment: dict[str, str], said: Path, ready: str
) -> Iterator[None]:
    """A command that stays until Ctrl-C; entered when it has said ``ready``."""
    with said.open("w") as out:
        started = subprocess.Popen(
            shlex.split(command),
            cwd=folder,
            env=environment,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        wait_until(
            lambda: ready in said.read_text() or started.poll() is not None,
            PATIENCE_S,
            f"{command} says {ready!r}",
        )
        assert started.poll() is None, f"{command} ended:\n{said.read_text()}"
        yield
    finally:
        started.send_signal(signal.SIGINT)
        try:
            started.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            os.killpg(started.pid, signal.SIGKILL)
            raise
    assert started.returncode in (0, 130), said.read_text()
