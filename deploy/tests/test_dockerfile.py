"""The Dockerfile, read: what it copies is there, what it runs is a command, nobody is root."""

from __future__ import annotations

import json
import re

from typer.main import get_command

from deploy.tests.dockerfile_steps import DOCKERFILE, REPOSITORY, copy_of, steps, texts
from everflow.cli.app import app

KNOWN = {"FROM", "WORKDIR", "COPY", "RUN", "ENV", "USER", "EXPOSE", "ENTRYPOINT", "CMD"}


def apt_packages() -> set[str]:
    installs = [
        part for run in texts("RUN") for part in run.split("&&") if "apt-get install" in part
    ]
    return {word for part in installs for word in part.split()[2:] if not word.startswith("-")}


def test_steps_are_steps_and_images_have_a_version() -> None:
    assert {step.name for step in steps()} <= KNOWN
    assert steps()[0].name == "FROM"
    for image in texts("FROM"):
        assert re.match(r"\S+:\d", image), f"{image}: any version may come"
    assert DOCKERFILE.read_text().endswith("\n")


def test_what_is_copied_is_there_and_not_ignored() -> None:
    kept = {
        line[1:]
        for line in (REPOSITORY / ".dockerignore").read_text().splitlines()
        if line[:1] == "!"
    }
    stages = {image.partition(" AS ")[2] for image in texts("FROM")}
    copied = set()
    for copy in map(copy_of, texts("COPY")):
        if copy.stage is not None:
            assert copy.stage in stages, f"COPY --from={copy.stage}: no such stage"
            continue
        for source in copy.sources:
            assert (REPOSITORY / source).exists(), source
            assert source in kept, f".dockerignore leaves {source} out"
            copied.add(source)
    assert copied == kept, "what .dockerignore lets in and nobody copies makes every build larger"


def test_what_is_run_stops_at_its_first_error() -> None:
    """`;` and `||` go on after an error, and of a pipe only the last part's error counts."""
    for run in texts("RUN"):
        assert not set(";|") & set(run), run


def test_versions_are_those_that_were_tested() -> None:
    """By their hashes, and what builds them too."""
    commands = [part.strip() for run in texts("RUN") for part in run.split("&&")]
    pips = [part for part in commands if "/bin/pip " in part]
    assert len(pips) == 4
    for part in pips:
        assert "--require-hashes -r" in part or "--no-deps" in part, part
        if " wheel " in part:
            assert "--no-build-isolation" in part, "it would be built by any version"
        elif "--require-hashes" not in part:
            assert "--no-index" in part, part
    assert {"python:3.11-slim-bookworm"} == {image.split()[0] for image in texts("FROM")}


def test_the_image_has_what_its_commands_need() -> None:
    """Java for Spark, ps for Spark's scripts, and what the entry point begins with."""
    assert apt_packages() == {"openjdk-17-jre-headless", "procps", "tini"}
    (entry,) = texts("ENTRYPOINT")
    assert json.loads(entry) == ["tini", "--", "everflow"]
    commands = get_command(app).commands  # type: ignore[attr-defined]
    runs = [run for run in texts("RUN") if run.startswith("everflow ")]
    assert runs
    assert all(run.split()[1] in commands for run in runs)


def test_it_ends_as_a_user_without_rights_and_without_caches() -> None:
    (user,) = texts("USER")
    number, _, group = user.partition(":")
    assert number == group
    assert number.isdecimal(), "Kubernetes' runAsNonRoot asks for a number"
    assert int(number) >= 10_000, "lower ones are the host's users"
    assert any(f"useradd --uid {number} " in run for run in texts("RUN"))
    last_root = max(at for at, step in enumerate(steps()) if step.name == "COPY")
    assert [step.name for step in steps()].index("USER") > last_root
    installs = [run for run in texts("RUN") if "apt-get install" in run]
    assert all("rm -rf /var/lib/apt/lists/*" in run for run in installs)
    assert all("--no-install-recommends" in run for run in installs)
    assert all("--no-cache-dir" in run for run in texts("RUN") if "pip install" in run)
