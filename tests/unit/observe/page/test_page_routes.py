"""The page over HTTP: its files, its view and its token."""

import base64
import contextlib
import gzip
import hashlib
import http.server
import json
import re
import ssl
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import trustme

from everflow.errors import RetriableError
from everflow.observe.figures import FIGURES
from everflow.observe.http_server import HttpServer, application
from everflow.observe.observation import Observation, ObservedHost, status_of
from everflow.observe.page.history import Facts
from everflow.observe.page.other_instances import (
    EVERY_MS,
    FORGOTTEN_MS,
    MOST_INSTANCES,
    SHARE,
    InstanceSilentError,
    OtherInstances,
    StatusClient,
)
from everflow.observe.page.routes import (
    FILES,
    HEADERS,
    MERMAID,
    MOST_BODY_BYTES,
    CauseLetters,
    LetterCause,
    LettersFound,
    LettersReplayed,
    Page,
    from_this_page,
)
from everflow.observe.requests import allowed
from unit.manual_clock import ManualClock
from unit.observe.observations import FULL, WHOLE, changed
from unit.observe.page.page_facts import SHOWN

TOKEN = "a-token-of-many-characters"
DRAWING = '{"text": "flowchart TD\\n", "boxes": {}}'


@contextlib.contextmanager
def served(look: Callable[[], Facts] = lambda: SHOWN, **values: Any) -> Iterator[str]:
    page = Page(facts=look, drawing=DRAWING, **values)
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
        assert get(address, "/page/drawing")[2] == DRAWING


def test_mermaid_comes_as_it_was_published_and_is_kept() -> None:
    notice = (FILES / "mermaid.NOTICE").read_text()
    with served() as address:
        url = f"http://{address}/page/{MERMAID}"
        with urllib.request.urlopen(url, timeout=60) as answer:
            headers, content = answer.headers, gzip.decompress(answer.read())
    assert f"{len(content):,} bytes" in notice
    assert hashlib.sha256(content).hexdigest() in notice
    assert f"{MERMAID}.gz" in notice
    assert f'"page/{MERMAID}"' in (FILES / "page.js").read_text()
    assert headers["content-type"].startswith("text/javascript")
    assert headers["content-encoding"] == "gzip"
    assert "immutable" in headers["cache-control"]
    assert headers["content-security-policy"] == HEADERS["Content-Security-Policy"]


def test_no_script_but_the_pages_own_files_runs() -> None:
    policy = dict(part.split(" ", 1) for part in HEADERS["Content-Security-Policy"].split("; "))
    assert policy["default-src"] == "'none'"
    assert policy["script-src"] == policy["connect-src"] == "'self'"
    assert policy["img-src"] == "data:", "what a style names is not loaded"


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
        files = ("page.js", "page.css", "drawing", "view", MERMAID)
        for path in ("/page", *(f"/page/{name}" for name in files)):
            status, headers, text = get(address, path)
            assert (status, "flowchart" in text) == (401, False)
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


# Dead letters over HTTP.

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

    def by_cause(self) -> LettersFound:
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


# Other instances are asked rarely, within bounds, and with nothing that is for others.

OWN = "a:1"
HOSTS = [ObservedHost(host=host) for host in ("b:1", OWN, "c:1")]


class Others:
    """Who is asked; one that is ``away`` does not answer."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.away: set[str] = set()
        self.takes_ms = 0.0
        self.clock = ManualClock(1_000_000)
        self.rounds: list[Callable[[], None]] = []
        self.peers = OtherInstances(self.ask, lambda: OWN, self.clock, self.rounds.append)

    def ask(self, host: str) -> Observation:
        self.asked.append(host)
        self.clock.advance(self.takes_ms)
        if host in self.away:
            raise InstanceSilentError("no route")
        return WHOLE

    def round(self, hosts: list[ObservedHost] = HOSTS) -> None:
        """A look, and the round of questions that it began."""
        self.peers.states(hosts)
        for work in self.rounds:
            work()
        self.rounds.clear()


@pytest.fixture
def others() -> Others:
    return Others()


def test_a_look_waits_for_nobody_and_the_own_instance_is_not_asked(others: Others) -> None:
    assert [(peer.host, peer.facts) for peer in others.peers.states(HOSTS)] == [
        ("b:1", None),
        ("c:1", None),
    ]
    assert others.asked == []
    assert len(others.rounds) == 1
    others.peers.states(HOSTS)
    assert len(others.rounds) == 1, "one round at a time"
    others.rounds[0]()
    assert sorted(others.asked) == ["b:1", "c:1"]
    known = others.peers.states(HOSTS)
    assert [peer.facts is not None and peer.facts.seen == WHOLE for peer in known] == [True, True]


def test_the_next_round_is_some_seconds_later_and_later_after_a_long_one(others: Others) -> None:
    others.round()
    others.clock.advance(EVERY_MS - 1)
    others.round()
    assert len(others.asked) == 2
    others.clock.advance(1)
    others.takes_ms = 3_000.0
    others.round()
    assert len(others.asked) == 4
    others.clock.advance(SHARE * 6_000.0 - 1)
    others.round()
    assert len(others.asked) == 4
    others.clock.advance(1)
    others.round()
    assert len(others.asked) == 6


def test_one_that_is_away_keeps_what_it_said_and_its_age(others: Others) -> None:
    others.round()
    others.away = {"b:1"}
    for _ in range(2):
        others.clock.advance(20_000)
        others.round()
    away, there = others.peers.states(HOSTS)
    assert (away.error, away.age_s, away.silent_s) == ("no route", 40.0, 20.0)
    assert away.facts is not None
    assert (there.error, there.age_s, there.silent_s) == ("", 0.0, 0.0)
    others.away = set()
    others.clock.advance(20_000)
    others.round()
    assert others.peers.states(HOSTS)[0][2:] == (0.0, "", 0.0)


def test_one_that_never_answered_has_its_reason_and_no_numbers(others: Others) -> None:
    others.away = {"b:1"}
    others.round()
    assert others.peers.states(HOSTS)[0][:4] == ("b:1", None, 0.0, "no route")


def test_a_defect_does_not_hide_the_rest(others: Others, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(others.peers, "ask", lambda host: {}[host])
    others.round()
    assert [peer.error for peer in others.peers.states(HOSTS)] == ["KeyError", "KeyError"]


def test_so_many_are_asked_and_who_has_left_is_forgotten(others: Others) -> None:
    many = [ObservedHost(host=f"h{number}:1") for number in range(100)]
    others.round(many)
    assert len(others.asked) == MOST_INSTANCES
    others.clock.advance(FORGOTTEN_MS + 1)
    others.round(HOSTS)
    assert sorted(others.peers._known) == ["b:1", "c:1"]


class Answering(http.server.BaseHTTPRequestHandler):
    """Does what the test says, and notes what it was asked."""

    def do_GET(self) -> None:
        server: Any = self.server
        server.heard.append((self.path, self.headers.get("Authorization")))
        server.does(self)

    def log_message(self, *_: Any) -> None: ...


def says(content: bytes, status: int = 200, **headers: str) -> Callable[[Any], None]:
    def answer(to: http.server.BaseHTTPRequestHandler) -> None:
        to.send_response(status)
        for name, value in headers.items():
            to.send_header(name, value)
        to.end_headers()
        with contextlib.suppress(OSError):
            to.wfile.write(content)

    return answer


@contextlib.contextmanager
def instance(
    does: Callable[[Any], None], tls: ssl.SSLContext | None = None
) -> Iterator[tuple[str, list[tuple[str, str | None]]]]:
    server: Any = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answering)
    server.does, server.heard = does, []
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    serving = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    serving.start()
    try:
        yield f"127.0.0.1:{server.server_address[1]}", server.heard
    finally:
        server.shutdown()
        serving.join(60)
        server.server_close()


def client(**values: Any) -> StatusClient:
    """One that has time: the machine may be busy."""
    return StatusClient(**{"application_id": "orders", "within_s": 60.0, **values})


STATUS = json.dumps(status_of(FULL)).encode()


def test_its_status_is_read_with_the_token() -> None:
    with instance(says(STATUS)) as (host, heard):
        seen = client(token="secret")(host)
        assert [task.task for task in seen.tasks] == [task.task for task in FULL.tasks]
        client()(host)
        assert heard == [("/status", "Bearer secret"), ("/status", None)]


@pytest.mark.parametrize(
    ("does", "why"),
    [
        (says(b"", 401), "query.token.file"),
        (says(b"", 404), "http.listen"),
        (says(b"", 503), "it answers 503"),
        (says(b"<html>"), "cannot be read"),
        (says(b"[" * 60_000), "cannot be read"),
        (says(STATUS.replace(b'"lag": 3', b'"lag": NaN')), "cannot be read"),
        (says(b"{}"), "cannot be read"),
        (says(json.dumps(status_of(changed(application_id="other"))).encode()), "other"),
        (says(STATUS + b" " * 70_000), "more than 65,536 bytes"),
        (lambda to: to.wfile.write(b"nothing of the kind\r\n"), "nothing of the kind"),
    ],
)
def test_what_is_no_answer_has_its_reason(does: Callable[[Any], None], why: str) -> None:
    with instance(does) as (host, _), pytest.raises(InstanceSilentError, match=why):
        client(most_bytes=65_536)(host)


def test_a_redirection_is_not_followed() -> None:
    with (
        instance(says(STATUS)) as (elsewhere, heard),
        instance(says(b"", 307, Location=f"http://{elsewhere}/status")) as (host, _),
    ):
        with pytest.raises(InstanceSilentError, match="307"):
            client(token="secret")(host)
        assert heard == []


def test_an_answer_that_never_ends_is_ended() -> None:
    def drips(to: http.server.BaseHTTPRequestHandler) -> None:
        to.send_response(200)
        to.end_headers()
        with contextlib.suppress(OSError):
            while True:
                to.wfile.write(b" ")
                to.wfile.flush()
                threading.Event().wait(0.02)

    with instance(drips) as (host, _):
        began_s = time.monotonic()
        with pytest.raises(InstanceSilentError, match=r"more than 0\.3 s"):
            client(within_s=0.3)(host)
        assert time.monotonic() - began_s < 60


@pytest.mark.parametrize("host", ["", "b", "b:", "b:x", "a@b:1", "b:1/x", "b:99999", "[::1"])
def test_what_is_no_address_is_not_asked(host: str) -> None:
    with pytest.raises(InstanceSilentError, match=r"host:port"):
        client()(host)


def test_one_that_says_nothing_is_not_waited_for() -> None:
    went = threading.Event()

    def waits(_: object) -> None:
        went.wait(60)

    with instance(waits) as (host, _):
        with pytest.raises(InstanceSilentError, match=r"more than 0\.2 s"):
            client(within_s=0.2)(host)
        went.set()


def test_it_is_asked_over_tls_and_only_one_that_is_trusted(tmp_path: Path) -> None:
    authority = trustme.CA()
    served = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("127.0.0.1").configure_cert(served)
    file = tmp_path / "ca"
    authority.cert_pem.write_to_path(str(file))
    with instance(says(STATUS), served) as (host, heard):
        trusts = ssl.create_default_context(cafile=str(file))
        assert client(token="t", tls=trusts)(host).state == "RUNNING"
        stranger = client(token="t", tls=ssl.create_default_context())
        with pytest.raises(InstanceSilentError, match="certificate"):
            stranger(host)
        assert len(heard) == 1
