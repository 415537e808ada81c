"""Writes tests/house/error_texts.json: the first line of every error's text, by code, as it stands
in the source.

Run it when an error's text was changed on purpose; the difference then shows in the commit.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterable
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src"
FILE = Path(__file__).parent / "house" / "error_texts.json"
COMMAND = ".venv/bin/python tests/error_texts.py"
CODE = re.compile(r"EF-[A-Z]+(?:-[A-Z]+)*")


def first_line(text: ast.expr) -> str | None:
    """Of a text as it is written, ``{}`` for what is put in; None for what is no text."""
    match text:
        case ast.Constant(value=str(whole)):
            return whole.split("\n")[0]
        case ast.JoinedStr(values=parts):
            whole = "".join(
                str(part.value) if isinstance(part, ast.Constant) else "{}" for part in parts
            )
            return whole.split("\n")[0]
    return None


def own_codes(trees: Iterable[ast.Module]) -> dict[str, str]:
    """Class -> its code, also where it has it from the class above."""
    codes: dict[str, str] = {}
    classes = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    for one in classes:
        for part in one.body:
            match part:
                case ast.Assign(value=ast.Constant(value=str(code))) if CODE.fullmatch(code):
                    codes[one.name] = code
    for _ in classes:
        more = {
            one.name: codes[above]
            for one in classes
            for above in (ast.unparse(base).split(".")[-1] for base in one.bases)
            if one.name not in codes and above in codes
        }
        if not more:
            break
        codes |= more
    return codes


def found() -> dict[str, list[str]]:
    """Code -> the first lines of its errors."""
    trees = [ast.parse(path.read_text()) for path in SOURCE.rglob("*.py")]
    codes = own_codes(trees)
    texts: dict[str, set[str]] = {code: set() for code in codes.values()}
    for call in (
        node
        for tree in trees
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and node.args
    ):
        given = [
            one.value.value
            for one in call.keywords
            if one.arg == "code" and isinstance(one.value, ast.Constant)
        ]
        code = next((str(one) for one in given), codes.get(ast.unparse(call.func).split(".")[-1]))
        text = first_line(call.args[0])
        if code is not None and text is not None:
            texts.setdefault(code, set()).add(text)
    return {code: sorted(lines) for code, lines in sorted(texts.items())}


if __name__ == "__main__":
    FILE.write_text(json.dumps(found(), indent=1, ensure_ascii=False) + "\n")
