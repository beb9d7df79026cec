"""`Engine` as a Python program meets it."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import shutil
import subprocess
import sys
import time
from typing import Any

import numpy as np
import pytest

from radixlang.errors import ConfigError, EngineDeadError, ModelError, RequestError
from radixlang.llm import Engine
from radixlang.sampling_params import SamplingParams

transformers = pytest.importorskip("transformers")
GREEDY = {"temperature": 0, "max_new_tokens": 6, "ignore_eos": True}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    import torch

    torch.manual_seed(1)
    config = transformers.LlamaConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
        initializer_range=0.4,
        bos_token_id=1,
        eos_token_id=2,
    )
    folder = tmp_path_factory.mktemp("tiny")
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    return str(folder)


def engine(folder, **options):
    return Engine(folder, inline=True, skip_tokenizer_init=True, num_threads=1, **options)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("backend", ["auto", "torch_native"])
def test_sixteen_bit_arithmetic_on_the_cpu(tiny, dtype, backend):
    with engine(tiny, dtype="float32") as exact, engine(tiny, dtype=dtype, attention_backend=backend) as rough:
        prompt = [5, 9, 33, 7]
        fields = {"input_ids": prompt, "sampling_params": GREEDY, "return_logprob": True, "logprob_start_len": 0}
        a, b = exact.generate(**fields), rough.generate(**fields)
        rows = [[row[0] for row in x["meta_info"]["input_token_logprobs"][1:]] for x in (a, b)]
        assert rows[0] == pytest.approx(rows[1], abs=0.3)
        assert rows[0] != rows[1]


def test_an_inline_engine_that_died_leaves_no_thread(tiny, monkeypatch):
    def fail(plan):
        raise EngineDeadError("The device is gone.")

    with engine(tiny) as dying:
        monkeypatch.setattr(dying.ring.engine.executor, "launch", fail)
        with pytest.raises(EngineDeadError, match="The device is gone"):
            dying.generate(input_ids=[5], sampling_params=GREEDY)
        began = time.monotonic()
    assert time.monotonic() - began < 5
    assert not any(thread.is_alive() for thread in dying.ring._threads)


def test_arrays_tuples_and_parameter_objects_are_taken(tiny):
    with engine(tiny) as e:
        wanted = e.generate(input_ids=[5, 6, 7], sampling_params=GREEDY)["output_ids"]
        assert e.generate(input_ids=np.array([5, 6, 7]), sampling_params=GREEDY)["output_ids"] == wanted
        assert e.generate(input_ids=(5, 6, 7), sampling_params=GREEDY)["output_ids"] == wanted
        pair = e.generate(input_ids=[np.array([5, 6, 7]), (5, 6, 7)], sampling_params=GREEDY)
        assert [out["output_ids"] for out in pair] == [wanted, wanted]
        params = SamplingParams(temperature=0.0, max_new_tokens=6, ignore_eos=True)
        assert e.generate(input_ids=[5, 6, 7], sampling_params=params)["output_ids"] == wanted
        numbers = {**GREEDY, "temperature": np.float32(0), "max_new_tokens": np.int64(6)}
        assert e.generate(input_ids=[5, 6, 7], sampling_params=numbers)["output_ids"] == wanted
        (single,) = e.generate(input_ids=[[5, 6, 7]], sampling_params=[numbers])
        assert single["output_ids"] == wanted
        for nothing in (None, False):  # wrappers pass on every argument that some engine has
            out = e.generate(input_ids=[5, 6, 7], sampling_params=GREEDY, another_engines=nothing)
            assert out["output_ids"] == wanted


@pytest.mark.parametrize(
    "fields",
    [
        {"prompt": 5},
        {"input_ids": "5"},
        {"input_ids": [1.5]},
        {"input_ids": [5], "sampling_params": 3},
        {"input_ids": [5], "no_such": 1},
        {"input_ids": [5], "text": "x"},
        {"input_ids": [5], "image_data": "x.png"},
        {"input_ids": [5], "sampling_params": {"max_tokens": 1, "max_new_tokens": 1}},
    ],
)
def test_bad_arguments_are_request_errors(tiny_engine, fields):
    with pytest.raises(RequestError):
        tiny_engine.generate(**fields)


@pytest.fixture(scope="module")
def tiny_engine(tiny):
    with engine(tiny) as e:
        yield e


def test_model_info_and_server_info(tiny_engine, tiny):
    info = tiny_engine.get_model_info()
    assert info["model_path"] == tiny
    assert info["architectures"] == ["LlamaForCausalLM"]
    assert info["is_generation"]
    assert tiny_engine.get_server_info()["max_total_num_tokens"] > 0


@pytest.mark.parametrize("name", ["dtype", "load_format", "kv_cache_dtype", "log_level"])
def test_choices_are_checked(tiny, name):
    with pytest.raises(ConfigError, match=name):
        engine(tiny, **{name: "zz"})


def test_async_use_in_a_running_loop(tiny_engine):
    async def both():
        whole = await tiny_engine.async_generate(input_ids=[5, 6], sampling_params=GREEDY)
        stream = await tiny_engine.async_generate(input_ids=[5, 6], sampling_params=GREEDY, stream=True)
        parts = [chunk["output_ids"] async for chunk in stream]
        return whole["output_ids"], parts

    whole, parts = asyncio.run(both())
    assert parts[-1] == whole


def test_an_iterator_may_be_collected_on_the_hubs_own_thread(tiny_engine):
    stream = tiny_engine.generate(input_ids=[5], sampling_params={**GREEDY, "max_new_tokens": 100}, stream=True)
    next(stream)

    async def collect():
        stream.close()

    asyncio.run_coroutine_threadsafe(collect(), tiny_engine._loop).result(10)
    assert len(tiny_engine.generate(input_ids=[5], sampling_params=GREEDY)["output_ids"]) == 6


def test_a_forgotten_engine_ends_its_processes(tiny):
    e = Engine(tiny, skip_tokenizer_init=True, num_threads=1)
    children = e.get_all_child_pids()
    assert len(children) == 2
    assert e.generate(input_ids=[5], sampling_params=GREEDY)["output_ids"]
    del e
    gc.collect()
    deadline = time.monotonic() + 15
    while any(os.path.exists(f"/proc/{pid}") for pid in children) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(os.path.exists(f"/proc/{pid}") for pid in children)


def test_the_reason_of_a_failed_start_arrives(tmp_path):
    """Whichever process finds it first, and however quickly it leaves."""
    for _ in range(3):
        with pytest.raises(ModelError):
            Engine(str(tmp_path))


def test_an_inline_engine_finds_a_tokenizers_faults_before_weights_load(tiny, monkeypatch):
    monkeypatch.setattr("radixlang.engine.build.build_engine", lambda *_: pytest.fail("the engine was built"))
    with pytest.raises(ModelError, match="is neither a GGUF file nor a folder"):
        Engine(tiny, inline=True, tokenizer_path=__file__)


def test_without_numba_torch_does_the_work(tiny):
    code = (
        "import sys; sys.modules['numba'] = None\n"
        "import importlib.util as u; real = u.find_spec\n"
        "u.find_spec = lambda name, *a: None if name == 'numba' else real(name, *a)\n"
        "from radixlang.llm import Engine\n"
        f"e = Engine({tiny!r}, inline=True, skip_tokenizer_init=True, num_threads=1)\n"
        "print(e.ring.info['attention_backend'], e.generate(input_ids=[5, 6], sampling_params="
        "{'temperature': 0, 'max_new_tokens': 6, 'ignore_eos': True})['output_ids'])\n"
        "e.shutdown()\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("torch_native [")
    with engine(tiny, dtype="float32") as e:
        wanted = e.generate(input_ids=[5, 6], sampling_params=GREEDY)["output_ids"]
    assert result.stdout.strip().endswith(str(wanted))


def test_batch_generate_takes_each_request_its_own_way(tiny_engine):
    outs = tiny_engine.batch_generate(
        [
            {"input_ids": [5, 6], "sampling_params": GREEDY},
            {"input_ids": [5, 6], "sampling_params": {**GREEDY, "max_new_tokens": 2}},
        ]
    )
    assert [len(out["output_ids"]) for out in outs] == [6, 2]
    assert outs[0]["output_ids"][:2] == outs[1]["output_ids"]


def test_pinned_prompt_stays_until_it_is_let_go(tiny):
    with engine(tiny, page_size=4, max_total_tokens=128, context_length=64, dtype="float32") as runtime:
        prompt = [3 + i % 50 for i in range(21)]
        pin = runtime.pin(input_ids=prompt, ttl=60, extra_key="me")
        assert pin["tokens"] == 20
        assert 0 < pin["expires"] - time.time() <= 60
        for i in range(8):
            runtime.generate(input_ids=[[10 + i] * 40, [20 + i] * 40], sampling_params=GREEDY)
        again = runtime.generate(input_ids=prompt, sampling_params=GREEDY, extra_key="me")
        other = runtime.generate(input_ids=prompt, sampling_params=GREEDY)
        assert again["meta_info"]["cached_tokens"] == 20
        assert other["meta_info"]["cached_tokens"] == 0
        assert again["output_ids"] == other["output_ids"]
        assert [found["id"] for found in runtime.pins()] == [pin["id"]]
        with pytest.raises(RequestError, match="Argument of unpin"):
            runtime.unpin(5)  # type: ignore[arg-type]
        assert runtime.unpin([pin["id"], "unknown"]) == 1
        assert runtime.pins() == []
        with pytest.raises(RequestError, match="whole pages of 4"):
            runtime.pin(input_ids=prompt[:3])
        with pytest.raises(RequestError, match="max-pinned-fraction"):
            runtime.pin(input_ids=[5] * 50)
        with pytest.raises(RequestError, match=r"Argument of pin: .*3600.*ttl"):
            runtime.pin(input_ids=prompt, ttl=10**6)
        with pytest.raises(RequestError, match="Unknown argument 'times' of pin"):
            runtime.pin(input_ids=prompt, times=2)


@pytest.mark.parametrize("mode", ["mean_tokens", "cls_token", "lasttoken"])
def test_vectors_of_a_decoder_do_not_depend_on_what_is_cached(tiny, tmp_path, mode: str) -> None:
    """Those of all tokens cannot be made from the end of a prompt, whether its beginning is cached, in storage, or
    in another chunk."""
    folder = tmp_path / "model"
    shutil.copytree(tiny, folder)
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({f"pooling_mode_{mode}": True}))
    prompts = [list(range(3, 63)), list(range(3, 33)), [*range(3, 43), *range(40, 20, -1)], list(range(3, 63))]
    options: dict[str, Any] = {"is_embedding": True, "page_size": 4, "max_total_tokens": 512, "dtype": "float32"}
    with engine(str(folder), disable_radix_cache=True, **options) as runtime:
        want = [runtime.encode(input_ids=prompt)["embedding"] for prompt in prompts]
    with engine(str(folder), chunked_prefill_size=16, cache_dir=str(tmp_path / "pages"), **options) as runtime:
        for _ in range(2):
            got = [runtime.encode(input_ids=prompt)["embedding"] for prompt in prompts]
            np.testing.assert_allclose(got, want, atol=1e-5)
        together = [answer["embedding"] for answer in runtime.encode(input_ids=prompts)]
        np.testing.assert_allclose(together, want, atol=1e-5)


@pytest.mark.parametrize("name", ["extra_key", "cache_salt", "rid"])
def test_half_a_surrogate_pair_in_a_name_is_refused(tiny_engine, name: str) -> None:
    """JSON cannot bring one; in the key of a page it would end the engine."""
    half = "\ud800"
    for value in (half, [half, "fine"]):
        ids = [5, 6] if value is half else [[5, 6], [5, 6]]
        with pytest.raises(RequestError, match=f"Argument {name} of generate is not valid Unicode"):
            tiny_engine.generate(input_ids=ids, sampling_params=GREEDY, **{name: value})
    with pytest.raises(RequestError, match="sampling_params of generate is not valid Unicode"):
        tiny_engine.generate(input_ids=[5, 6], sampling_params={"stop": [half]})
    with pytest.raises(RequestError, match="id of unpin is not valid Unicode"):
        tiny_engine.unpin([half])
    assert tiny_engine.generate(input_ids=[5, 6], sampling_params=GREEDY, **{name: "fine"})["output_ids"]
