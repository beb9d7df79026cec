"""The page at `/ui` in a real browser: the tree, the playground, keys, and texts that are no markup."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

import pytest

from radixlang.server.metrics import Metrics
from tests.server.browser import BROWSER, Browser
from tests.server.fakes import FakeEngine, Live, live
from tests.server.test_looking import fill

pytestmark = pytest.mark.skipif(BROWSER is None, reason="no Chromium on this machine")

NASTY = "<img src=x onerror=alert(1)><script>alert(2)</script>'\"&amp;"
SYSTEM = "You are a careful assistant. You answer in one sentence.".ljust(64, " ")
RUNS = "[...document.querySelectorAll('.run:not(.root)')]"
TEXTS = f"{RUNS}.map((run) => run.querySelector('.text').textContent)"


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    running = Browser(tmp_path_factory.mktemp("browser"))
    yield running
    running.close()


@pytest.fixture
def server() -> Iterator[Live]:
    with live(engine=FakeEngine(delay=0.01)) as running:
        yield running


def look(browser: Browser, server: Live) -> None:
    browser.open("about:blank")
    browser.errors.clear()
    browser.open(server.base + "/ui")
    browser.until("document.title.includes('RadixLang') && document.querySelector('#shown').textContent")


def test_the_tree_is_drawn_and_followed(browser: Browser, server: Live) -> None:
    fill(server.engine, "x" * 64, SYSTEM + NASTY, SYSTEM + "And something else. ")
    look(browser, server)
    texts = browser.js(TEXTS)
    assert len(texts) == 4
    assert any(text.startswith("<img src=x") for text in texts)
    heights = browser.js(f"{RUNS}.map((run) => run.getBoundingClientRect().height)")
    assert sorted(heights) == [21, 21, 21, 45]  # the shared run is as tall as the two that follow it
    assert "4 of 4 runs" in browser.js("document.querySelector('#shown').textContent")
    # It lives: what is used, added and evicted is seen.
    tree = server.engine.tree
    server.on_loop(lambda: fill(server.engine, SYSTEM + "A third way to go on"))
    browser.until(f"{RUNS}.length === 5")
    node = next(node for node in tree.roots()[0].children.values() if node.children)
    server.on_loop(lambda: (tree.hit(node), tree.lock(node)))
    browser.until("document.querySelector('.run.reading .figures')?.textContent.includes('1 reading')")
    server.on_loop(lambda: (tree.unlock(node), tree.evict(4)))
    browser.until(f"{RUNS}.length < 5")
    # Below one run only, and back.
    browser.js(f"{RUNS}.find((run) => run.classList.contains('tall')).dispatchEvent(new MouseEvent('dblclick'))")
    browser.until("document.querySelectorAll('#crumbs button').length === 3")
    browser.until("document.querySelectorAll('.run.root').length === 0")
    browser.click("#crumbs button")
    browser.until("document.querySelectorAll('.run.root').length === 1")
    # The whole text of a run; arrows move about.
    browser.js(f"{RUNS}.find((run) => run.textContent.includes('<img')).click()")
    browser.until("document.querySelector('#run pre')?.textContent.startsWith('<img src=x')")
    browser.key("ArrowLeft")
    assert browser.until("document.querySelector('.run.current.tall .text').textContent").startswith("You are")
    assert browser.js("document.querySelectorAll('#tree img, #tree script, #run img').length") == 0
    assert browser.errors == []


def test_the_playground_streams_and_says_what_it_cost(browser: Browser, server: Live) -> None:
    look(browser, server)
    browser.click("#prompt")
    browser.type(f"Hello [say:{NASTY}]")
    browser.key("Enter")
    browser.until("document.querySelector('.said.assistant small').textContent")
    assert browser.js("document.querySelector('.said.assistant').firstChild.data") == NASTY
    assert "prompt tokens cached" in browser.js("document.querySelector('.said.assistant small').textContent")
    message = server.engine.received[-1]
    assert message.sampling.temperature == pytest.approx(0.7)
    # Constraints reach the engine as the server understands them.
    for mode, kind in (("regex", "regex"), ("json_schema", "json_schema")):
        browser.js(
            f"(() => {{ const mode = document.querySelector('#mode'); mode.value = '{mode}';"
            " mode.dispatchEvent(new Event('change')); })()"
        )
        before = len(server.engine.received)
        browser.js("document.querySelector('#prompt').value = 'Again'")
        browser.click("#send")
        server.until(lambda before=before: len(server.engine.received) > before, 20)
        assert server.engine.received[-1].grammar.kind == kind
        browser.until("document.querySelector('#send').textContent === 'Send'")
    # What cannot be sent is said in the talk, and an answer can be stopped.
    browser.js("document.querySelector('#constraint').value = '{'; document.querySelector('#prompt').value = 'x'")
    browser.click("#send")
    browser.until("document.querySelectorAll('.said.failed').length")
    browser.js(
        "(() => { const mode = document.querySelector('#mode'); mode.value = 'text';"
        " mode.dispatchEvent(new Event('change')); document.querySelector('#tokens').value = 900;"
        " document.querySelector('#prompt').value = 'abc'; })()"
    )
    aborts = len(server.engine.aborts)
    browser.click("#send")
    browser.until("document.querySelector('.said.assistant:last-child').firstChild.data.length > 3")
    browser.click("#send")
    server.until(lambda: len(server.engine.aborts) > aborts, 20)
    assert browser.errors == []


def test_a_key_is_asked_for_and_never_in_a_url(browser: Browser) -> None:
    with live(api_key="open sesame") as server:
        fill(server.engine, SYSTEM)
        browser.open("about:blank")
        browser.errors.clear()
        browser.open(server.base + "/ui")
        browser.until("document.querySelector('#key').open")
        assert browser.js(f"{RUNS}.length") == 0
        browser.click("#api-key")
        browser.type("open sesame")
        browser.key("Enter")
        browser.until(f"{RUNS}.length === 1")
        urls = browser.js("performance.getEntriesByType('resource').map((entry) => entry.name)")
        assert not any("sesame" in url for url in urls)
        browser.js("sessionStorage.clear()")
        assert [error for error in browser.errors if "401" not in error] == []


def test_requests_and_an_engine_that_is_gone(browser: Browser, server: Live) -> None:
    server.engine.delay = 0.2
    look(browser, server)
    body = json.dumps({"text": "abc", "rid": "seen", "sampling_params": {"max_new_tokens": 500}})
    options = f"{{method: 'POST', headers: {{'content-type': 'application/json'}}, body: {body!r}}}"
    browser.js(f"fetch('generate', {options}); 1")
    browser.click("[aria-controls=requests]")
    browser.until("document.querySelector('#requests').textContent.includes('seen')")
    width = "document.querySelector('#requests .made').getBoundingClientRect().width"
    browser.until(f"{width} > 0")
    assert browser.js("document.querySelectorAll('#charts path').length") > 4
    server.on_loop(server.hub.fail_all)
    browser.until("!document.querySelector('#banner').hidden")
    assert "died" in browser.js("document.querySelector('#banner').textContent")


def test_a_server_that_comes_back_is_another(
    browser: Browser, server: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.ok("/generate", {"text": "abc", "sampling_params": {"max_new_tokens": 9}})
    look(browser, server)
    served = "document.querySelector('#charts').textContent"
    browser.until(f"{served}.includes('9 made')")
    browser.js("window.real = window.fetch; window.fetch = () => Promise.reject(new TypeError('gone')); 1")
    browser.until("document.querySelector('#banner').textContent.includes('trying again')")
    monkeypatch.setattr("radixlang.config.Config.model_name", "another/model")
    server.hub.metrics = Metrics("another/model", server.hub.info)
    browser.js("window.fetch = window.real; 1")
    browser.until("document.querySelector('#title').textContent === 'another/model'")
    browser.until(f"{served}.includes('0 made')")
    assert browser.js("document.querySelector('#banner').hidden")
    assert browser.errors == []


def test_five_thousand_runs_stay_responsive(browser: Browser, server: Live) -> None:
    fill(server.engine, *(f"{i % 50:016d}{i:016d}{'y' * (i % 7) * 16}" for i in range(5000)))
    assert server.engine.tree.nodes >= 5000
    look(browser, server)
    browser.until(f"{RUNS}.length >= 290")
    assert browser.js("document.querySelectorAll('.more').length") > 10
    drawn: list[float] = []
    answers: list[float] = []
    for _ in range(3):
        began = time.perf_counter()
        assert server.http.get("/health").status_code == 200
        answers.append(time.perf_counter() - began)
        before = browser.js("document.querySelector('#tree').dataset.drawn")
        browser.until(f"document.querySelector('#tree').dataset.drawn !== {before!r}")
        drawn.append(float(browser.js("document.querySelector('#tree').dataset.drawn")))
    assert min(drawn) < 60  # milliseconds
    assert min(answers) < 0.1
    assert browser.errors == []
