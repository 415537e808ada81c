"""The page over HTTP: its files, its view and its token."""

import base64
import contextlib
import json
import re
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from everflow.observe.figures import FIGURES
from everflow.observe.http_server import HttpServer, application
from everflow.observe.page.history import Facts
from everflow.observe.page.routes import FILES, HEADERS, Page
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
