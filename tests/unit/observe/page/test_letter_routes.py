"""Dead letters over HTTP: who may look and replay, once at a time, and never by accident."""

import contextlib
import json
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest

from everflow.errors import RetriableError
from everflow.observe.page.routes import (
    MOST_BODY_BYTES,
    CauseLetters,
    LetterCause,
    LettersFound,
    LettersReplayed,
    from_this_page,
)
from unit.observe.page.test_page_routes import served

TOKEN = "a-token-of-many-characters"
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
