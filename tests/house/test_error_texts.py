"""Codes and texts of errors are what people search for: they change on purpose only."""

from __future__ import annotations

import ast
import json

from error_texts import COMMAND, FILE, first_line, found, own_codes


def test_every_code_says_what_it_said() -> None:
    listed, now = json.loads(FILE.read_text()), found()
    assert sorted(listed) == sorted(now), f"a code came or went; if that is meant: {COMMAND}"
    for code, lines in now.items():
        assert listed[code] == lines, f"{code} says something else; if that is meant: {COMMAND}"


def test_a_text_is_read_with_what_is_put_into_it_left_out() -> None:
    module = ast.parse(
        'class A(E):\n    code = "EF-A"\nclass B(A): pass\nraise B(f"{tp}: gone\\nmore", 1)'
    )
    assert own_codes([module]) == {"A": "EF-A", "B": "EF-A"}
    call = next(node for node in ast.walk(module) if isinstance(node, ast.Call))
    assert first_line(call.args[0]) == "{}: gone"
