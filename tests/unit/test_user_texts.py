"""What somebody else's text may do to a terminal or a file of lines: nothing."""

import io
import json
import logging
import sys
import unicodedata
from pathlib import Path

import pytest
from rich.console import Console

from everflow.cli.commands import Output, echo, error_text, show
from everflow.cli.state import _cell
from everflow.console.status import StatusLine
from everflow.errors import FatalError
from everflow.kafka.dead_letters import LetterPlace, RawLetter, letter_of, line_of, text_of
from everflow.logs import LogFile
from everflow.user_program import one_line, printable
from everflow.worker.task_step import cell

FORGED = "2026-11-21 21:14:06.000 ERROR MainThread everflow: forged"
HOSTILE = f"\x1b[2K\r0 dead letters\x1b]0;title\x07\x9b31m\u202eevil\u2028\x7f\n{FORGED}\tx"


def harmless(text: str) -> bool:
    """Whether only line breaks and tabs are left of what a terminal obeys."""
    kinds = {"Cc", "Zl", "Zp", "Cs"}
    bad = {"\u202e", *(one for one in text if unicodedata.category(one) in kinds)}
    return not bad - {"\n", "\t"} & set(text)


def test_every_control_character_is_escaped_and_nothing_else() -> None:
    everything = [chr(code) for code in range(sys.maxunicode + 1)]
    for one in everything:
        category, direction = unicodedata.category(one), unicodedata.bidirectional(one)
        obeyed = category in ("Cc", "Zl", "Zp", "Cs") or direction in (
            *("LRE", "RLE", "PDF", "LRO", "RLO"),
            *("LRI", "RLI", "FSI", "PDI"),
        )
        if obeyed:
            assert one_line(one).isascii(), hex(ord(one))
            assert one_line(one).isprintable(), hex(ord(one))
        elif category not in ("Cf", "Cn"):
            assert one_line(one) == one, hex(ord(one))
    for kept in ("família", "日本\u3000語", "👩\u200d👧", "a\u00a0b", "שלום", r"\x1b"):
        assert printable(kept) == kept


def test_json_stays_the_same_json() -> None:
    data = {HOSTILE: [HOSTILE, "\U000e0041", "👩"]}
    for ascii_only in (True, False):
        text = json.dumps(data, ensure_ascii=ascii_only, indent=2)
        assert json.loads(printable(text)) == data
        assert harmless(printable(text))


def test_what_a_letter_says_forges_no_line_and_no_column() -> None:
    names = ("exception", "message", "topic", "partition", "offset")
    headers = [(f"__streams.errors.{name}", HOSTILE.encode()) for name in names]
    headers += [("__streams.errors.stacktrace", HOSTILE.encode())]
    headers += [("__everflow.errors.node", HOSTILE.encode()), (HOSTILE, HOSTILE.encode())]
    raw = HOSTILE.encode()
    own = (HOSTILE, raw)
    letter = letter_of(RawLetter(LetterPlace(0, 1), 5, raw, raw, [own, *headers]))
    line = line_of(letter)
    assert (line.count("\t"), line.count("\n"), harmless(line)) == (4, 0, True)
    text = text_of(letter)
    assert harmless(text)

    described = text.split("header       ")[0].splitlines()
    assert not any(one.startswith(FORGED) for one in described)


@pytest.mark.parametrize("on_terminal", [True, False])
def test_a_status_line_shows_no_control_characters(on_terminal: bool) -> None:
    out = io.StringIO()
    console = Console(file=out, force_terminal=on_terminal, color_system=None, width=200)
    with StatusLine(console) as status:
        status.say(HOSTILE)
        status.line(HOSTILE)
        status.show(HOSTILE, below=[HOSTILE], now=True)
    assert "\x1b]0;" not in out.getvalue()
    assert "title\x07" not in out.getvalue()
    assert "\u202e" not in out.getvalue()
    assert "\\u001b[2K\\r0 dead letters" in out.getvalue()


def test_errors_and_results_show_none(capsys: pytest.CaptureFixture[str]) -> None:
    told = error_text(FatalError(HOSTILE), "EF-FATAL", [HOSTILE])
    echo(HOSTILE)
    echo(HOSTILE, err=True)
    show(Output.text, {}, [HOSTILE])
    show(Output.json, {"a": HOSTILE}, [])
    printed = capsys.readouterr()
    for text in (told, printed.out, printed.err):
        assert harmless(text)
    assert [line for line in told.splitlines() if line.startswith(FORGED)] == []


def test_a_cell_is_one_line() -> None:
    for shown in (cell(HOSTILE[:30]), _cell(HOSTILE[:30])):
        assert harmless(shown)
        assert "\n" not in shown
    assert cell("a\tb") == r"a\tb"


def test_no_record_forges_a_line_of_the_log(tmp_path: Path) -> None:
    log = logging.getLogger("everflow.sample")
    file = LogFile(tmp_path / "everflow.log")
    try:
        log.warning("left out: %s", HOSTILE)
        try:
            raise ValueError(HOSTILE)
        except ValueError:
            log.debug("failed", exc_info=True)
    finally:
        file.close()
    text = file.path.read_text()
    assert harmless(text)
    assert [line for line in text.splitlines() if line.startswith(FORGED[:24])] == []
    assert text.count("forged") >= 2


def test_handlers_of_the_program_get_none_either(caplog: pytest.LogCaptureFixture) -> None:
    root = logging.getLogger()
    out = io.StringIO()
    handler = logging.StreamHandler(out)
    root.addHandler(handler)
    try:
        logging.getLogger("everflow.sample").warning("left out: %s", HOSTILE)
    finally:
        root.removeHandler(handler)
    assert "forged" in out.getvalue()
    assert harmless(out.getvalue())
    assert not any(line.startswith(FORGED) for line in out.getvalue().splitlines())
