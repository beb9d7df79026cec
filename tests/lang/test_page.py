"""The page that shows programs: where things go, that nothing breaks out of it, and that a browser draws it."""

from __future__ import annotations

import html.parser
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import radixlang as rl
from radixlang.cli.main import main
from radixlang.errors import ConfigError
from radixlang.lang.page import page
from radixlang.lang.page.layout import page_data, rows
from radixlang.lang.record import Record, Span
from tests.lang.acting import Acting

NASTY = "</script><script>alert(1)</script><!-- & \u2028 'q' \"d\" <b>"


@rl.function
def essay(s: Any, topic: str) -> None:
    s += rl.system("Judge.")
    s += rl.user(topic)
    with s.assistant():
        s += "I say: " + rl.gen("first")
    forks = s.fork(3)
    for index, fork in enumerate(forks):
        fork += rl.user(f"Point {index}?")
        fork += rl.assistant(rl.gen("point"))
    inner = forks[1].fork(2)
    inner += rl.user("Why?")
    inner += rl.assistant(rl.gen("why"))
    inner.join()
    forks.join()
    s += rl.user("So?")
    s += rl.assistant("It is " + rl.select("grade", ["A", "B plus"]) + ".")


def ran(answer: Any = lambda text: "well done", **options: Any) -> Any:
    state = essay.run("Rivers", backend=Acting(answer, 0.01, 0.001), **options)
    state.error()
    return state


def texts(nodes: list[dict[str, Any]], calls: list[dict[str, Any]], markup: bool = False) -> str:
    """The story as text, branches in brackets."""
    out = ""
    for node in nodes:
        match node["type"]:
            case "text":
                out += node["text"]
            case "markup":
                out += node["text"] if markup else ""
            case "call":
                out += "«" + calls[node["call"]]["text"] + "»"
            case "role":
                out += f"\n{node['role']}: " + texts(node["nodes"], calls, markup)
            case "fork":
                out += "".join("[" + texts(branch["nodes"], calls, markup) + "]" for branch in node["branches"])
            case "program":
                out += f"\n{node['name']}" + texts(node["nodes"], calls, markup)
    return out


def test_the_story_reads_like_the_program() -> None:
    data = page_data([ran().record])
    why = "\nuser: Why?\nassistant: «well done»"
    points = [f"\nuser: Point {index}?\nassistant: «well done»" for index in range(3)]
    points[1] += f"[{why}][{why}]"
    assert texts(data["story"], data["calls"]) == (
        "\nsystem: Judge.\nuser: Rivers\nassistant: I say: «well done»"
        + "".join(f"[{point}]" for point in points)
        + "\nuser: So?\nassistant: It is «B plus»."
    )


def test_nothing_of_the_text_is_lost() -> None:
    state = ran()
    data = page_data([state.record])
    shown = texts([node for node in data["story"] if node["type"] != "fork"], data["calls"], markup=True)
    shown = re.sub(r"\n(system|user|assistant): ", "", shown)
    whole = state.text()
    for call in data["calls"]:
        whole = whole.replace(call["text"], f"«{call['text']}»", 1) if call["lane"] == 0 else whole
    assert shown == whole


@pytest.mark.parametrize("stream", [False, True])
def test_lanes_and_calls(stream: bool) -> None:
    data = page_data([ran(stream=stream).record])
    assert [(lane["label"], lane["depth"]) for lane in data["lanes"]] == [
        ("essay", 0),
        ("branch 0", 1),
        ("branch 1", 1),
        ("branch 0", 2),
        ("branch 1", 2),
        ("branch 2", 1),
    ]
    calls = [call for call in data["calls"] if call["kind"] != "prefix"]
    assert sorted(call["name"] for call in calls) == ["first", "grade", "point", "point", "point", "why", "why"]
    for call in calls:
        assert 0 <= call["start"] <= call["end"] <= data["total"] + 1e-6
        assert (call["first"] is not None) == (stream and call["kind"] == "gen")
        if call["first"] is not None:
            assert call["start"] + 0.009 <= call["first"] <= call["end"]
        assert Path(call["place"].rpartition(":")[0]).name == "test_page.py"
        lane = data["lanes"][call["lane"]]
        assert lane["start"] <= call["start"]
        assert call["end"] <= lane["end"] + 1e-6
    grade = next(call for call in calls if call["name"] == "grade")
    assert grade["choices"] == [{"text": "A", "score": -1.0}, {"text": "B plus", "score": pytest.approx(-1 / 6)}]
    assert data["tokens"] == 6 * 2
    assert 0 < data["cached_tokens"] < data["prompt_tokens"]


def test_calls_that_overlap_get_rows_of_their_own() -> None:
    def span(start: float, end: float | None) -> Span:
        return Span(0, "gen", started=start, ended=end)

    assert rows([span(0, 2), span(1, 3), span(2, 4), span(3.5, None)], 9.0) == [0, 1, 0, 1]
    assert rows([], 0.0) == []


def test_a_failure_is_shown_where_it_happened_and_the_rest_as_given_up() -> None:
    def answer(text: str) -> str | Exception:
        return ValueError("no more ink") if "Point 1" in text else "fine " * (40 if "Point" in text else 1)

    data = page_data([ran(answer).record])
    failed = [call for call in data["calls"] if call["error"]]
    assert [call["error"] for call in failed] == ["no more ink"]
    assert data["lanes"][failed[0]["lane"]]["label"] == "branch 1"
    assert data["lanes"][failed[0]["lane"]]["failed"]
    assert {lane["label"] for lane in data["lanes"]} == {"essay", "branch 0", "branch 1", "branch 2"}
    assert all(call["cancelled"] for call in data["calls"] if call["lane"] in (1, 3) and not call["text"])
    assert data["errors"] == []


def test_an_error_of_the_function_itself_is_shown() -> None:
    @rl.function
    def broken(s: Any) -> None:
        s += "text"
        raise KeyError("here")

    state = broken.run(backend=Acting(lambda text: "x"), stream=True)
    assert state.error() is not None
    (error,) = page_data([state.record])["errors"]
    assert "KeyError: 'here'" in error
    assert "test_page.py" in error


def test_a_program_that_still_runs_can_be_looked_at() -> None:
    record = Record("half", "nowhere")
    root = record.begin("program", name="half")
    record.begin("gen", root.id, name="x", prompt="So far ", where="f.py:1")
    data = page_data([record])
    assert data["calls"][0]["running"]
    assert texts(data["story"], data["calls"]) == "So far «»"


def test_no_program_is_a_page_too() -> None:
    assert page_data([])["title"] == "no program"


def test_several_programs_share_the_clock() -> None:
    states = [ran(), ran()]
    data = page_data([state.record for state in reversed(states)])
    assert data["title"] == "2 programs: essay"
    assert [node["name"] for node in data["story"]] == ["essay 1", "essay 2"]
    first, second = (lane for lane in data["lanes"] if lane["depth"] == 0)
    assert first["start"] == pytest.approx(0, abs=1e-3)
    assert second["start"] > first["end"] - 0.005


# ---- the file ----


class _Scripts(html.parser.HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.scripts: list[str] = []
        self.external: list[str] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.external += [value or "" for name, value in attributes if name in ("src", "href", "srcset", "action")]
        if tag == "script":
            self.scripts.append("")

    def handle_data(self, data: str) -> None:
        if self.tags and self.tags[-1] == "script":
            self.scripts[-1] += data


def test_texts_cannot_break_out_of_the_page() -> None:
    state = ran(lambda text: NASTY)
    parser = _Scripts()
    parser.feed(page([state.record], title=NASTY))
    assert parser.tags.count("script") == 2
    assert parser.external == []
    data = json.loads(parser.scripts[0])
    assert data["title"] == NASTY
    assert {call["text"] for call in data["calls"] if call["kind"] == "gen"} == {NASTY}


def test_show_writes_a_file_and_takes_lists(tmp_path: Path) -> None:
    states = [ran(), ran()]
    path = rl.show(states, path=tmp_path / "page.html", open_browser=False)
    assert path == tmp_path / "page.html"
    assert "2 programs: essay" in path.read_text()
    made = rl.show(states[0], open_browser=False)
    assert re.match(r"radixlang-essay-\w+\.html", made.name)
    made.unlink()
    with pytest.raises(ConfigError, match="cannot be written"):
        rl.show(states[0], path=tmp_path / "no" / "page.html")
    with pytest.raises(ConfigError, match="not int"):
        rl.show(3)
    with pytest.raises(ConfigError, match="needs the state"):
        rl.show()


def test_in_a_notebook_it_appears_below_the_cell(monkeypatch: pytest.MonkeyPatch) -> None:
    class Shown:
        def __init__(self, data: str) -> None:
            self.data = data

    shell = type("Shell", (), {"kernel": object()})()
    ipython = type(sys)("IPython")
    ipython.get_ipython = lambda: shell  # type: ignore[attr-defined]
    display = type(sys)("IPython.display")
    display.HTML = Shown  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    shown = rl.show(ran(lambda text: NASTY))
    assert shown.data.startswith('<iframe srcdoc="&lt;!doctype html')
    assert shown.data.count('"') == 8  # those of the frame's own four attributes


# ---- the command ----

PROGRAM = """
import sys
import radixlang as sgl
from tests.lang.acting import Acting

@sgl.function
def hello(s, who):
    s += sgl.user("I am " + who)
    s += sgl.assistant(sgl.gen("answer", max_tokens=5))

if __name__ == "__main__":
    sgl.set_default_backend(Acting(lambda text: "hello"))
    print("arguments", sys.argv[1:])
    for who in ("Ann", "Bob"):
        hello.run(who=who)
    if "fail" in sys.argv:
        raise ValueError("as told")
    sys.exit(3)
"""


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(rl.global_config, "default_backend", None)
    file = tmp_path / "program.py"
    file.write_text(PROGRAM)
    return file


def test_trace_writes_the_page_of_a_file(program: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["trace", str(program), "a", "--b", "-o", "out.html"]) == 3
    shown = capsys.readouterr()
    assert "arguments ['a', '--b']" in shown.out
    assert "2 programs, 2 calls: " in shown.err
    assert "I am Ann" in Path("out.html").read_text()
    assert main(["trace", str(program), "--", "-o", "x"]) == 3
    assert "arguments ['-o', 'x']" in capsys.readouterr().out
    assert Path("program.trace.html").exists()


def test_trace_writes_the_page_of_a_file_that_fails(program: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["trace", str(program), "fail"]) == 1
    error = capsys.readouterr().err
    assert "ValueError: as told" in error
    assert "runpy" not in error
    assert "I am Bob" in Path("program.trace.html").read_text()


def test_trace_prints_graphs(program: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["trace", "--graph", str(program)]) == 0
    graph = capsys.readouterr().out
    assert graph.startswith("hello\n")
    assert "gen answer" in graph
    assert "arguments" not in graph


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["nothing.py"], "There is no file 'nothing.py'"),
        (["program.py", "-o", "no/out.html"], "out.html cannot be written: its folder does not exist"),
        (["program.py", "-o", "."], "cannot be written: it is a folder"),
        (["empty.py"], "ran no program"),
        (["--graph", "empty.py"], "defines no program"),
    ],
)
def test_trace_says_what_is_wrong(
    program: Path, capsys: pytest.CaptureFixture[str], argv: list[str], said: str
) -> None:
    Path("empty.py").write_text("")
    assert main(["trace", *argv]) == 2
    assert said in capsys.readouterr().err


# ---- in a browser ----

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


def drawn(text: str, path: Path, script: str) -> dict[str, Any]:
    """What `script` (a JavaScript expression) gives in the page once it is drawn."""
    tail = (
        "<script>setTimeout(() => { document.body.dataset.result = JSON.stringify((() => {"
        + script
        + "})()); }, 100)</script></body>"
    )
    # The test's script is one that the page does not know; everything else stays as users get it.
    path.write_text(text.replace("</body>", tail))
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=1500", "--window-size=1300,900"]
    done = subprocess.run(
        [str(BROWSER), *flags, f"--user-data-dir={path.parent / 'profile'}", "--dump-dom", path.as_uri()],
        capture_output=True,
        text=True,
        timeout=90,
        check=True,
    )
    found = re.search(r'data-result="([^"]*)"', done.stdout)
    assert found, "the page's script failed: " + done.stderr[-2000:]
    result: dict[str, Any] = json.loads(html.unescape(found.group(1)))
    return result


@pytest.mark.skipif(BROWSER is None, reason="no Chromium on this machine")
def test_a_browser_draws_it_and_keys_move_about(tmp_path: Path) -> None:
    text = page([ran(lambda text: NASTY, stream=True).record])
    result = drawn(
        text,
        tmp_path / "page.html",
        """
        const key = (name) => document.dispatchEvent(new KeyboardEvent("keydown", { key: name, bubbles: true }));
        const all = (what) => [...document.querySelectorAll(what)];
        const out = { bars: all(".call").length, lanes: all(".lane").length, forks: all(".fork").length };
        out.columns = all(".branch-column").length;
        out.texts = all(".made.gen").map((made) => made.textContent);
        out.title = document.title;
        out.hidden = document.getElementById("details").hidden;
        key("ArrowRight");
        out.first = document.querySelector("#details h2").textContent;
        key("ArrowRight");
        key("ArrowDown");
        out.current = all(".call.current").length + all(".made.current").length;
        out.branch = all("#details dd")[1].textContent;
        key("t"); out.theme = document.documentElement.dataset.theme;
        const wide = document.querySelector("#axis").getBoundingClientRect().width;
        key("+"); out.zoom = document.querySelector("#axis").getBoundingClientRect().width / wide;
        document.getElementById("search").value = "B plus";
        document.getElementById("search").dispatchEvent(new Event("input"));
        out.dim = all(".call.dim").length;
        key("Escape"); out.closed = document.getElementById("details").hidden;
        return out;
        """,
    )
    assert result["bars"] == 7
    assert result["lanes"] == 6
    assert (result["forks"], result["columns"]) == (2, 5)
    assert {text.removeprefix("first").removeprefix("point").removeprefix("why") for text in result["texts"]} == {
        NASTY
    }
    assert result["title"] == "essay"
    assert result["hidden"]
    assert result["closed"]
    assert result["first"] == "first"
    assert result["branch"].startswith("branch")
    assert result["current"] == 2
    assert result["theme"] in ("dark", "light")
    assert result["zoom"] > 1.3
    assert result["dim"] == 6


@pytest.mark.skipif(BROWSER is None, reason="no Chromium on this machine")
def test_five_hundred_calls(tmp_path: Path) -> None:
    record = Record("many", "nowhere")
    root = record.begin("program", name="many")
    for index in range(100):
        branch = record.begin("branch", root.id, name="many", fork_index=index)
        text = ""
        for step in range(5):
            call = record.begin("gen", branch.id, name=f"step {step}", prompt=text, where="many.py:1")
            record.first(call)
            record.end(
                call, "some words " * 20, {"prompt_tokens": 100, "cached_tokens": 90, "completion_tokens": 40}
            )
            text += call.text
        record.end(branch, text)
    record.end(root, "")
    script = """
        const began = performance.now();
        dispatchEvent(new Event("resize"));
        return { bars: document.querySelectorAll(".call").length, redraw: performance.now() - began };
    """
    result = drawn(page([record]), tmp_path / "many.html", script)
    assert result["bars"] == 500
    assert result["redraw"] < 1000
