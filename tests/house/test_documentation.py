"""Every code block of README.md and docs/ is run by a test, or says why not; shell lines are ones
the commands take.

What a block says by invisible comments: docs/WRITING.md. tests/docs runs them.
"""

import ast
import re
import shlex
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer

from everflow.cli.app import app
from markdown_pages import (
    OPTIONS,
    ROOT,
    SHELL,
    Block,
    PageError,
    blocks,
    page_id,
    pages,
    shell_commands,
    shown_output,
)

# typer's base class; it comes with a click of its own or with the package, by its version
ClickException: type[Any] = next(
    base for base in typer.BadParameter.__mro__ if base.__name__ == "ClickException"
)
PAGES = pages()
ENDS_A_COMMAND = {";", "&", "&&", "|", "||", "(", ")"}
RUN_PY = {
    "bench": "bench/run.py",
    "chaos": "chaos/run.py",
    "oracle": "oracle/run.py",
    "soak": "soak/run.py",
}


def blocks_of(path: Path) -> list[Block]:
    return blocks(path.read_text(), page_id(path))


def problem(block: Block) -> str | None:
    """Why nothing shows that a block is true; None where something does."""
    options = block.options
    if "skip" in options:
        return None if len(options["skip"].split()) >= 2 else 'say why: skip="..."'
    if "by" in options:
        return None if _test_exists(options["by"]) else f"there is no test {options['by']}"
    if "file" in options or block.language == "python":
        return None
    if block.language not in SHELL:
        return (
            f"nothing runs a block of {block.language or 'no language'}; mark it as an output, "
            f"as a file, or say why not"
        )
    if "run" in options or not (
        shown_output(block) if block.language == "console" else block.output
    ):
        return None
    return (
        "it shows what commands print, and no test compares it: mark it with run, or name the "
        "test with by="
    )


def wrong_commands(block: Block) -> list[str]:
    """Lines of a shell block that bash, `everflow` or `./run` would not take."""
    lines = shell_commands(block)
    checked = subprocess.run(
        ["bash", "-n"], input="\n".join(lines), capture_output=True, text=True, check=False
    )
    if checked.returncode:
        return [checked.stderr]
    commands = [words for line in lines for words in _commands(line)]
    return [f"{shlex.join(words)}: {refused}" for words in commands if (refused := _refusal(words))]


def _commands(line: str) -> list[list[str]]:
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    lexer.commenters = "#"
    commands: list[list[str]] = [[]]
    try:
        words = list(lexer)
    except ValueError:
        return []  # a part of a text over several lines, which bash has read already
    for word in words:
        if word in ENDS_A_COMMAND:
            commands.append([])
        elif commands[-1] or not re.match(r"\w+=", word):
            commands[-1].append(word)
    return [words for words in commands if words]


def _refusal(words: list[str]) -> str | None:
    name = Path(words[0]).name
    if name == "exec" and len(words) > 1:
        return _refusal(words[1:])
    if name == "everflow":
        return _everflow_refusal(words[1:])
    if words[0].endswith("/run"):
        return _run_refusal(words[1:])
    return None


def _everflow_refusal(arguments: list[str]) -> str | None:
    """What the command line says to ``arguments``, without running the command."""
    command: Any = typer.main.get_command(app)
    context = None
    try:
        while True:
            context = command.make_context(command.name or "x", list(arguments), parent=context)
            if not isinstance(command, typer.core.TyperGroup):
                return None
            _, command, arguments = command.resolve_command(
                context, [*context._protected_args, *context.args]
            )
    except typer.Exit:
        return None  # --help, --version
    except ClickException as error:
        return str(error.format_message())


def _run_refusal(arguments: list[str]) -> str | None:
    known = set(re.findall(r"^        ([\w |]+)\)$", (ROOT / "run").read_text(), re.MULTILINE))
    names = {name for line in known for name in line.split(" | ")}
    if not arguments or arguments[0] not in names:
        return f"./run has {', '.join(sorted(names))}"
    if arguments[0] in ("demo", "broker"):
        return _everflow_refusal(arguments)
    if arguments[0] in RUN_PY and len(arguments) > 1:
        program = (ROOT / RUN_PY[arguments[0]]).read_text()
        unknown = [word for word in arguments[1:] if word[0] != "/" and f'"{word}"' not in program]
        return (
            f"{RUN_PY[arguments[0]]} does not know {unknown}"
            if arguments[1].startswith("-") and unknown
            else None
        )
    return None


@cache
def _tests_in(path: str) -> frozenset[str]:
    tree = ast.parse((ROOT / path).read_text()) if (ROOT / path).is_file() else ast.Module([], [])
    return frozenset(node.name for node in tree.body if isinstance(node, ast.FunctionDef))


def _test_exists(name: str) -> bool:
    path, _, function = name.partition("::")
    return function.startswith("test_") and function in _tests_in(path)


@pytest.mark.parametrize("path", PAGES, ids=page_id)
def test_every_block_is_run_or_says_why_not(path: Path) -> None:
    assert [f"{block.where}: {said}" for block in blocks_of(path) if (said := problem(block))] == []


@pytest.mark.parametrize("path", PAGES, ids=page_id)
def test_shell_lines_are_ones_that_the_commands_take(path: Path) -> None:
    shell = [one for one in blocks_of(path) if one.language in SHELL and "skip" not in one.options]
    assert [f"{block.where}: {wrong}" for block in shell for wrong in wrong_commands(block)] == []


@pytest.mark.parametrize("path", PAGES, ids=page_id)
def test_python_blocks_can_be_read(path: Path) -> None:
    for block in blocks_of(path):
        if (
            block.language == "python"
            and "skip" not in block.options
            and "by" not in block.options
            and ">>> " not in block.text
        ):
            compile(block.text, block.where, "exec")


def _links(path: Path) -> list[str]:
    text = re.sub(r"```.*?```", "", path.read_text(), flags=re.DOTALL)
    return [link for link in re.findall(r"\]\(([^)\s]+)\)", text) if not re.match(r"\w+:", link)]


def _anchors(path: Path) -> set[str]:
    """GitHub's anchors of a page's headings, and those that the page sets itself."""
    text = re.sub(r"```.*?```", "", path.read_text(), flags=re.DOTALL)
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    made = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
    return made | set(re.findall(r'<a (?:id|name)="([^"]+)"', text))


@pytest.mark.parametrize("path", PAGES, ids=page_id)
def test_links_lead_somewhere(path: Path) -> None:
    wrong = []
    for link in _links(path):
        name, _, anchor = link.partition("#")
        target = (path.parent / name).resolve() if name else path
        if not target.exists() or (
            anchor and target.suffix == ".md" and anchor not in _anchors(target)
        ):
            wrong.append(link)
    assert wrong == []


def test_every_option_is_in_the_manual() -> None:
    manual = (ROOT / "docs" / "WRITING.md").read_text()
    named = set(re.findall(r"[\w]+", " ".join(re.findall(r"`<!-- test: (.*?)-->`", manual))))
    assert named >= OPTIONS


@pytest.mark.parametrize(
    ("page", "says"),
    [
        ("```json\n{}\n```", "block of json"),
        ("```\nx\n```", "no language"),
        ('<!-- test: skip="no" -->\n```text\nx\n```', "say why"),
        (
            "<!-- test: by=tests/house/test_documentation.py::test_gone -->\n```text\nx\n```",
            "there is no",
        ),
        ("```console\n$ echo x\nx\n```", "compares"),
        ("```bash\necho x\n```\n<!-- output -->\n```text\nx\n```", "compares"),
    ],
)
def test_a_block_that_nobody_runs_is_found(page: str, says: str) -> None:
    (said,) = [problem(block) for block in blocks(page, "p.md")]
    assert said is not None
    assert says in said


@pytest.mark.parametrize(
    "page",
    [
        "<!-- test: skipp -->\n```text\nx\n```",
        "<!-- test: run -->\nsome text",
        "<!-- output -->\n```text\nx\n```",
        "some text\n\n    indented code\n",
        "```python\nx = 1\n",
    ],
)
def test_a_page_that_cannot_be_followed_is_refused(page: str) -> None:
    with pytest.raises(PageError, match=r"^p\.md:\d"):
        blocks(page, "p.md")


@pytest.mark.parametrize(
    "line",
    [
        "everflow runn x:y",
        "everflow run x:y --gurantee none",
        "cd here && .venv/bin/everflow describe",
        "A=1 everflow simulate --tasks many",
        "./run dance",
        "./run demo --instances 7",
        "./run bench --figures",
        "echo 'not closed",
    ],
)
def test_a_shell_line_that_would_be_refused_is_found(line: str) -> None:
    assert wrong_commands(Block("p.md", 1, "bash", f"{line}\n")) != []


def test_a_shell_line_as_people_write_them_passes() -> None:
    text = (
        "everflow broker --port 9092 --topic flights:4   # a broker\n"
        "everflow describe flights:builder | head -3 && ./run bench throughput; ./run demo --json "
        "out.json\n"
        "exec everflow run flights:builder --application-id delays \\\n    --set "
        "group.instance.id=$HOSTNAME\n"
        "everflow run --help\n"
    )
    assert wrong_commands(Block("p.md", 1, "bash", text)) == []
