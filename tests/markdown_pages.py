"""Reads the code blocks of a page and its invisible comments on them (docs/WRITING.md)."""

import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

SHELL = ("console", "bash", "sh")
OPTIONS = frozenset({"skip", "by", "run", "raises", "contains", "exit", "file", "needs"})

_FENCE = re.compile(r"^(?P<indent> *)(?P<mark>`{3,}|~{3,})\s*(?P<language>[\w+-]*)\s*$")
_LIST_ITEM = re.compile(r"^ *(?:[-*+]|\d+[.)])\s")


class PageError(Exception):
    """A page that says something its reader cannot follow; the message begins with
    ``page:line``."""


@dataclass(frozen=True)
class Block:
    """One code block, or one hidden ``<!-- setup ... -->``.

    Attributes:
        page: path below the checkout.
        line: number of the first line of ``text`` in the page.
        options: what ``<!-- test: ... -->`` in front of it says; an option without a value has the
        empty text.
        output: what the page shows as printed by the block, from the block marked ``<!-- output
        -->`` behind it.
    """

    page: str
    line: int
    language: str
    text: str
    options: Mapping[str, str] = field(default_factory=dict)
    output: str | None = None
    hidden: bool = False

    @property
    def where(self) -> str:
        return f"{self.page}:{self.line}"


def pages() -> list[Path]:
    """README.md and all pages of docs/, but for the design notes: those are decisions of their day,
    kept as they were taken."""
    return [
        ROOT / "README.md",
        *sorted(path for path in (ROOT / "docs").rglob("*.md") if path.parent.name != "design"),
    ]


def page_id(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def blocks(text: str, page: str) -> list[Block]:
    """All blocks in order. Raises PageError for comments and blocks that cannot be followed."""
    found: list[Block] = []
    options: dict[str, str] | None = None
    is_output = False
    reader = _Lines(text, page)
    for number, line in reader:
        comment = reader.comment(line)
        fence = _FENCE.match(line)
        if comment is not None:
            word, _, rest = (
                comment.partition("\n") if comment.startswith("setup") else comment.partition(":")
            )
            if word.strip() == "setup":
                found.append(Block(page, number + 1, "python", rest, hidden=True))
            elif word.strip() == "output":
                is_output = True
            elif word == "test":
                options = {**(options or {}), **_options(rest, f"{page}:{number}")}
        elif fence is not None:
            inner = reader.until_closed(fence)
            if is_output:
                if not found or found[-1].hidden or found[-1].output is not None:
                    raise PageError(
                        f"{page}:{number}: an output without a block that could have printed it"
                    )
                found[-1] = _with_output(found[-1], inner)
            else:
                found.append(Block(page, number + 1, fence["language"], inner, options or {}))
            options, is_output = None, False
        elif line.strip() and (options is not None or is_output):
            raise PageError(f"{page}:{number}: a comment for a code block, and none follows")
        elif reader.begins_indented_code(number, line):
            raise PageError(
                f"{page}:{number}: a code block by indentation; write a fence, which can say what "
                f"it is"
            )
    return found


def shell_commands(block: Block) -> list[str]:
    """The commands of a shell block: of ``console`` the lines behind ``$``, else all of it, with
    continued lines joined."""
    text = block.text.replace("\\\n", " ")
    lines = text.splitlines()
    if block.language == "console":
        lines = [line[2:] for line in lines if line.startswith("$ ")]
    return [line for line in lines if line.strip() and not line.lstrip().startswith("#")]


def shown_output(block: Block) -> bool:
    return any(
        line.strip() and not line.startswith("$ ")
        for line in block.text.replace("\\\n", " ").splitlines()
    )


class _Lines:
    """The lines of a page with their numbers, and what spans several of them."""

    def __init__(self, text: str, page: str) -> None:
        self._lines, self._page, self._at = text.splitlines(), page, 0

    def __iter__(self) -> Iterator[tuple[int, str]]:
        while self._at < len(self._lines):
            self._at += 1
            yield self._at, self._lines[self._at - 1]

    def comment(self, line: str) -> str | None:
        if not line.lstrip().startswith("<!--"):
            return None
        begin, text = self._at, line.lstrip().removeprefix("<!--")
        while "-->" not in text:
            if self._at == len(self._lines):
                raise PageError(f"{self._page}:{begin}: a comment that does not end")
            text += "\n" + self._lines[self._at]
            self._at += 1
        return text.partition("-->")[0].strip(" ")

    def until_closed(self, fence: re.Match[str]) -> str:
        """The lines up to the closing fence, without the fence's own indentation."""
        begin, indent = self._at, len(fence["indent"])
        inner: list[str] = []
        while self._at < len(self._lines):
            line = self._lines[self._at]
            self._at += 1
            if line.strip().startswith(fence["mark"]) and not line.strip().strip(fence["mark"][0]):
                return "".join(
                    f"{one[min(indent, len(one) - len(one.lstrip())) :]}\n" for one in inner
                )
            inner.append(line)
        raise PageError(f"{self._page}:{begin}: a code block that does not end")

    def begins_indented_code(self, number: int, line: str) -> bool:
        before = self._lines[: number - 1]
        if not line.startswith("    ") or not line.strip() or (before and before[-1].strip()):
            return False
        outer = next(
            (one for one in reversed(before) if one.strip() and not one.startswith("  ")), ""
        )
        return not _LIST_ITEM.match(outer)


def _options(text: str, where: str) -> dict[str, str]:
    options = {}
    for word in shlex.split(text):
        name, _, value = word.partition("=")
        if name not in OPTIONS:
            raise PageError(
                f"{where}: unknown option {name!r}; there are {', '.join(sorted(OPTIONS))}"
            )
        options[name] = value
    return options


def _with_output(block: Block, output: str) -> Block:
    return Block(block.page, block.line, block.language, block.text, block.options, output)
