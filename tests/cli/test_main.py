"""The command line: one clear line and the right exit code for everything that can be wrong with it."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from radixlang.cli import main as cli
from radixlang.cli.generate import build_parser as generate_parser
from radixlang.cli.options import engine_values
from radixlang.cli.parser import UNAVAILABLE, unavailable_feature
from radixlang.cli.serve import build_parser, configuration
from radixlang.config import flat_names
from radixlang.errors import ConfigError, EngineDeadError, WeightError
from radixlang.launch import with_model_files


def fails(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str]:
    """(exit code, the one line on standard error) of a command that must fail."""
    code = cli.main(argv)
    out, err = capsys.readouterr()
    assert out == ""
    lines = err.splitlines()
    assert len(lines) == 1, err
    assert lines[0].startswith("radixlang: error: ")
    return code, lines[0]


def test_help_and_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--help"]) == 0
    out = capsys.readouterr().out
    assert all(name in out for name in cli.COMMANDS)
    assert cli.main(["version"]) == 0
    assert cli.main(["--version"]) == 0
    first, second = capsys.readouterr().out.split()
    assert first == second


def test_no_command_shows_the_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([]) == 2
    assert "usage:" in capsys.readouterr().err


@pytest.mark.parametrize("command", [name for name in cli.COMMANDS if name != "version"])
def test_every_command_has_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as leave:
        cli.main([command, "--help"])
    assert leave.value.code == 0
    assert f"radixlang {command}" in capsys.readouterr().out


def test_serve_help_lists_every_option(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["serve", "--help"])
    out = capsys.readouterr().out
    missing = [name for name in flat_names() if f"--{name.replace('_', '-')}" not in out]
    assert not missing


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["serv"], "did you mean 'serve'?"),
        (["qqq"], "commands are serve, chat"),
        (["version", "now"], "takes no arguments"),
        (["serve", "--max-runing-requests", "3"], "did you mean --max-running-requests?"),
        (["serve", "--qqq"], "Unknown flag --qqq; see `radixlang serve --help`."),
        (["serve", "--lora-paths", "a=b"], "--lora-paths is known from SGLang (LoRA adapters) but not available"),
        (["serve", "--speculative-algorithm=EAGLE"], "speculative decoding"),
        (["serve", "--quantization", "fp8"], "quantised checkpoints"),
        (["serve", "--enable-lmcache"], "hierarchical caching"),
        (["serve", "--disaggregation-mode", "prefill"], "disaggregation"),
        (["serve", "--port", "abc"], "--port: invalid int value: 'abc'"),
        (["serve", "--port"], "--port: expected one argument"),
        (["serve", "--is-embedding=true"], "--is-embedding: takes no value, got 'true'"),
        (["serve", "--load-format", "pickle"], "invalid choice: 'pickle'"),
        (["serve", "a", "b"], "Unexpected argument 'b'"),
        (["serve", "a", "--model-path", "b"], "Two models are named, a and b"),
        (["serve", "a", "--page-size", "999"], "--page-size must be between 1 and 128, got 999"),
        (["serve", "--require-model"], "--model-path is required"),
        (["serve", "--config", "/no/such.yaml"], "--config /no/such.yaml cannot be read"),
        (["generate", "hello", "--stream", "--json"], "exclude each other"),
        (["generate", ""], "The prompt is empty"),
        (["generate", "x", "--temperature", "hot"], "--temperature: invalid float value: 'hot'"),
        (["serve", ".", "--tokenizer", "/no/such"], "--tokenizer-path: There is no model at /no/such"),
        (["generate", "x", "--model", "/no/such/model"], "There is no model at /no/such/model"),
        (["chat", "--url", "http://127.0.0.1:1", "--model", "x"], "exclude each other"),
        (["chat", "--url", "localhost:1"], "--url 'localhost:1' is no URL of a server; one looks like http://"),
        (["pull", "nothing"], "No packaged model is called 'nothing'; there are: smollm2"),
    ],
)
def test_a_bad_command_line_is_one_line_and_code_2(
    argv: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, line = fails(capsys, *argv)
    assert code == 2
    assert says in line


def test_a_bad_model_path_is_found_before_anything_starts(capsys: pytest.CaptureFixture[str]) -> None:
    code, line = fails(capsys, "serve", "--model-path", "/no/such/model", "--port", "0")
    assert code == 2
    assert "There is no model at /no/such/model" in line


def test_a_port_in_use_is_found_before_a_model_is_fetched(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_fetch(*_: Any) -> None:
        raise AssertionError("fetched a model for a port that is taken")

    monkeypatch.setattr("radixlang.launch.resolve_model_path", no_fetch)
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        code, line = fails(capsys, "serve", "--model-path", "default", "--port", str(port))
    assert code == 2
    assert str(port) in line
    assert "--port" in line


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ConfigError("bad\nflag"), 2),
        (WeightError("bad file"), 2),
        (EngineDeadError("gone"), 1),
        (KeyboardInterrupt(), 130),
    ],
)
def test_exit_codes(error: BaseException, code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(_: Any) -> int:
        raise error

    monkeypatch.setattr(cli, "run", run)
    assert cli.main(["version"]) == code


def test_serve_hands_over_the_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    monkeypatch.setattr("radixlang.launch.serve", lambda config, *_: seen.append(config) or 0)
    argv = ["serve", str(tmp_path), "--port", "0", "--tp", "1", "--max-model-len", "77", "--context-len", "99"]
    assert cli.main(argv) == 0
    assert seen[0].model.model_path == str(tmp_path)
    assert seen[0].model.context_length == 99
    assert seen[0].server.port == 0


def test_serve_returns_the_server_s_exit_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("radixlang.launch.serve", lambda *_: 1)
    assert cli.main(["serve", str(tmp_path), "--port", "0"]) == 1


def test_flags_win_over_the_file(tmp_path: Path) -> None:
    file = tmp_path / "options.json"
    file.write_text(json.dumps({"model-path": "from-file", "page_size": 4, "port": 1}))
    config = configuration(["--config", str(file), "--port", "2"])
    assert (config.model.model_path, config.device.page_size, config.server.port) == ("from-file", 4, 2)


def test_without_a_model_serve_takes_the_default(capsys: pytest.CaptureFixture[str]) -> None:
    assert configuration([]).model.model_path == "default"
    assert "SmolLM2" in capsys.readouterr().err


def test_a_packaged_model_keeps_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("radixlang.launch.resolve_model_path", lambda *_: str(tmp_path))
    config = with_model_files(configuration(["default"]))
    assert config.model.model_path == str(tmp_path)
    assert config.model_name == "default"
    config = with_model_files(configuration(["default", "--served-model-name", "mine"]))
    assert config.model_name == "mine"


def test_a_tokenizer_may_be_named_as_the_model_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[object, ...]] = []

    def resolve(*args: object) -> str:
        asked.append(args)
        return str(tmp_path / str(args[0]))

    monkeypatch.setattr("radixlang.launch.resolve_model_path", resolve)
    monkeypatch.setattr("radixlang.cli.options.resolve_model_path", resolve)
    flags = ["org/a", "--revision", "r", "--tokenizer-path"]
    model = with_model_files(configuration([*flags, "org/a"])).model
    assert model.tokenizer_path == model.model_path == str(tmp_path / "org/a")
    assert with_model_files(configuration([*flags, "org/b"])).model.tokenizer_path == str(tmp_path / "org/b")
    assert asked == [("org/a", None, "r"), ("org/a", None, "r"), ("org/b", None)]
    without = with_model_files(configuration([*flags, "org/b", "--skip-tokenizer-init"]))
    assert without.model.tokenizer_path == "org/b"
    asked.clear()
    values = engine_values(generate_parser().parse(["x", "--model", *flags, "org/a"]))
    assert values["tokenizer_path"] == values["model_path"] == str(tmp_path / "org/a")
    assert asked == [("org/a", None, "r")]


def test_no_built_flag_is_called_unavailable() -> None:
    known = {option for option in build_parser()._option_string_actions if option.startswith("--")}
    listed = {flag for flags in UNAVAILABLE.values() for flag in flags}
    assert not known & listed
    assert unavailable_feature("--lora-paths=2") == "LoRA adapters"
    assert unavailable_feature("--lorapaths") is None


def test_the_package_runs_as_a_module() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "radixlang", "--help"], capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("usage: radixlang COMMAND")
