"""The Dockerfile, read: what it copies is there, what it runs is a command, nobody is root."""

from __future__ import annotations

import re
from pathlib import Path

from typer.main import get_command

from everflow.cli.app import app

ROOT = Path(__file__).resolve().parents[3]
LINES = (ROOT / "deploy/docker/Dockerfile").read_text().replace("\\\n", " ").splitlines()
STEPS = [tuple(line.split(None, 1)) for line in LINES if line.strip() and not line.startswith("#")]
KNOWN = {"FROM", "WORKDIR", "COPY", "RUN", "ENV", "USER", "EXPOSE", "ENTRYPOINT", "CMD"}


def of(step: str) -> list[str]:
    return [text for name, text in STEPS if name == step]


def test_steps_are_steps_and_images_have_a_version() -> None:
    assert {name for name, _ in STEPS} <= KNOWN
    for image in of("FROM"):
        assert re.match(r"\S+:\d", image), f"{image}: any version may come"


def test_what_is_copied_is_there_and_not_ignored() -> None:
    kept = {
        line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line[:1] == "!"
    }
    for text in of("COPY"):
        *sources, _ = [part for part in text.split() if not part.startswith("--")]
        if "--from" in text:
            continue
        for source in sources:
            assert (ROOT / source).exists(), source
            assert source in kept, f".dockerignore leaves {source} out"


def test_it_ends_as_a_user_without_rights_and_without_caches() -> None:
    assert of("USER") == ["10001:10001"]
    installs = [run for run in of("RUN") if "apt-get install" in run]
    assert all("rm -rf /var/lib/apt/lists/*" in run for run in installs)
    assert all("--no-install-recommends" in run for run in installs)
    assert all("--no-cache-dir" in run for run in of("RUN") if "pip install" in run)


def test_its_commands_are_everflows() -> None:
    assert of("ENTRYPOINT") == ['["tini", "--", "everflow"]']
    commands = get_command(app).commands  # type: ignore[attr-defined]
    (setup,) = [run for run in of("RUN") if run.startswith("everflow ")]
    assert setup.split()[1] in commands
