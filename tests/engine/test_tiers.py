"""A cache that outlives the engine: the same texts, most of the prompt from disk, and never a wrong token from
whatever has become of the files meanwhile."""

from __future__ import annotations

import dataclasses
import errno
import os
import random
import shutil
import time
from pathlib import Path
from typing import Any

import pytest

from radixlang.cache.tiers.disk import DiskStorage
from radixlang.engine.build import hidden_load
from radixlang.errors import ConfigError
from radixlang.executor import EngineShape
from radixlang.llm import Engine

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

VOCAB, NEW = 97, 12


def make_model(folder: Path, seed: int) -> Path:
    torch.manual_seed(seed)
    config = transformers.LlamaConfig(
        vocab_size=VOCAB, hidden_size=48, intermediate_size=80, num_hidden_layers=2, num_attention_heads=6,
        num_key_value_heads=2, max_position_embeddings=256, initializer_range=0.4, bos_token_id=1,
        eos_token_id=2, pad_token_id=0,
    )  # fmt: skip
    transformers.LlamaForCausalLM(config).eval().save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    return make_model(tmp_path_factory.mktemp("tiny"), 3)


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    rng = random.Random(7)
    stem = [rng.randrange(3, VOCAB) for _ in range(64)]
    return [
        stem[:cut] + [rng.randrange(3, VOCAB) for _ in range(own)] for cut, own in ((64, 9), (64, 40), (0, 50))
    ]


def test_how_many_tokens_are_copied_while_one_is_computed() -> None:
    sizes: dict[str, Any] = {
        "max_rows": 9,
        "context_length": 4096,
        "vocab_size": 9,
        "eos_ids": (),
        "encoder": False,
    }
    sizes |= {"dtype": "bfloat16", "attention_backend": "triton", "load_seconds": 0.0}
    pool = {"num_pages": 1000, "page_size": 16, "kv_bytes": 1000 * 16 * 32 * 2 * 8 * 128 * 2}
    llama = EngineShape(device="cuda:0: H200", weight_bytes=16_060_000_000, **pool, **sizes)
    assert 9 < hidden_load(llama) < 10  # 40,000 tokens a second, and 50 GB/s (benchmarks/RESULTS.md)
    assert hidden_load(dataclasses.replace(llama, device="cpu: x")) == float("inf")


class Serving:
    """An engine, and what it says to the prompts."""

    def __init__(self, model: Path, **options: Any) -> None:
        options = {"page_size": 4, "max_total_tokens": 1024, **options}
        self.engine = Engine(str(model), inline=True, skip_tokenizer_init=True, num_threads=1, **options)

    def __enter__(self) -> Serving:
        return self

    def __exit__(self, *_: object) -> None:
        self.engine.shutdown()

    def ask(self, prompts: list[list[int]]) -> tuple[list[list[int]], float]:
        """(tokens, share of the prompt tokens that came from storage)"""
        params = {"temperature": 0, "max_new_tokens": NEW, "ignore_eos": True}
        outs = self.engine.generate(input_ids=prompts, sampling_params=params)
        details = [out["meta_info"]["cached_tokens_details"] or {} for out in outs]
        for out, detail in zip(outs, details, strict=True):
            parts = sum(detail.get(tier, 0) for tier in ("device", "host", "storage"))
            assert parts == out["meta_info"]["cached_tokens"]
        return [out["output_ids"] for out in outs], sum(d.get("storage", 0) for d in details) / sum(
            map(len, prompts)
        )

    def check(self) -> None:
        """The books agree, once the engine's thread has nothing to do."""
        deadline = time.monotonic() + 20
        while not self.engine.ring.engine._quiet:
            assert time.monotonic() < deadline
            time.sleep(0.005)
        self.scheduler.check()

    @property
    def scheduler(self) -> Any:
        return self.engine.ring.engine.scheduler


@pytest.fixture(scope="module")
def answers(model, prompts) -> list[list[int]]:
    with Serving(model) as serving:
        return serving.ask(prompts)[0]


@pytest.fixture
def filled(tmp_path, model, prompts, answers) -> Path:
    """A folder that an engine has left."""
    with Serving(model, cache_dir=str(tmp_path)) as serving:
        texts, share = serving.ask(prompts)
        assert (texts, share) == (answers, 0)
        serving.check()
    assert entries(tmp_path)
    return tmp_path


def entries(folder: Path) -> list[Path]:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    assert not [path for path in files if path.name.endswith(".part")]
    return files


@pytest.mark.parametrize("overlap", [True, False])
def test_a_restarted_engine_reads_what_the_last_one_wrote(filled, model, prompts, answers, overlap) -> None:
    with Serving(model, cache_dir=str(filled), disable_overlap_schedule=not overlap) as serving:
        # One after the other, so that each token is found in the lowest tier only.
        for prompt, answer in zip(prompts, answers, strict=True):
            texts, share = serving.ask([prompt])
            assert texts == [answer]
            assert serving.engine.flush_cache()
            assert share >= 0.9 * (len(prompt) - len(prompt) % 4) / len(prompt)
        texts, share = serving.ask(prompts)
        assert texts == answers
        assert share > 0.6  # the stem is loaded for one and on the device for the other
        serving.check()


def test_of_a_prompt_larger_than_the_folder_the_beginning_is_kept(tmp_path, model) -> None:
    """And stays there while its conversation goes on."""
    rng = random.Random(5)
    prompt = [rng.randrange(3, VOCAB) for _ in range(180)]
    options = {"cache_dir": str(tmp_path), "cache_dir_size": 30e-6}
    with Serving(model, **options) as serving:
        serving.ask([prompt[:100]])
        answer, _ = serving.ask([prompt])
    assert sum(path.stat().st_size for path in entries(tmp_path)) <= 30_000
    with Serving(model, **options) as serving:
        again, share = serving.ask([prompt])
        assert again == answer
        assert share > 0.55  # 27 pages fit, and 45 are full


def test_an_engine_of_processes_leaves_what_it_has_computed(tmp_path, model) -> None:
    rng = random.Random(6)
    prompts = [[rng.randrange(3, VOCAB) for _ in range(200)] for _ in range(5)]
    options: dict[str, Any] = {"page_size": 1, "max_total_tokens": 2048, "num_threads": 1}
    with Engine(str(model), skip_tokenizer_init=True, cache_dir=str(tmp_path), **options) as engine:
        engine.generate(input_ids=prompts, sampling_params={"max_new_tokens": 1})
    first = len({prompt[0] for prompt in prompts})  # a page of one token, which two may share
    assert len(entries(tmp_path)) >= 5 * 199 + first


def test_damaged_entries_are_deleted_and_computed(filled, model, prompts, answers) -> None:
    files = entries(filled)
    rng = random.Random(0)
    damaged = files[::2]
    for path in damaged:
        data = bytearray(path.read_bytes())
        kind = rng.randrange(4)
        if kind == 0:
            data[rng.randrange(64, len(data))] ^= 1 << rng.randrange(8)
        elif kind == 1:
            data[rng.randrange(64)] ^= 1 << rng.randrange(8)
        elif kind == 2:
            data = data[: rng.randrange(len(data))]
        else:
            data = bytearray(rng.choice(files).read_bytes()[:-4] + b"abcd")
        path.write_bytes(data)
    shares = []
    for _ in range(2):  # the first has replaced them all
        with Serving(model, cache_dir=str(filled)) as serving:
            texts, share = serving.ask(prompts)
            assert texts == answers
            shares.append(share)
    assert shares[0] < 0.3
    assert shares[-1] > 0.6


def test_entries_that_change_places_are_found_out(filled, model, prompts, answers) -> None:
    files = entries(filled)
    contents = [path.read_bytes() for path in files]
    for path, content in zip(files, contents[1:] + contents[:1], strict=True):
        path.write_bytes(content)
    with Serving(model, cache_dir=str(filled)) as serving:
        texts, share = serving.ask(prompts)
        assert (texts, share) == (answers, 0)


def test_another_models_folder_is_not_read(filled, model, prompts, tmp_path_factory) -> None:
    other = make_model(tmp_path_factory.mktemp("other"), 4)
    with Serving(other) as serving:
        expected = serving.ask(prompts)[0]
    with Serving(other, cache_dir=str(filled)) as serving:
        assert serving.ask(prompts) == (expected, 0)
    # Not even where somebody has put it in the other's place.
    mine, theirs = sorted(filled.iterdir(), key=os.path.getmtime)
    for path in theirs.rglob("*"):
        if path.is_file():
            path.unlink()
    shutil.copytree(mine, theirs, dirs_exist_ok=True)
    with Serving(other, cache_dir=str(filled)) as serving:
        assert serving.ask(prompts) == (expected, 0)


def test_other_layouts_of_one_model_do_not_meet(filled, model, prompts, answers) -> None:
    with Serving(model, cache_dir=str(filled), page_size=8) as serving:
        assert serving.ask(prompts) == (answers, 0)


def test_a_full_disk_costs_nothing_but_the_cache(tmp_path, model, prompts, answers, monkeypatch) -> None:
    def no_room(self: DiskStorage, path: Path, key: bytes, buffer: memoryview, used: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    told: list[str] = []
    monkeypatch.setattr(DiskStorage, "_write", no_room)
    monkeypatch.setattr("radixlang.cache.tiers.disk.log.warning", lambda text, *values: told.append(text % values))
    with Serving(model, cache_dir=str(tmp_path)) as serving:
        for _ in range(2):
            assert serving.ask(prompts)[0] == answers
            assert serving.engine.flush_cache()
    assert len(told) == 1
    assert "the disk is full" in told[0]
    assert not entries(tmp_path)


def test_two_engines_share_a_folder(tmp_path, model, prompts, answers) -> None:
    options = {"cache_dir": str(tmp_path), "hicache_storage_prefetch_policy": "wait_complete"}
    with Serving(model, **options) as first, Serving(model, **options) as second:
        assert first.ask(prompts)[0] == answers
        deadline = time.monotonic() + 20
        while first.scheduler.stats(0.0).counters["backuped_tokens_total"] < 100:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        texts, share = second.ask(prompts)
        assert texts == answers
        assert share > 0.5
        for serving in (first, second, first):
            assert serving.engine.flush_cache()
            assert serving.ask(prompts)[0] == answers
            serving.check()


@pytest.mark.parametrize("policy", ["write_through", "write_through_selective", "write_back"])
def test_short_memory_moves_pages_through_the_tiers(tmp_path, model, policy) -> None:
    """A working set several times the KV pool, in turns."""
    rng = random.Random(1)
    many = [[rng.randrange(3, VOCAB) for _ in range(60)] for _ in range(8)]
    with Serving(model) as plain:
        expected = [plain.ask([prompt])[0][0] for prompt in many]
    with Serving(model, cache_dir=str(tmp_path), max_total_tokens=256, hicache_write_policy=policy) as serving:
        for _ in range(3):
            assert serving.ask(many)[0] == expected
            serving.check()
        counters = serving.scheduler.stats(0.0).counters
        if policy != "write_through_selective":  # hardly anything is used twice before it is evicted
            assert counters["load_back_tokens_total"] > 100
            assert counters["cached_tokens_total"] > 100


def test_what_cannot_work_is_said_before_weights_load(tmp_path, model, monkeypatch) -> None:
    monkeypatch.setattr("radixlang.executor.build.load_model", lambda *_: pytest.fail("the weights were loaded"))
    file = tmp_path / "file"
    file.touch()
    for options, words in (
        ({"cache_dir": str(file / "x")}, "--cache-dir"),
        ({"hicache_storage_backend": "file"}, "--cache-dir must be a folder"),
        ({"hicache_storage_backend": "tape"}, "known are: none, file, redis"),
        ({"cache_dir": str(tmp_path), "disable_radix_cache": True}, "--disable-radix-cache"),
        ({"cache_dir": str(tmp_path), "tp_size": 2}, "--tp-size must be 1"),
        # A page has 1024 bytes, its file some more.
        (
            {"cache_dir": str(tmp_path), "cache_dir_size": 1030e-9},
            "allows 1,030 bytes, but one page of KV takes 1,088",
        ),
        (
            {"hicache_storage_backend": "redis", "hicache_storage_backend_extra_config": '{"host": 1}'},
            "url and ttl",
        ),
    ):
        with pytest.raises(ConfigError, match=words):
            Serving(model, **options)
