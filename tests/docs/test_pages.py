"""The code of README.md and docs/ does what the pages say. How a page says it: docs/WRITING.md.

All pages in one file, so that they share one Spark context and one broker.
"""

import contextlib
import doctest
import io
import linecache
import os
import re
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from made_pages import GUIDE, made, marked, semantics
from markdown_pages import SHELL, Block, blocks, page_id, pages
from semantics.families import PAGES

BROKER_OF_PAGES = "localhost:9092"
COMMAND_TIMEOUT_S = 120


class BlockError(AssertionError):
    """A block does not do what its page says; the message begins with ``page:line``."""


class PageProgram:
    """Runs blocks. ``folder`` is the current folder of all of them; ``bootstrap`` stands in for the
    address that pages write."""

    def __init__(self, folder: Path, bootstrap: str | None) -> None:
        self._folder, self._bootstrap = folder, bootstrap
        # As in a script or a notebook: functions and classes of the page travel to the workers by
        # value.
        self._names: dict[str, Any] = {"__name__": "__main__"}

    def run(self, block: Block) -> None:
        """Raises BlockError where the block fails or prints something else than the page shows."""
        if "skip" in block.options or "by" in block.options:
            return
        if "file" in block.options:
            target = self._folder / block.options["file"]
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(self._here(block.text))
        elif block.language == "console" and "run" in block.options:
            for command, shown in _console(block):
                self._compare(block, self._shell(block, command), shown)
        elif block.language in SHELL and "run" in block.options:
            printed = self._shell(block, block.text)
            if block.output is not None:
                self._compare(block, printed, block.output)
        elif block.language == "python" and ">>> " in block.text:
            self._doctest(block)
        elif block.language == "python":
            self._python(block)

    def _python(self, block: Block) -> None:
        # Errors and tracebacks name the page and its line.
        source = "\n" * (block.line - 1) + self._here(block.text)
        linecache.cache[block.page] = (
            len(source),
            None,
            source.splitlines(keepends=True),
            block.page,
        )
        raised: BaseException | None = None
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            try:
                exec(compile(source, block.page, "exec"), self._names)
            except (Exception, SystemExit) as error:
                raised = error
        if "raises" in block.options:
            self._expect(block, raised)
            self._compare(
                block, f"{raised}\n", block.output if block.output is not None else f"{raised}\n"
            )
        elif raised is not None:
            raise BlockError(
                f"{block.where}: {''.join(traceback.format_exception(raised))}"
            ) from raised
        elif not block.hidden:
            self._compare(block, printed.getvalue(), block.output or "")

    def _expect(self, block: Block, raised: BaseException | None) -> None:
        wanted, contained = block.options["raises"], block.options.get("contains", "")
        if (
            raised is None
            or wanted not in [base.__name__ for base in type(raised).__mro__]
            or contained not in str(raised)
        ):
            raise BlockError(
                f"{block.where}: {wanted} with {contained!r} was to be raised, found {raised!r}"
            ) from raised

    def _doctest(self, block: Block) -> None:
        test = doctest.DocTestParser().get_doctest(
            self._here(block.text), self._names, block.page, block.page, block.line - 1
        )
        test.globs = self._names  # not a copy: later blocks go on
        said = io.StringIO()
        failed, _ = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(
            test, out=said.write, clear_globs=False
        )
        if failed:
            raise BlockError(f"{block.where}:\n{said.getvalue()}")

    def _shell(self, block: Block, command: str) -> str:
        done = subprocess.run(
            ["bash", "-e", "-o", "pipefail", "-c", self._here(command)],
            cwd=self._folder,
            env={
                **os.environ,
                "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
                "COLUMNS": "160",
            },
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=COMMAND_TIMEOUT_S,
            check=False,
        )
        if done.returncode != int(block.options.get("exit", "0")):
            raise BlockError(
                f"{block.where}: {command!r} ended with {done.returncode}:\n{done.stdout}"
            )
        return done.stdout

    def _compare(self, block: Block, printed: str, shown: str) -> None:
        if self._bootstrap is not None:
            printed = printed.replace(self._bootstrap, BROKER_OF_PAGES)
        if not doctest.OutputChecker().check_output(
            _lines(shown), _lines(printed), doctest.ELLIPSIS
        ):
            raise BlockError(
                f"{block.where}: the page shows\n{shown}\nand the block says\n{printed}"
            )

    def _here(self, text: str) -> str:
        return (
            text.replace(BROKER_OF_PAGES, self._bootstrap) if self._bootstrap is not None else text
        )


@contextlib.contextmanager
def in_folder(folder: Path) -> Iterator[None]:
    """``folder`` as the current one and first on the import path; modules imported from it are
    forgotten afterwards."""
    before = Path.cwd()
    os.chdir(folder)
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        os.chdir(before)
        sys.path.remove(str(folder))
        for name, module in list(sys.modules.items()):
            if str(getattr(module, "__file__", None) or "").startswith(f"{folder}{os.sep}"):
                del sys.modules[name]


def _console(block: Block) -> Iterator[tuple[str, str]]:
    """Commands with the output shown below each."""
    for part in ("\n" + block.text).split("\n$ ")[1:]:
        command, _, shown = part.replace("\\\n", " ").partition("\n")
        yield command, shown


def _lines(text: str) -> str:
    return "".join(f"{line.rstrip()}\n" for line in text.strip("\n").splitlines())


TEXTS = {page_id(path): path.read_text() for path in pages()}


def _needs_a_broker(page: str) -> bool:
    return re.search(r"<!-- test:.* needs=broker\b", TEXTS[page]) is not None


def _parameter(page: str) -> Any:
    return pytest.param(
        page,
        marks=[pytest.mark.spark, *([pytest.mark.broker] if _needs_a_broker(page) else [])],
        id=page,
    )


@pytest.mark.parametrize(
    "page", [_parameter(page) for page, text in TEXTS.items() if "```" in text]
)
def test_a_page_does_what_it_says(
    page: str, spark: SparkSession, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark starts before the first page: in a folder that stays, and what is said of a slow start
    is none of a page's output."""
    bootstrap = request.getfixturevalue("bootstrap") if _needs_a_broker(page) else None
    # Short, unlike tmp_path: sockets of Spark's workers lie in it.
    with tempfile.TemporaryDirectory(prefix="ef-") as folder, in_folder(Path(folder)):
        monkeypatch.setenv("XDG_STATE_HOME", folder)
        program = PageProgram(Path(folder), bootstrap)
        for block in blocks(TEXTS[page], page):
            program.run(block)


@pytest.mark.parametrize(
    ("page", "says"),
    [
        (
            "```python\nprint(1)\n```\n<!-- output -->\n```text\n2\n```",
            r"p\.md:2: .* shows\n2\n\n.* says\n1",
        ),
        ("```python\nprint(1)\n```", r"p\.md:2: .* shows\n\n.* says\n1"),
        ("```python\n>>> 1 + 1\n3\n```", r"(?s)p\.md:2.*Expected:\n    3\nGot:\n    2"),
        ("```python\n\n1 / 0\n```", r'(?s)File "p\.md", line 3.*ZeroDivisionError'),
        (
            "<!-- test: raises=ValueError contains=seven -->\n```python\nint('six')\n```",
            r"ValueError.*'seven'",
        ),
        ("<!-- test: raises=KeyError -->\n```python\npass\n```", r"raised.*None"),
        ("<!-- test: run -->\n```console\n$ echo a\nb\n```", r"p\.md:3: .* shows\nb"),
        ("<!-- test: run -->\n```bash\nfalse\n```", "ended with 1"),
        ("<!-- test: run exit=3 -->\n```bash\nexit 2\n```", "ended with 2"),
    ],
)
def test_a_page_that_differs_from_its_code_is_found(page: str, says: str, tmp_path: Path) -> None:
    with pytest.raises(BlockError, match=says):
        _run(blocks(page, "p.md"), tmp_path)


def test_a_page_is_one_program_with_files_of_its_own(tmp_path: Path) -> None:
    page = """
<!-- test: file=numbers_of_page.py -->
```python
ONE = 1
```
<!-- setup
two = 2
-->
```python
from numbers_of_page import ONE
def three():
    return ONE + two
```
```python
>>> three()
3
```
<!-- test: run -->
```console
$ python -c 'import numbers_of_page as n; print(n.ONE); print("and so on")'
1
...
```
"""
    with in_folder(tmp_path):
        _run(blocks(page, "p.md"), tmp_path)


def _run(found: list[Block], folder: Path) -> None:
    program = PageProgram(folder, None)
    for block in found:
        program.run(block)


@pytest.mark.spark
@pytest.mark.parametrize("page", PAGES)
def test_the_tables_of_a_page_are_what_the_driver_gives(page: str, spark: SparkSession) -> None:
    text, parts = (GUIDE / page).read_text(), semantics(page)
    assert set(marked(text)) == set(parts)
    assert text == made(text, parts), "run .venv/bin/python tests/made_pages.py"
