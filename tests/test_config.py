import argparse
import json

import msgspec
import pytest

from radixlang import config
from radixlang.config import Config
from radixlang.errors import ConfigError


def parse(*arguments):
    parser = argparse.ArgumentParser()
    config.add_arguments(parser)
    return config.from_namespace(parser.parse_args(list(arguments)))


def test_flags_reach_their_group():
    c = parse("--model", "m", "--page-size", "4", "--no-enable-metrics", "--tp", "1", "--disable-radix-cache")
    assert c.model.model_path == "m"
    assert c.device.page_size == 4
    assert not c.server.enable_metrics
    assert c.cache.disable_radix_cache


def test_every_option_has_a_flag_and_a_sentence_of_help():
    for _, field, _ in config.options():
        assert field.metadata["help"].endswith(".") or field.metadata["help"].endswith("…"), field.name


INTEGERS = [field.name for _, field, kind in config.options() if kind in (int, int | None)]


TEMPLATES = {"chat_template": "chatml", "default_chat_template_kwargs": '{"a": 1}'}
GENERATED = {"sampling_defaults": "openai", "grammar_backend": "native"}
CONSTRAINTS = {
    "constrained_json_any_whitespace": True,
    "constrained_json_disable_any_whitespace": False,
    "grammar_residual": "refuse",
    "grammar_cache_mb": 1,
}
STREAMS = {"stream_interval": 2, "incremental_streaming_output": True}


@pytest.mark.parametrize(
    ("values", "flag"),
    [
        ({"page_size": 0}, "--page-size"),
        ({"page_size": 129}, "--page-size"),
        ({"tp_size": 0}, "--tp-size"),
        ({"tp_size": 1000}, "--tp-size must be between 1 and 64"),
        *(({name: 1 << 70}, f"--{name.replace('_', '-')} must be") for name in INTEGERS),
        ({"max_running_requests": 1 << 20}, "--max-running-requests must be between 1 and 65536"),
        ({"served_model_name": "a\udcff"}, "--served-model-name must be UTF-8 text"),
        ({"cache_dir": "a\0b"}, r"--cache-dir must be UTF-8 text without NUL, got 'a\\x00b'"),
        ({"api_key": "a\nb"}, "--api-key must be one line"),
        ({"admin_api_key": "a "}, "--admin-api-key must be one line"),
        ({"dp_size": 2}, "--dp-size"),
        ({"mem_fraction_static": 1.5}, "--mem-fraction-static"),
        ({"chunked_prefill_size": 0}, "--chunked-prefill-size"),
        ({"max_running_requests": 0}, "--max-running-requests"),
        ({"max_queued_requests": -1}, "--max-queued-requests"),
        ({"port": 70000}, "--port"),
        ({"json_model_override_args": "[1]"}, "--json-model-override-args"),
        ({"json_model_override_args": "[" * 10**5}, "--json-model-override-args must be a JSON object"),
        ({"schedule_policy": "nope"}, "--schedule-policy"),
        ({"radix_eviction_policy": "nope"}, "--radix-eviction-policy"),
        ({"attention_backend": "nope"}, "--attention-backend"),
        ({"model_path": ""}, "--model-path"),
        ({"cache_dir": "d", "cache_dir_size": float("inf")}, "--cache-dir-size must be a finite number"),
        ({"hicache_ratio": float("inf")}, "--hicache-ratio"),
        ({"hicache_ratio": 1e300}, "--hicache-ratio must be above 0 and at most 1e6"),
        ({"cache_dir": "d", "cache_dir_size": 1e300}, "--cache-dir-size must be from 0 to 1e9"),
        ({"hicache_size": 1e300}, "--hicache-size must be from 0 to 1e9"),
        ({"num_threads": 1 << 20}, "--num-threads must be between 1 and 1024"),
        ({"queue_timeout": float("nan")}, "--queue-timeout"),
        ({"queue_timeout": 10**400}, "--queue-timeout must be a finite number"),
        ({"drain_timeout": -1.0}, "--drain-timeout"),
        ({"health_timeout": 0.0}, "--health-timeout"),
        ({"cache_dir_size": 1.0}, "--cache-dir-size needs --cache-dir"),
        ({"hicache_storage_backend": "redis", "cache_dir_size": 1.0}, "--cache-dir-size needs --cache-dir"),
        ({"hicache_storage_backend_extra_config": '{"ttl": 5}'}, "--hicache-storage-backend-extra-config needs"),
        (
            {"cache_dir": "d", "hicache_storage_backend_extra_config": '{"ttl": 5}'},
            "--hicache-storage-backend-extra-config needs",
        ),
        (
            {"device": "cuda:x"},
            "--device must be auto, or a kind such as cuda, or one of them: cuda:1, got 'cuda:x'",
        ),
        ({"mem_fraction_static": 0.0}, "--mem-fraction-static must be above 0 and below 1"),
        ({"schedule_policy": "lpm", "enable_priority_scheduling": True}, "--schedule-policy must be left out"),
        ({"schedule_low_priority_values_first": True}, "needs --enable-priority-scheduling"),
        ({"disable_priority_preemption": True}, "needs --enable-priority-scheduling"),
        ({"priority_scheduling_preemption_threshold": 3}, "threshold needs --enable-priority-scheduling"),
        *(
            (
                {"disable_radix_cache": True, name: value},
                f"--{flag} has no effect with --disable-radix-cache; leave one of the two out",
            )
            for name, value, flag in (
                ("radix_eviction_policy", "cost", "radix-eviction-policy"),
                ("max_pinned_fraction", 0.5, "max-pinned-fraction"),
                ("schedule_policy", "lpm", "schedule-policy lpm"),
                ("schedule_policy", "dfs-weight", "schedule-policy dfs-weight"),
            )
        ),
        *(
            (
                {"disable_cuda_graph": True, name: 64},
                f"--{name.replace('_', '-')} has no effect with --disable-cuda-graph; leave one of the two out",
            )
            for name in ("cuda_graph_max_bs", "cuda_graph_max_bs_prefill")
        ),
        *(
            (
                {name: value, other: there},
                f"^--{'no-' * (value is False)}{name.replace('_', '-')} has no effect with {said}; leave one of",
            )
            for other, there, said, given in (
                ("skip_tokenizer_init", True, "--skip-tokenizer-init", {**TEMPLATES, **GENERATED, **CONSTRAINTS}),
                ("is_embedding", True, "--is-embedding", {**STREAMS, **GENERATED, **CONSTRAINTS}),
                ("grammar_backend", "none", "--grammar-backend none", CONSTRAINTS),
            )
            for name, value in given.items()
        ),
        ({"hicache_ratio": 3.0}, "--hicache-ratio has no effect without --enable-hierarchical-cache"),
        ({"hicache_ratio": 3.0, "cache_dir": "d"}, "--hicache-ratio has no effect without"),
        ({"hicache_size": 1.0}, "--hicache-size has no effect without .*, --cache-dir or"),
        ({"hicache_write_policy": "write_back"}, "--hicache-write-policy has no effect without"),
        (
            {"hicache_storage_prefetch_policy": "best_effort", "enable_hierarchical_cache": True},
            "--hicache-storage-prefetch-policy has no effect without --cache-dir",
        ),
    ],
)
def test_resolve_names_the_flag(values, flag):
    with pytest.raises(ConfigError, match=flag):
        Config.from_flat(**{"model_path": "m", **values}).resolve()


def test_prefix_caching_of_other_servers_scripts_is_the_radix_cache():
    for flags, off in (([], False), (["--enable-prefix-caching"], False), (["--no-enable-prefix-caching"], True)):
        assert parse("--model", "m", *flags).resolve().cache.disable_radix_cache == off
    with pytest.raises(ConfigError, match="--schedule-policy lpm has no effect with --no-enable-prefix-caching"):
        parse("--model", "m", "--no-enable-prefix-caching", "--schedule-policy", "lpm").resolve()


def test_what_has_an_effect_is_taken():
    for values in (
        {"disable_radix_cache": True, "schedule_policy": "priority", "radix_eviction_policy": "lru"},
        {"enable_hierarchical_cache": True, "hicache_ratio": 3.0, "hicache_write_policy": "write_back"},
        {"cache_dir": "d", "hicache_size": 1.0, "hicache_storage_prefetch_policy": "best_effort"},
        {"skip_tokenizer_init": True, "tool_call_parser": "qwen", "grammar_backend": "auto", **STREAMS},
        {"is_embedding": True, **TEMPLATES},
    ):
        Config.from_flat(model_path="m", **values).resolve()


def test_what_is_off_already_may_be_turned_off():
    for values in (
        {"disable_radix_cache": True, "max_pinned_fraction": 0.0},
        {"disable_cuda_graph": True, "cuda_graph_max_bs_prefill": 0},
        {"grammar_backend": "none", "disable_jump_forward": True},
        *({off: True, "grammar_backend": "none"} for off in ("skip_tokenizer_init", "is_embedding")),
        *({off: True, "disable_jump_forward": True} for off in ("skip_tokenizer_init", "is_embedding")),
    ):
        Config.from_flat(model_path="m", **values).resolve()


def test_unknown_option_suggests_the_nearest():
    with pytest.raises(ConfigError, match="did you mean 'model_path'"):
        Config.from_flat(model_pth="x")


@pytest.mark.parametrize(
    ("name", "value"), [("page_size", "4"), ("port", True), ("model_path", 3), ("log_requests", 1)]
)
def test_wrong_types_are_refused(name, value):
    with pytest.raises(ConfigError, match=name):
        Config.from_flat(**{name: value})


def test_aliases_of_other_servers():
    c = Config.from_flat(model="m", gpu_memory_utilization=0.5, max_model_len=64)
    assert (c.model.model_path, c.device.mem_fraction_static, c.model.context_length) == ("m", 0.5, 64)


def test_every_spelling_of_a_flag_is_one_in_files_and_calls(tmp_path):
    parser = argparse.ArgumentParser()
    config.add_arguments(parser)
    spellings = {
        (word, action.dest)
        for action in parser._actions
        for word in action.option_strings
        if action.dest in config.flat_names() and not word.startswith("--no-")
    }
    file = tmp_path / "c.json"
    for word, name in spellings:
        default = Config().flat()[name]
        file.write_text(json.dumps({word.lstrip("-"): default}))
        assert config.read_file(str(file)) == {name: default}
        assert Config.from_flat(**{word.lstrip("-").replace("-", "_"): default}) == Config()


def test_config_file_lies_under_the_flags(tmp_path):
    file = tmp_path / "c.yaml"
    file.write_text("model-path: m\npage_size: 8\nport: 1\n")
    c = parse("--config", str(file), "--port", "2")
    assert (c.model.model_path, c.device.page_size, c.server.port) == ("m", 8, 2)


@pytest.mark.parametrize("text", ["- a\n", "a: [\n", "[" * 10**5])
def test_bad_config_files(tmp_path, text):
    file = tmp_path / "c.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError, match="--config"):
        parse("--config", str(file))


def test_config_files_that_cannot_be_read(tmp_path):
    file = tmp_path / "c.yaml"
    file.write_bytes(b"\xff\xfe")
    for path in ("/nowhere.yaml", str(tmp_path), str(file), "a\0b"):
        with pytest.raises(ConfigError, match=r"--config .* cannot be read"):
            parse("--config", path)


def test_keys_are_withheld_and_the_wire_keeps_all():
    url = '{"url": "redis://:secret@cache:6379/0"}'
    c = Config.from_flat(model_path="m", api_key="secret", hicache_storage_backend_extra_config=url)
    assert c.flat()["api_key"] == "***"
    assert "secret" not in repr(c.flat())
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(c), type=Config) == c


def test_resolve_normalises():
    c = Config.from_flat(model_path="m", dtype="half", enable_priority_scheduling=True).resolve()
    assert (c.model.dtype, c.schedule.schedule_policy) == ("float16", "priority")


@pytest.mark.parametrize("name", ["lm-format-enforcer", "outlines"])
def test_unknown_grammar_engines_are_told_the_known_ones(name: str) -> None:
    with pytest.raises(ConfigError, match="known are: auto, none, native, llguidance, xgrammar"):
        Config.from_flat(model_path="m", grammar_backend=name).resolve()
