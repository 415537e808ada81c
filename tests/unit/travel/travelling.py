"""A worker process for tests that calls what is in parcels; modules written to a folder."""

from __future__ import annotations

import base64
import importlib
import pickle
import subprocess
import sys
import textwrap
from pathlib import Path
from types import ModuleType
from typing import Any

from everflow.travel.pickled_objects import PickledObjects

_WORKER = """
import base64, pickle, sys, traceback
from everflow.travel.pickled_objects import no_program_yet
no_program_yet()  # as the workers' daemon does
for line in sys.stdin:
    parcel, place, arguments = pickle.loads(base64.b64decode(line))
    try:
        found = parcel.open()
        answer = ("result", found[place](*arguments))
    except BaseException as error:
        answer = ("error", f"{type(error).__name__}: {error}")
    print(base64.b64encode(pickle.dumps(answer)).decode(), flush=True)
"""


class Worker:
    """A Python process that has imported nothing of the program."""

    def __init__(self, folder: Path) -> None:
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self._process = subprocess.Popen(
            [sys.executable, "-c", _WORKER], env={"PYTHONPATH": str(folder)}, **pipes
        )

    def call(self, parcel: PickledObjects, place: int, *arguments: Any) -> Any:
        """The result of the function at ``place`` of the parcel; RuntimeError with what it
        raised."""
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(
            base64.b64encode(pickle.dumps((parcel, place, arguments))).decode() + "\n"
        )
        self._process.stdin.flush()
        kind, found = pickle.loads(base64.b64decode(self._process.stdout.readline()))
        if kind == "error":
            raise RuntimeError(found)
        return found

    def close(self) -> None:
        self._process.communicate("")


class Program:
    """A folder with modules of a user's program, on this process's path."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def module(self, name: str, text: str) -> ModuleType:
        """Write and import ``name``; folders of its packages are made."""
        self.write(name, text)
        importlib.invalidate_caches()
        return importlib.import_module(name)

    def write(self, name: str, text: str) -> None:
        file = self.folder.joinpath(*name.split(".")).with_suffix(".py")
        if name.endswith(".__init__"):
            file = self.folder.joinpath(*name.split(".")[:-1]) / "__init__.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(textwrap.dedent(text))
