"""People get everflow's lines, each once, with the time; the file gets everything."""

import functools
import io
import json
import logging
import re
import stat
import sys
import traceback
import unicodedata
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar, cast

import pytest
from rich.console import Console

from everflow import logs
from everflow.cli.commands import Output, echo, error_text, show
from everflow.cli.state import _cell
from everflow.console.status import StatusLine
from everflow.errors import FatalError, without_history
from everflow.kafka.dead_letters import LetterPlace, RawLetter, letter_of, line_of, text_of
from everflow.logs import JsonLines, LogFile, Repeats, install, lines_to, log_path, rebalance_log
from everflow.user_program import one_line, printable
from everflow.worker.task_step import cell

OWN = logging.getLogger("everflow.sample")
Test = TypeVar("Test", bound=Callable[..., None])
Capture = pytest.CaptureFixture[str]
NOW = "2026-11-22 10:00:00"


def in_a_plain_program(test: Test) -> Test:
    """The test is a program that has not touched logging: pytest's own handlers are set aside
    (within the call: it looks for them behind it)."""

    @functools.wraps(test)
    def run(**fixtures: Any) -> None:
        root, own, kafka = (logging.getLogger(name) for name in ("", "everflow", "kafka"))
        before = root.handlers, root.level, own.level, kafka.handlers, kafka.propagate, kafka.level
        root.handlers, own.level = [], logging.NOTSET
        kafka.handlers, kafka.propagate, kafka.level = [logging.NullHandler()], True, logging.NOTSET
        own.manager._clear_cache()  # type: ignore[attr-defined]
        try:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(logs._people, "_repeats", Repeats())
                patch.setattr(logs, "time_of_day", lambda: NOW)
                install()
                test(**fixtures)
        finally:
            root.handlers, root.level, own.level, kafka.handlers, kafka.propagate, kafka.level = (
                before
            )
            own.manager._clear_cache()  # type: ignore[attr-defined]

    return cast(Test, run)


@contextmanager
def opened(path: Path) -> Iterator[LogFile]:
    file = LogFile(path)
    try:
        yield file
    finally:
        file.close()


def test_rows_are_json_lines_for_this_user_only(tmp_path: Path) -> None:
    file = JsonLines(tmp_path / "logs" / "rows.jsonl")
    file.add({"why": "100 % of ü\n", "gap": None})
    file.add({"why": "%s"})
    file.close()
    lines = file.path.read_text().splitlines()
    assert [json.loads(line)["why"] for line in lines] == ["100 % of ü\n", "%s"]
    assert stat.S_IMODE(file.path.stat().st_mode) == 0o600


@in_a_plain_program
def test_a_full_disk_takes_no_lines_and_does_not_disturb_the_end(tmp_path: Path) -> None:
    """Where the thread that ends an instance failed with it."""
    file = LogFile(tmp_path / "log")
    assert file.stream is not None
    file.stream.close()
    file.stream = Path("/dev/full").open("w")  # noqa: SIM115 - it is closed with the file
    logging.getLogger("everflow").warning("no answer from Kafka")
    file.close()
    file.close()


@in_a_plain_program
def test_what_an_earlier_instance_said_is_new_for_the_next(capsys: Capture, tmp_path: Path) -> None:
    for name in ("first", "second"):
        with opened(tmp_path / name):
            logging.getLogger("everflow").warning("no answer from Kafka")
            logging.getLogger("everflow").warning("no answer from Kafka")
    assert capsys.readouterr().err.splitlines() == [f"{NOW} WARNING no answer from Kafka"] * 2


@in_a_plain_program
def test_a_program_without_configuration_reads_warnings_and_moves(capsys: Capture) -> None:
    OWN.debug("quiet")
    OWN.info("quiet too")
    rebalance_log.info("Joining the group")
    OWN.warning("no answer from %s", "Kafka")
    assert (
        capsys.readouterr().err == f"{NOW} Joining the group\n{NOW} WARNING no answer from Kafka\n"
    )


@in_a_plain_program
def test_a_program_with_configuration_gets_records_once_by_its_levels(capsys: Capture) -> None:
    logging.basicConfig(format="mine: %(message)s", level=logging.INFO)
    OWN.debug("too fine")
    OWN.info("a word")
    logging.getLogger("everflow.fine").setLevel(logging.DEBUG)
    logging.getLogger("everflow.fine").debug("asked for")
    assert capsys.readouterr().err == "mine: a word\nmine: asked for\n"


@in_a_plain_program
def test_noise_and_tracebacks_are_in_the_file_only(tmp_path: Path, capsys: Capture) -> None:
    with opened(log_path(tmp_path, "app")) as file:
        logging.getLogger("kafka.conn").error("<BrokerConnection node_id=1>: connect failed")
        OWN.debug("a detail")
        try:
            raise ValueError("broken")
        except ValueError:
            OWN.exception("The loop failed")
        written = file.path.read_text()
    assert capsys.readouterr().err == f"{NOW} ERROR The loop failed\n"
    assert "<BrokerConnection node_id=1>" in written
    assert "a detail" in written
    assert "ValueError: broken" in written
    assert re.search(
        r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} DEBUG MainThread everflow\.sample: a detail$",
        written,
        re.MULTILINE,
    )


@in_a_plain_program
def test_the_file_is_private_and_has_what_was_said_before_it_was_open(tmp_path: Path) -> None:
    logging.getLogger(logs.SPARK_OUTPUT).debug("WARNING: Using incubator modules")
    with opened(log_path(tmp_path, "app")) as file:
        assert file.path == tmp_path / "app" / "logs" / "everflow.log"
        assert stat.S_IMODE(file.path.stat().st_mode) == 0o600
        assert stat.S_IMODE(file.path.parent.stat().st_mode) == 0o700
        OWN.info("later")
        written = file.path.read_text()
    assert written.index("incubator modules") < written.index("later")
    OWN.info("after its end")
    assert "after its end" not in file.path.read_text()


@in_a_plain_program
def test_the_file_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "FILE_BYTES", 10_000)
    with opened(log_path(tmp_path, "app")) as file:
        for number in range(2_000):
            OWN.debug("line %d %s", number, "x" * 50)
    sizes = [path.stat().st_size for path in file.path.parent.iterdir()]
    assert len(sizes) == logs.FILES
    assert max(sizes) <= 10_000


@in_a_plain_program
def test_the_screen_s_owner_gets_lines_and_the_file_does(tmp_path: Path, capsys: Capture) -> None:
    taken: list[str] = []
    root = logging.getLogger()
    root.addHandler(logging.StreamHandler())
    root.addHandler(logging.FileHandler(tmp_path / "own.log"))
    with lines_to(taken.append):
        OWN.warning("no answer")
        OWN.info("a word")
        rebalance_log.info("Joining the group")
    root.handlers[1].close()
    assert taken == ["WARNING no answer", "Joining the group"]
    assert capsys.readouterr().err == ""
    assert (tmp_path / "own.log").read_text() == "no answer\n"


@in_a_plain_program
def test_verbose_shows_sparks_output_and_tracebacks() -> None:
    taken: list[str] = []
    with lines_to(taken.append, verbose=True):
        logging.getLogger(logs.SPARK_OUTPUT).debug("from the JVM")
        OWN.info("a word")
        try:
            raise ValueError("broken")
        except ValueError:
            OWN.exception("The loop failed")
    # A Spark session of another test in this process may still say something, which is shown as
    # well.
    said = [
        text
        for text in taken
        if text in ("from the JVM", "a word") or text.startswith("ERROR The loop failed")
    ]
    assert said[:2] == ["from the JVM", "a word"]
    (told,) = said[2:]
    assert told.splitlines()[0] == "ERROR The loop failed"
    assert told.splitlines()[-1] == "  ValueError: broken"


def test_a_text_that_repeats_comes_at_growing_intervals_with_the_seconds() -> None:
    said = Repeats()
    told = [
        (at, text)
        for at in range(0, 200, 5)
        if (text := said.again(f"broker away (giving up in {300 - at} s)", float(at)))
    ]
    assert [at for at, _ in told] == [0, 10, 30, 90]
    assert told[0][1] == "broker away (giving up in 300 s)"
    assert told[2][1] == "broker away (giving up in 270 s) (for 30 s now)"


def test_another_text_is_said_at_once_and_one_long_gone_is_new() -> None:
    said = Repeats()
    assert said.again("task 0_1 is lost", 0.0) == "task 0_1 is lost"
    assert said.again("task 0_2 is lost", 0.0) == "task 0_2 is lost"
    assert said.again("task 0_1 is lost", 1.0) is None
    assert said.again("task 0_1 is lost", 1.0 + Repeats.FORGOTTEN_S + 1) == "task 0_1 is lost"


@in_a_plain_program
def test_a_client_that_the_program_set_up_itself_stays_its_own() -> None:
    mine = logging.getLogger("kafka")
    for level, kept in ((logging.DEBUG, True), (logging.NOTSET, False)):
        mine.handlers, mine.propagate, mine.level = [logging.NullHandler()], True, level
        install()
        assert mine.propagate == kept


# What a user sees of an instance's error.


def test_an_error_without_history_is_shown_by_itself() -> None:
    try:
        try:
            raise OSError("py4j: the socket is closed")
        except OSError as cause:
            raise FatalError("a record cannot be processed") from cause
    except FatalError as error:
        found = error
    assert "py4j" in "".join(traceback.format_exception(found))
    try:
        raise without_history(found)
    except FatalError as raised:
        shown = "".join(traceback.format_exception(raised))
    assert "py4j" not in shown
    assert shown.count("File ") == 1, "the line that raises it now"
    assert shown.endswith("FatalError: a record cannot be processed\n")


# What somebody else's text may do to a terminal or a file of lines.


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
