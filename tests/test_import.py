"""`import radixlang` and the help are what a stranger waits for first: they must not load the heavy parts."""

from __future__ import annotations

import subprocess
import sys

import pytest

import radixlang

HEAVY = ("torch", "fastapi", "numpy", "transformers", "rich", "httpx")


def loaded_by(code: str) -> set[str]:
    """Top-level packages that a fresh interpreter has loaded after `code`."""
    script = f"import sys\n{code}\nprint('\\n'.join(sorted({{m.partition('.')[0] for m in sys.modules}})))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return set(done.stdout.split("\n"))


def test_import_is_light() -> None:
    assert not loaded_by("import radixlang") & set(HEAVY)


def test_help_is_light() -> None:
    code = "from radixlang.cli.main import main\nassert main(['--help']) == 0"
    assert not loaded_by(code) & set(HEAVY)


def test_serve_help_is_light() -> None:
    code = """
from radixlang.cli.main import main
try:
    main(['serve', '--help'])
except SystemExit as leave:
    assert leave.code == 0
"""
    assert not loaded_by(code) & {"torch", "fastapi", "transformers"}


def test_the_lazy_names_exist_and_are_what_they_say() -> None:
    from radixlang.config import Config
    from radixlang.sampling_params import SamplingParams

    assert radixlang.SamplingParams is SamplingParams
    config = radixlang.ServerArgs(model_path="x", page_size=8)
    assert isinstance(config, Config)
    assert config.device.page_size == 8
    assert set(radixlang.__all__) <= set(dir(radixlang))
    # The engine's module must be where the table says; importing it here would load torch for nothing.
    from importlib.util import find_spec

    assert find_spec("radixlang.llm") is not None


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = radixlang.nothing  # type: ignore[attr-defined]


def test_the_version_is_the_package_s() -> None:
    import tomllib
    from pathlib import Path

    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
    if "version" in project.get("dynamic", ()):
        pytest.skip("pyproject.toml takes the version from the package")
    assert project["version"] == radixlang.__version__
