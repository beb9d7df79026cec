"""`radixlang top`: what a running server does, in the terminal.

Figures come from `/metrics`, so that any server with SGLang's names can be looked at; requests and the prefix
cache from `/requests` and `/cache_tree`, where they are. Must not import torch.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import time
from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from radixlang.bearer import bearer
from radixlang.cli.parser import Parser
from radixlang.errors import ConfigError, RadixLangError, from_status
from radixlang.url import check_url

if TYPE_CHECKING:
    import httpx
    from rich.console import RenderableType
    from rich.table import Table

PREFIX = "sglang:"
#: frames behind the latencies and the small diagrams: a minute, at one a second
KEPT = 60
_COUNTERS = ("num_requests_total", "generation_tokens_total")
_SPARKS = "▁▂▃▄▅▆▇█"
_LATENCIES = {
    "first token": "time_to_first_token_seconds",
    "time per token": "inter_token_latency_seconds",
    "queue": "queue_time_seconds",
    "whole answer": "e2e_request_latency_seconds",
}


@dataclass
class Metrics:
    """One reading: sums over all labels; of histograms, counts up to each bound."""

    values: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    buckets: dict[str, dict[float, float]] = field(default_factory=lambda: defaultdict(lambda: defaultdict(float)))

    @classmethod
    def parse(cls, text: str) -> Metrics:
        """Prometheus text.

        Raises:
            ValueError: it is not.
        """
        # Import here: the command's help needs no parser of metrics.
        from prometheus_client.parser import text_string_to_metric_families

        out = cls()
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                name = sample.name.removeprefix(PREFIX)
                if "le" in sample.labels:
                    out.buckets[name.removesuffix("_bucket")][float(sample.labels["le"])] += sample.value
                else:
                    out.values[name] += sample.value
        return out

    def follows(self, before: Metrics) -> bool:
        """Whether it can be the same server's, later: another one has counted less."""
        return all(self.values.get(name, 0.0) >= before.values.get(name, 0.0) for name in _COUNTERS)

    def quantiles(self, name: str, before: Metrics, shares: Sequence[float]) -> list[float] | None:
        """In seconds, of what came since `before`, or ever if nothing did; None if nothing ever did."""
        counts, old = self.buckets.get(name, {}), before.buckets.get(name, {})
        news = {bound: count - old.get(bound, 0) for bound, count in counts.items()}
        known = news if news.get(math.inf) else counts
        return [_quantile(known, share) for share in shares] if known.get(math.inf) else None


def _quantile(counts: dict[float, float], share: float) -> float:
    """Straight between the bounds of the bucket it falls into."""
    wanted, lower, below = share * counts[math.inf], 0.0, 0.0
    for bound in sorted(counts):
        if counts[bound] >= wanted and counts[bound] > below:
            upper = 2 * lower if math.isinf(bound) else bound
            return lower + (upper - lower) * (wanted - below) / (counts[bound] - below)
        lower, below = bound, counts[bound]
    return lower


class Watched:
    """A server that is looked at."""

    def __init__(
        self,
        url: str,
        api_key: str | None = None,
        admin_key: str | None = None,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        import httpx

        self.url = check_url("--url", url).geturl()
        self._client = httpx.Client(timeout=10, transport=transport, trust_env=False)
        key = bearer(api_key)
        self._headers = {False: key, True: bearer(admin_key, "--admin-api-key") or key}
        self.notes: dict[str, str] = {}
        """by path, why there is nothing"""

    def _get(self, path: str, admin: bool = False) -> httpx.Response:
        import httpx

        try:
            return self._client.get(f"{self.url}{path}", headers=self._headers[admin])
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise RadixLangError(
                f"No server answers at {self.url} ({error}); start one with `radixlang serve`, or say --url."
            ) from None

    def metrics(self) -> Metrics:
        """Raises:
        RadixLangError: no server, or one without metrics.
        """
        reply = self._get("/metrics")
        if reply.status_code != 200:
            raise from_status(reply.status_code, f"{self.url}/metrics answered with status {reply.status_code}.")
        try:
            return Metrics.parse(reply.text)
        except ValueError as error:
            raise RadixLangError(f"{self.url}/metrics is not Prometheus text: {error}.") from None

    def details(self, path: str, field: str) -> dict[str, Any] | None:
        """JSON of a route that not every server has, or opens to everybody; None when it cannot be had. Ours has
        `field`."""
        reply = self._get(path, admin=True)
        facts = _facts(reply)
        if field in facts:
            self.notes.pop(path.partition("?")[0], None)
            return facts
        needs_key = "needs the server's key: --api-key or --admin-api-key"
        self.notes[path.partition("?")[0]] = (
            needs_key if reply.status_code == 401 else f"not served (status {reply.status_code})"
        )
        return None

    def name(self) -> str:
        reply = self._get("/model_info")
        facts = _facts(reply)
        return _plain(str(facts.get("served_model_name") or facts.get("model_path") or self.url))

    def close(self) -> None:
        self._client.close()


def _facts(reply: httpx.Response) -> dict[str, Any]:
    """The JSON object of an answer; nothing of a refusal, or of a page that something in between has sent."""
    try:
        value = reply.json() if reply.status_code == 200 else {}
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


# ---- drawing ----


def _seconds(value: float) -> str:
    return f"{1e3 * value:.0f} ms" if value < 1 else f"{value:.2f} s"


def _meter(share: float, width: int = 24) -> str:
    full = round(width * min(1.0, max(0.0, share)))
    return f"[green]{'━' * full}[/][dim]{'━' * (width - full)}[/]"


def _sparks(values: Sequence[float]) -> str:
    most = max(values, default=0.0)
    return "".join(_SPARKS[round((len(_SPARKS) - 1) * value / most)] if most else _SPARKS[0] for value in values)


def _grid(*columns: str) -> Table:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=any(columns))
    for column in columns:
        table.add_column(column, header_style="dim", no_wrap=True)
    return table


def _figures(seen: Sequence[Metrics]) -> Table:
    now, of = seen[-1], seen[-1].values
    pool = of.get("max_total_num_tokens", 0.0)
    kept = of.get("num_used_tokens", 0.0) + of.get("kv_evictable_tokens", 0.0)
    grid = _grid("", "", "")

    def line(label: str, value: str, name: str) -> None:
        grid.add_row(f"[dim]{label}[/]", f"[bold]{value}[/]", _sparks([one.values.get(name, 0.0) for one in seen]))

    line("tokens/s", f"{of.get('gen_throughput', 0):,.1f}", "gen_throughput")
    line("running", f"{of.get('num_running_reqs', 0):,.0f}", "num_running_reqs")
    line("waiting", f"{of.get('num_queue_reqs', 0):,.0f}", "num_queue_reqs")
    hits = of.get("cache_hit_rate", 0.0)
    grid.add_row("[dim]hit rate[/]", f"[bold]{hits:.0%}[/]", _meter(hits))
    if pool:
        grid.add_row("[dim]KV pool[/]", f"[bold]{kept / pool:.0%}[/]", _meter(kept / pool))
        pinned = of.get("kv_pinned_tokens", 0.0)
        note = f"of {pool:,.0f} tokens{f', {pinned:,.0f} pinned' if pinned else ''}"
        grid.add_row("[dim]in use[/]", f"[bold]{of.get('num_used_tokens', 0):,.0f}[/]", f"[dim]{note}[/]")
    for label, name in (("answered", "num_requests_total"), ("made", "generation_tokens_total")):
        what = "requests" if label == "answered" else "tokens"
        grid.add_row(f"[dim]{label}[/]", f"[bold]{now.values.get(name, 0):,.0f}[/]", f"[dim]{what}[/]")
    return grid


def _latencies(seen: Sequence[Metrics]) -> Table:
    grid = _grid("latency, last minute", "p50", "p95", "p99")
    before = seen[0] if len(seen) > 1 else Metrics()
    for label, name in _LATENCIES.items():
        values = seen[-1].quantiles(name, before, (0.5, 0.95, 0.99))
        grid.add_row(f"[dim]{label}[/]", *(["–"] * 3 if values is None else map(_seconds, values)))
    return grid


def _requests(view: dict[str, Any], most: int) -> Table:
    from rich.markup import escape

    grid = _grid("running", "cached", "prompt", "made", "age")
    for one in view["running"][:most]:
        made = one["tokens"] - one["prompt_tokens"]
        figures = (one["cached_tokens"], one["prompt_tokens"], made)
        age = _seconds(view["time"] - one["received"])
        grid.add_row(escape(_plain(one["rid"][:16])), *(f"{figure:,}" for figure in figures), age)
    left = view["num_running"] - min(most, len(view["running"]))
    if left > 0:
        grid.add_row(f"[dim]{left:,} more[/]")
    return grid


def _plain(text: str) -> str:
    """What somebody else wrote, without what a terminal would obey."""
    return "".join(c if c.isprintable() else "·" for c in text)


def _tree(view: dict[str, Any]) -> RenderableType:
    from rich.text import Text
    from rich.tree import Tree

    summary = f"prefix cache: {view['nodes']:,} runs, {view['tokens']:,} tokens"
    trees = {-1: Tree(Text(summary, "dim"), guide_style="dim")}
    for index, run in enumerate(view["runs"]):
        if "namespace" in run:
            label = Text(_plain(run["namespace"]) or "default namespace", "dim")
        else:
            label = Text(f"{run['tokens']:,} tokens, {run['hits']:,} hits", "cyan")
            readers = run["locks"] - run["pins"]
            label.append(f", {readers:,} reading" if readers else "", "blue")
            label.append(", pinned" if run["pins"] else "", "magenta")
            label.append("  " + _plain(" ".join(run.get("text", "").split())), "default")
        label.truncate(200)
        label.no_wrap, label.overflow = True, "ellipsis"
        trees[index] = trees[run["parent"]].add(label)
        if run["more"]:
            trees[index].add(Text(f"{run['more']:,} more", "dim"))
    return trees[-1]


def frame(server: Watched, name: str, seen: deque[Metrics], runs: int) -> RenderableType:
    """One picture, after a new reading.

    Raises:
        RadixLangError: the server does not answer.
    """
    from rich.columns import Columns
    from rich.console import Group
    from rich.text import Text

    now = server.metrics()
    if seen and not now.follows(seen[-1]):
        seen.clear()
    seen.append(now)
    parts: list[RenderableType] = [
        Text.assemble((name, "bold"), (f"  {server.url}  {time.strftime('%H:%M:%S')}", "dim")),
        Columns([_figures(seen), _latencies(seen)], padding=(0, 4)),
    ]
    requests = server.details("/requests", "running")
    if requests is not None and requests["running"]:
        parts.append(_requests(requests, 8))
    tree = server.details(f"/cache_tree?limit={runs}&head=24", "runs") if runs else None
    if tree is not None:
        parts.append(_tree(tree))
    parts += [Text(f"{path} {why}", "yellow") for path, why in server.notes.items()]
    return Group(*(part for each in parts for part in (each, "")))


# ---- the command ----


def build_parser() -> Parser:
    """The flags of `top`."""
    parser = Parser(
        prog="radixlang top",
        description="Show what a running server does: throughput, hit rate, memory, latencies, requests, and the"
        " prefix cache. Figures and latencies are there for every server with SGLang's metrics.",
        allow_abbrev=False,
    )
    parser.add_argument("--url", default="http://127.0.0.1:30000", help="the server (default: %(default)s)")
    parser.add_argument("--api-key", metavar="KEY", help="the server's key")
    parser.add_argument(
        "--admin-api-key", metavar="KEY", help="its key for control endpoints (default: --api-key)"
    )
    parser.add_argument("--interval", type=float, default=1.0, metavar="S", help="seconds a frame (default: 1)")
    parser.add_argument("--runs", type=int, default=16, help="runs of the prefix cache to show; 0 for none")
    parser.add_argument("--once", action="store_true", help="print one frame and leave")
    return parser


def frames(server: Watched, interval: float, runs: int) -> Iterator[RenderableType]:
    """Pictures without end: while a server is away that was there, the last one and a line about it.

    Raises:
        RadixLangError: it is not there at the beginning.
    """
    from rich.console import Group
    from rich.text import Text

    seen: deque[Metrics] = deque(maxlen=KEPT)
    name, away = server.name(), ""
    last = frame(server, name, seen, runs)
    yield last
    while True:
        time.sleep(interval)
        try:
            name = server.name() if away else name  # it may be another one
            last, away = frame(server, name, seen, runs), ""
            yield last
        except RadixLangError as error:
            away = away or time.strftime("%H:%M:%S")
            seen.clear()
            line = f"Nothing since {away}: {error} Asked again every {interval:g} s; Ctrl-C ends this."
            yield Group(Text(_plain(line), "red"), "", last)


def run(argv: Sequence[str]) -> int:
    """Draw until interrupted, which is how it ends well."""
    args = build_parser().parse(argv)
    if not 0.2 <= args.interval <= 3600:
        raise ConfigError(f"--interval must be from 0.2 to 3600 seconds, got {args.interval:g}.")
    if not 0 <= args.runs <= 1000:
        raise ConfigError(f"--runs must be from 0 to 1000, got {args.runs}.")
    from rich.console import Console
    from rich.live import Live

    server = Watched(args.url, args.api_key, args.admin_api_key)
    console = Console()
    try:
        pictures = frames(server, args.interval, args.runs)
        with contextlib.suppress(KeyboardInterrupt):
            if args.once or not console.is_terminal:  # a `Live` writes nothing to a file or a pipe before its end
                for picture in itertools.islice(pictures, 1 if args.once else None):
                    console.print(picture)
                return 0
            with Live(console=console, screen=True, auto_refresh=False) as live:
                for picture in pictures:
                    live.update(picture, refresh=True)
        return 0
    finally:
        server.close()
