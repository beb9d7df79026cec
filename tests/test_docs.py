"""The documentation tells the truth: links resolve, flags exist, tables are current, examples compile."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from radixlang.cli import bench, chat, generate, main, serve, simulate, top, trace
from radixlang.cli.parser import unavailable_feature
from radixlang.config import flat_names
from radixlang.sampling_params import SamplingParams

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.M | re.S)
#: flags of other programs (pip, make, curl, …), of `pull` and `doctor`, and of the scripts
OTHER_FLAGS = {
    "--extra-index-url",
    "--list",
    "--json",
    "--download-dir",
    "--slow",
    "--check",
    "--no-deps",
    "--help",
}

by_page = pytest.mark.parametrize("page", PAGES, ids=[page.name for page in PAGES])


def slug(heading: str) -> str:
    """The anchor that GitHub gives a heading."""
    text = re.sub(r"[^\w\s-]", "", heading.strip().lower())
    return text.replace(" ", "-")


def anchors(page: Path) -> set[str]:
    prose = FENCE.sub("", page.read_text())
    return {slug(heading) for heading in re.findall(r"^#+ (.+)$", prose, re.M)}


@by_page
def test_links_resolve(page: Path) -> None:
    prose = FENCE.sub("", page.read_text())
    for target in re.findall(r"\]\(([^)\s]+)\)", prose):
        if target.startswith(("http://", "https://")):
            continue
        name, _, anchor = target.partition("#")
        linked = (page.parent / name).resolve() if name else page
        assert linked.exists(), f"{page.name} links to {target}"
        if anchor:
            assert anchor in anchors(linked), f"{page.name} links to {target}"


@by_page
def test_flags_exist(page: Path) -> None:
    known = set(OTHER_FLAGS)
    benchmarks = [parser() for parser, _ in bench.BENCHMARKS.values()]
    commands = [module.build_parser() for module in (serve, chat, generate, top, trace, simulate)]
    for parser in (*commands, *benchmarks):
        known |= set(parser._option_string_actions)
    named = set(re.findall(r"(?<![\w-])--[a-z][a-z0-9-]*", page.read_text()))
    unknown = {flag for flag in named - known if unavailable_feature(flag) is None}
    assert not unknown


@by_page
def test_python_compiles(page: Path) -> None:
    for language, code in FENCE.findall(page.read_text()):
        if language == "python":
            ast.parse(code, filename=page.name)


@by_page
def test_bodies_are_sent_as_json(page: Path) -> None:
    """curl calls a body a form if nothing is said, and the server refuses it."""
    for _, code in FENCE.findall(page.read_text()):
        for command in re.split(r"^(?=curl )", code.replace("\\\n", ""), flags=re.M):
            if command.startswith("curl ") and " -d " in command:
                assert "content-type: application/json" in command.lower()


def test_generated_tables_are_current() -> None:
    check = subprocess.run(
        [sys.executable, ROOT / "scripts" / "gen_docs", "--check"], capture_output=True, text=True, check=False
    )
    assert check.returncode == 0, check.stderr


def test_the_options_table_is_complete() -> None:
    text = (ROOT / "docs" / "cli.md").read_text()
    assert [name for name in flat_names() if f"`--{name.replace('_', '-')}`" not in text] == []


def test_every_page_is_reachable_from_the_index() -> None:
    index = (ROOT / "docs" / "index.md").read_text()
    assert [page.name for page in (ROOT / "docs").glob("*.md") if f"({page.name})" not in index] == ["index.md"]


def test_sampling_page_has_every_parameter_and_its_default() -> None:
    rows = re.findall(r"^\| `(\w+)` \| `([^`]+)` \|", (ROOT / "docs" / "sampling.md").read_text(), re.M)
    assert dict(rows) == {name: repr(getattr(SamplingParams(), name)) for name in SamplingParams.__struct_fields__}


def test_metrics_page_names_what_the_server_shows() -> None:
    from radixlang.scheduler.stats import Totals
    from radixlang.server import metrics

    text = (ROOT / "docs" / "metrics.md").read_text()
    named = set(re.findall(r"`(\w+)`", text))
    wanted = {f"{name}_total" for name in (*metrics._COUNTERS, *metrics.ENGINE_COUNTERS)}
    wanted |= {*metrics._HISTOGRAMS, *metrics.ENGINE_GAUGES, *metrics._INFO_GAUGES}
    wanted |= set(Totals().counters(0))
    assert wanted - named == set()
    rows = {
        name
        for line in text.splitlines()
        if line.startswith("| `")
        for name in re.findall(r"`(\w+)`", line.split("|")[1])
    }
    assert rows - wanted == {"http_requests_active", "process_cpu_seconds_total"}


def test_the_operators_page_has_the_limits_that_hold() -> None:
    from radixlang import launch
    from radixlang.server import connection, web
    from radixlang.server.front import _QUIET

    text = (ROOT / "docs" / "operation.md").read_text()
    head = connection.MAX_HEAD >> 10
    for line in (
        f"| sends no whole request head | after {connection.HEAD_TIMEOUT:g} s, or {head} KiB (400)",
        f"| stops in the middle of a body | after {web.BODY_TIMEOUT:g} s (408)",
        f"| sends a large body | at {web.MAX_BODY >> 20} MiB (413)",
        f"| does not read its answer | after {connection.READ_TIMEOUT:g} s",
        f"| says nothing between requests | after {connection.KEEP_ALIVE} s",
        f"clients have {connection.LAST_READS} more seconds",
        f"at most to {launch.FILES:,}",
        f"Below {launch.FEW_FILES:,} there",
        f"client_max_body_size {web.MAX_BODY >> 20}m;",
    ):
        assert line in text
    assert set(_QUIET) == {"/health", "/health_generate", "/ready", "/metrics", "/cache_tree", "/requests"}
    assert set(re.findall(r"sglang:(\w+?)(?:_bucket)?(?=[\[`])", text)) <= set(
        re.findall(r"`(\w+)`", (ROOT / "docs" / "metrics.md").read_text())
    )


def test_every_dependency_is_justified() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = [
        *project["dependencies"],
        *(line for extra in project["optional-dependencies"].values() for line in extra),
    ]
    names = {re.split(r"[\[<>=;\s]", line)[0].lower() for line in lines} - {"radixlang"}
    text = (ROOT / "docs" / "dependencies.md").read_text().lower()
    assert {name for name in names if f"`{name}`" not in text} == set()


def test_every_command_is_documented() -> None:
    text = (ROOT / "docs" / "cli.md").read_text()
    assert [name for name in main.COMMANDS if f"radixlang {name}" not in text] == []


def test_makefile_targets_of_the_readme_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    targets = set(re.findall(r"^make (?:[A-Z]+=\S+ )?(\w+)", (ROOT / "README.md").read_text(), re.M))
    assert {"serve", "test"} <= targets
    assert all(re.search(rf"^{target}:", makefile, re.M) for target in targets)


def test_scripts_are_executable() -> None:
    import os

    for name in ("scripts/check", "scripts/test", "scripts/lint", "scripts/setup", "scripts/gen_docs", ".ci/run"):
        assert os.access(ROOT / name, os.X_OK), name
