"""Prints a warning for each module of more than 900 lines and each function of more than 80.

A part of `./run lint`. It never fails: a large one is read again, not cut at a line number.
"""

import ast
import sys
from pathlib import Path

MODULE, FUNCTION = 900, 80


def warnings(path: Path) -> list[str]:
    text = path.read_text()
    found = []
    lines = text.count("\n")
    if lines > MODULE:
        found.append(f"{path}: {lines} lines, more than {MODULE}")
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            if lines > FUNCTION:
                found.append(
                    f"{path}:{node.lineno}: {node.name} has {lines} lines, more than {FUNCTION}"
                )
    return found


if __name__ == "__main__":
    for folder in sys.argv[1:]:
        for module in sorted(Path(folder).rglob("*.py")):
            for line in warnings(module):
                print(f"warning: {line}")
