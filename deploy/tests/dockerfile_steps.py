"""The steps of deploy/docker/Dockerfile, as the tests read them."""

import re
from pathlib import Path
from typing import NamedTuple

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
