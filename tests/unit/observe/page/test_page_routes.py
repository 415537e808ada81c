"""The page over HTTP: its files, its view and its token."""

import base64
import contextlib
import json
import re
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from everflow.errors import RetriableError
from everflow.observe.figures import FIGURES
from everflow.observe.http_server import HttpServer, application
from everflow.observe.page.history import Facts
from everflow.observe.page.routes import (
    FILES,
    HEADERS,
    MOST_BODY_BYTES,
    CauseLetters,
    LetterCause,
    LettersFound,
    LettersReplayed,
    Page,
    from_this_page,
)
from everflow.observe.requests import allowed
from unit.observe.observations import WHOLE
from unit.observe.page.page_facts import SHOWN

TOKEN = "a-token-of-many-characters"


@contextlib.contextmanager
def served(look: Callable[[], Facts] = lambda: SHOWN, **values: Any) -> Iterator[str]:
    page = Page(facts=look, drawing="<svg></svg>", **values)
    app = application(lambda: WHOLE, "Topologies:\n", page=page)
    server = HttpServer("127.0.0.1:0", app)
    try:
        yield server.address
    finally:
        server.close()


def get(address: str, path: str, **headers: str) -> tuple[int, dict[str, str], str]:
    asked = urllib.request.Request(f"http://{address}{path}", headers=headers)
    try:
        with urllib.request.urlopen(asked, timeout=60) as answer:
            return answer.status, dict(answer.headers), answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, dict(error.headers), error.read().decode()


def test_files_load_nothing_from_elsewhere() -> None:
    with served() as address:
        for path, kind in (
            ("/page", "text/html"),
            ("/page/page.js", "text/javascript"),
            ("/page/page.css", "text/css"),
        ):
            status, headers, text = get(address, path)
            assert status == 200
            assert headers["content-type"].startswith(kind)
            assert {name.lower(): value for name, value in HEADERS.items()}.items() <= {
                name.lower(): value for name, value in headers.items()
            }.items()
            assert "http://" not in text.replace("http://www.w3.org/2000/svg", "")
            assert "https://" not in text
        assert "<svg></svg>" in get(address, "/page")[2]


def test_the_script_makes_no_markup_of_texts() -> None:
    with served() as address:
        script = get(address, "/page/page.js")[2]
    for way in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("):
        assert way not in script


def test_the_page_draws_each_phase_of_a_batch_in_a_colour_of_its_own() -> None:
    (drawn,) = re.findall(r"const PHASES = \[(.*)\];", (FILES / "page.js").read_text())
    phases = re.findall(r'"(\w+)"', drawn)
    (figure,) = (one for one in FIGURES if one.name == "everflow_batch_seconds_total")
    assert sorted(phases) == sorted(re.findall(r"`(\w+)`", figure.text))
    style = (FILES / "page.css").read_text()
    colours = [re.findall(rf"\.p{n} {{ background: (.*?); }}", style) for n in range(len(phases))]
    assert [len(one) for one in colours] == [1] * len(phases)
    assert len({one[0] for one in colours}) == len(phases)


def test_a_browser_at_the_root_is_sent_to_the_page() -> None:
    with served() as address:
        assert "<title>everflow" in get(address, "/", Accept="text/html,*/*")[2]
        assert "/page\n" in get(address, "/", Accept="*/*")[2]


def test_a_look_that_fails_is_told_and_the_next_may_succeed() -> None:
    failing = [True]

    def look() -> Facts:
        if failing[0]:
            raise OSError("no disk")
        return SHOWN

    with served(look, every_s=0.0) as address:
        found = json.loads(get(address, "/page/view")[2])
        assert found == {"error": "OSError: the instance's log says more"}
        failing[0] = False
        assert "verdict" in json.loads(get(address, "/page/view")[2])


def test_all_readers_share_one_view() -> None:
    looks: list[int] = []
    now_s = [100.0]

    def look() -> Facts:
        looks.append(1)
        return SHOWN

    with served(look, every_s=2.0, clock=lambda: now_s[0]) as address:
        assert len({get(address, "/page/view")[2] for _ in range(20)}) == 1
        assert len(looks) == 1
        now_s[0] += 2.0
        get(address, "/page/view")
        assert len(looks) == 2


def test_with_a_token_nobody_sees_the_page_without_it() -> None:
    with served(tokens=[TOKEN]) as address:
        for path in ("/page", "/page/page.js", "/page/page.css", "/page/view"):
            status, headers, text = get(address, path)
            assert (status, "svg" in text) == (401, False)
            assert headers["www-authenticate"].startswith("Basic")
            assert "token" in text
            _, headers, text = get(address, path, Authorization="Bearer another")
            assert headers["www-authenticate"].startswith("Basic")
            assert "does not know" in text
        assert get(address, "/live")[0] == get(address, "/metrics")[0] == 200, "as before"
        named = base64.b64encode(f"anybody:{TOKEN}".encode()).decode()
        assert get(address, "/page", Authorization=f"Basic {named}")[0] == 200
        assert get(address, "/page/view", Authorization=f"Bearer {TOKEN}")[0] == 200


@pytest.mark.parametrize(
    "header", ["", "Basic", "Basic !!", "Basic YTpi", "Bearer x", f"Digest {TOKEN}", TOKEN]
)
def test_what_is_no_token(header: str) -> None:
    assert not allowed([TOKEN.encode()], header, passwords=True)
    assert allowed([], header, passwords=True)


# Dead letters over HTTP: who may look and replay, once at a time, and never by accident.

CAUSE = LetterCause("ValueError", "parse", "in")
BODY = json.dumps(CAUSE._asdict()).encode()
SECRET = "what somebody sent"


class Desk:
    """Whose replay fails if it is told to, and waits while ``held``."""

    topic = "dead"

    def __init__(self) -> None:
        self.looks, self.replays = 0, [LetterCause("", "", "")][:0]
        self.times: list[int | None] = []
        self.fails = False
        self.began, self.held = threading.Event(), threading.Event()
        self.held.set()

    def look(self) -> LettersFound:
        self.looks += 1
        one = CauseLetters(cause=CAUSE, letters=3, open=2, sample=SECRET, late=1)
        return LettersFound(topic=self.topic, causes=[one], earlier=7)

    def replay(self, cause: LetterCause, time_ms: int | None) -> LettersReplayed:
        self.began.set()
        assert self.held.wait(60)
        if self.fails:
            raise RetriableError("the brokers are away")
        self.replays.append(cause)
        self.times.append(time_ms)
        return LettersReplayed(replayed=2, left=0)


@pytest.fixture
def desk() -> Desk:
    return Desk()


@pytest.fixture
def address(desk: Desk) -> Iterator[str]:
    with served(tokens=[TOKEN], desk=desk) as address:
        yield address


def ask(
    address: str, path: str, body: bytes | None = None, token: str = TOKEN, **headers: str
) -> tuple[int, str]:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    sent = {"Content-Type": "application/json", "Authorization": f"Bearer {token}", **named}
    asked = urllib.request.Request(f"http://{address}{path}", data=body, headers=sent)
    try:
        with urllib.request.urlopen(asked, timeout=60) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_a_look_says_what_there_is_and_is_shared(address: str, desk: Desk) -> None:
    status, text = ask(address, "/page/letters")
    assert status == 200
    assert json.loads(text) == {
        "topic": "dead",
        "earlier": 7,
        "causes": [{**CAUSE._asdict(), "letters": 3, "open": 2, "sample": SECRET, "late": 1}],
    }
    assert ask(address, "/page/letters") == (200, text)
    assert desk.looks == 1


def test_a_replay_names_a_cause_and_says_what_it_did(address: str, desk: Desk) -> None:
    ask(address, "/page/letters")
    status, text = ask(address, "/page/replay", BODY)
    assert (status, json.loads(text)) == (200, {"replayed": 2, "left": 0, "error": ""})
    assert desk.replays == [CAUSE]
    ask(address, "/page/letters")
    assert desk.looks == 2, "what was seen before is old"


def test_records_keep_their_times_unless_the_present_is_asked_for(address: str, desk: Desk) -> None:
    began_ms = int(time.time() * 1000)
    for more in ({}, {"timestamp": "record"}, {"timestamp": "now"}):
        body = json.dumps({**CAUSE._asdict(), **more}).encode()
        assert ask(address, "/page/replay", body)[0] == 200
    first, second, now = desk.times
    assert (first, second) == (None, None)
    assert now is not None
    assert now >= began_ms


def test_a_get_replays_nothing(address: str, desk: Desk) -> None:
    assert ask(address, "/page/replay")[0] == 405
    assert desk.replays == []


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Origin": "http://elsewhere.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Sec_Fetch_Site": "cross-site"}, 403),
        ({"Sec_Fetch_Site": "none"}, 403),
        ({"Content_Type": "text/plain"}, 415),
        ({"Content_Type": "application/x-www-form-urlencoded"}, 415),
        ({"Authorization": "Bearer of-nothing-good"}, 401),
    ],
)
def test_others_replay_none(address: str, desk: Desk, headers: dict[str, str], status: int) -> None:
    assert ask(address, "/page/replay", BODY, **headers)[0] == status
    assert desk.replays == []


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", 400),
        (b"{", 400),
        (b"[]", 400),
        (b"{}", 400),
        (json.dumps({**CAUSE._asdict(), "node": 7}).encode(), 400),
        (json.dumps({**CAUSE._asdict(), "timestamp": "then"}).encode(), 400),
        (json.dumps({**CAUSE._asdict(), "timestamp": ["now"]}).encode(), 400),
        (b" " * (MOST_BODY_BYTES + 1), 413),
    ],
)
def test_a_malformed_replay_is_refused(address: str, desk: Desk, body: bytes, status: int) -> None:
    assert ask(address, "/page/replay", body)[0] == status
    assert desk.replays == []


def test_one_at_a_time(address: str, desk: Desk) -> None:
    desk.held.clear()
    first: list[tuple[int, str]] = []
    asking = threading.Thread(target=lambda: first.append(ask(address, "/page/replay", BODY)))
    asking.start()
    assert desk.began.wait(60)
    assert ask(address, "/page/replay", BODY)[0] == 409
    assert ask(address, "/live")[0] == 200
    desk.held.set()
    asking.join(60)
    assert first[0][0] == 200
    assert len(desk.replays) == 1


def test_a_failure_says_why_and_the_next_may_succeed(address: str, desk: Desk) -> None:
    desk.fails = True
    status, text = ask(address, "/page/replay", BODY)
    assert (status, "the brokers are away" in text) == (503, True)
    desk.fails = False
    assert ask(address, "/page/replay", BODY)[0] == 200


@pytest.mark.parametrize(
    ("tokens", "there", "word"), [([], True, "token"), ([TOKEN], False, "topic")]
)
def test_it_says_what_is_to_be_set(desk: Desk, tokens: list[str], there: bool, word: str) -> None:
    with contextlib.ExitStack() as stack:
        address = stack.enter_context(served(tokens=tokens, desk=desk if there else None))
        for path, body in (("/page/letters", None), ("/page/replay", BODY)):
            status, text = ask(address, path, body)
            assert status == 403
            assert word in text
            assert SECRET not in text
        assert word in json.loads(ask(address, "/page/view")[1])["desk"]["why"]
    assert (desk.looks, desk.replays) == (0, [])


@pytest.mark.parametrize(
    ("headers", "ours"),
    [
        ({}, True),
        ({"origin": "http://a:1", "host": "a:1"}, True),
        ({"origin": "http://a:2", "host": "a:1"}, False),
        ({"sec-fetch-site": "same-origin", "origin": "https://proxy", "host": "a:1"}, True),
        ({"sec-fetch-site": "same-site"}, False),
    ],
)
def test_whose_page_it_is(headers: dict[str, str], ours: bool) -> None:
    assert from_this_page(headers) is ours
