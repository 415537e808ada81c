"""The Dockerfile, read, and its steps done one after the other in a folder instead of an image: no
container engine is needed. What would change the machine is only noted: `apt-get`, `useradd`,
`chown`."""

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import pytest
from typer.main import get_command

from everflow import __version__
from everflow.cli.app import app

REPOSITORY = Path(__file__).resolve().parents[2]
DOCKERFILE = REPOSITORY / "deploy/docker/Dockerfile"


class Step(NamedTuple):
    """An instruction: its name, such as ``RUN``, and the rest of its lines as one."""

    name: str
    text: str


class Copy(NamedTuple):
    """What a COPY copies. ``stage``: where from, None for the repository."""

    stage: str | None
    sources: tuple[str, ...]
    target: str


def steps() -> list[Step]:
    """All of them, in order. Comments may stand between the lines of one."""
    text = re.sub(r"^\s*#.*\n", "", DOCKERFILE.read_text(), flags=re.MULTILINE)
    lines = text.replace("\\\n", " ").splitlines()
    return [Step(*line.split(None, 1)) for line in lines if line.strip()]


def texts(name: str) -> list[str]:
    return [step.text for step in steps() if step.name == name]


def copy_of(text: str) -> Copy:
    words = text.split()
    options = dict(word[2:].split("=", 1) for word in words if word.startswith("--"))
    assert options.keys() <= {"from"}, f"COPY {text}: an option that no test knows"
    *sources, target = [word for word in words if not word.startswith("--")]
    return Copy(options.get("from"), tuple(sources), target)


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


STEP_S = 900
ROOTED = re.compile(r"(?<![\w./:-])/(?=\w)")
"""The beginning of an absolute path in a command."""
NOTED = ("apt-get", "useradd", "chown")
USERS_APPLICATION = """
from everflow import StreamsBuilder

builder = StreamsBuilder()
builder.stream("orders").to("bills")
"""


@dataclass
class Image:
    """An image in the making. Every stage has the same folder as its `/` while it is made, since an
    environment of Python knows its own path; what is done is put aside."""

    folder: Path
    environment: dict[str, str] = field(default_factory=dict)
    workdir: str = "/"
    user: str = "root"
    stages: dict[str, Path] = field(default_factory=dict)
    stage: str = ""

    @property
    def root(self) -> Path:
        """The folder that is `/`."""
        return self.folder / "image"

    def do(self, step: Step) -> None:
        """A step. AssertionError where it fails."""
        match step.name:
            case "FROM":
                self._begin(step.text.partition(" AS ")[2] or "the last")
            case "WORKDIR":
                self.workdir = step.text
                self.place(step.text).mkdir(parents=True, exist_ok=True)
            case "ENV":
                self.environment |= dict(part.split("=", 1) for part in step.text.split())
            case "USER":
                self.user = step.text
                self.home.mkdir(parents=True, exist_ok=True)
            case "COPY":
                self._copy(step.text)
            case "RUN":
                self.run(step.text)

    def place(self, path: str) -> Path:
        return self.root / (path if path.startswith("/") else f"{self.workdir}/{path}").lstrip("/")

    def run(self, command: str) -> str:
        """What a shell of the image prints. A user who is not root writes into folders of its own
        only."""
        before = self._files()
        done = subprocess.run(
            ["sh", "-e", "-c", ROOTED.sub(f"{self.root}/", command)],
            cwd=self.place(self.workdir),
            env=self._known(),
            capture_output=True,
            text=True,
            timeout=STEP_S,
            check=False,
        )
        assert done.returncode == 0, f"RUN {command}\n{done.stdout}\n{done.stderr}"
        if self.user != "root":
            written = self._files() - before
            own = [self.place(folder) for folder in self.noted("chown")[1:]] + [self.home]
            strange = [one for one in written if not any(map(one.is_relative_to, own))]
            assert not strange, f"RUN {command}: user {self.user} may not write {strange[:5]}"
        return done.stdout

    def noted(self, tool: str) -> list[str]:
        """The arguments of a tool that was only noted, of all its calls."""
        notes = self.folder / "notes" / tool
        return notes.read_text().replace(str(self.root), "").split() if notes.exists() else []

    @property
    def home(self) -> Path:
        return self.place("/root" if self.user == "root" else f"/home/{self.noted('useradd')[-1]}")

    def _begin(self, stage: str) -> None:
        if self.stage:
            self.stages[self.stage] = self.root.rename(self.folder / f"stage-{self.stage}")
        self.stage, self.environment, self.workdir, self.user = stage, {}, "/", "root"
        self.root.mkdir()

    def _known(self) -> dict[str, str]:
        """Ours, for what the image of Python brings, below that of the image."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        kept.pop("VIRTUAL_ENV", None)
        own = {name: ROOTED.sub(f"{self.root}/", value) for name, value in self.environment.items()}
        path = ":".join([str(self.folder / "tools"), os.environ["PATH"]])
        own["PATH"] = own.get("PATH", "$PATH").replace("$PATH", path)
        if self.user != "root":
            own["PYTHONDONTWRITEBYTECODE"] = "1"  # whose files they are, it could not write them
        return {**kept, **own, "HOME": str(self.home)}

    def _copy(self, text: str) -> None:
        copy = copy_of(text)
        source_root = REPOSITORY if copy.stage is None else self.stages[copy.stage]
        ignored = shutil.ignore_patterns("__pycache__") if copy.stage is None else None
        target = self.place(copy.target)
        for source in copy.sources:
            found = source_root / source.lstrip("/")
            if found.is_dir():
                shutil.copytree(found, target, dirs_exist_ok=True, symlinks=True, ignore=ignored)
            else:
                target.mkdir(parents=True, exist_ok=True)
                shutil.copy(found, target)

    def _files(self) -> set[Path]:
        return {path for path in self.root.rglob("*") if not path.is_dir()}


@pytest.fixture
def image(tmp_path: Path) -> Image:
    made = Image(tmp_path)
    tools, notes = tmp_path / "tools", tmp_path / "notes"
    tools.mkdir()
    notes.mkdir()
    scripts = {name: f'echo "$@" >> {notes}/{name}' for name in NOTED}
    scripts["python"] = f'exec {sys.executable} "$@"'  # the one that the image of Python has
    for name, script in scripts.items():
        (tools / name).write_text(f"#!/bin/sh\n{script}\n")
        (tools / name).chmod(0o755)
    for step in steps():
        made.do(step)
    return made


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_steps_make_an_image_whose_commands_work(image: Image) -> None:
    assert image.user != "root"
    assert {"openjdk-17-jre-headless", "tini"} <= set(image.noted("apt-get"))
    own = image.noted("chown")[1:]
    assert all(image.place(folder).is_dir() for folder in own)
    assert list(image.place("/opt/everflow/cache").rglob("*.jsa")), "the archive of `setup`"
    entry, command = (
        json.loads(step.text) for step in steps() if step.name in ("ENTRYPOINT", "CMD")
    )
    assert entry[:2] == ["tini", "--"]
    everflow = " ".join(entry[2:])
    assert "Usage: everflow" in image.run(" ".join([everflow, *command]))
    assert image.run(f"{everflow} --version").strip() == __version__
    where = image.run("python -c 'import everflow; print(everflow.__file__)'")
    assert Path(where.strip()).is_relative_to(image.place("/opt/everflow/venv")), "the wheel's"
    image.place("app.py").write_text(USERS_APPLICATION)
    assert "orders" in image.run(f"{everflow} describe app:builder")
