"""An argument parser whose complaints are one line: the flag, what is wrong, and what may have been meant.

Knows which flags of SGLang stand for features that this version does not have. Must not import torch.
"""

from __future__ import annotations

import argparse
import difflib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from radixlang.errors import ConfigError

#: feature → its flags in SGLang; an entry that ends in "-" covers every flag that begins with it
UNAVAILABLE: dict[str, tuple[str, ...]] = {
    "LoRA adapters": (
        *("--lora-", "--enable-lora", "--max-lora-rank", "--max-lora-chunk-size"),
        *("--max-loras-per-batch", "--max-loaded-loras"),
    ),
    "speculative decoding": ("--speculative-", "--enable-multi-layer-eagle"),
    "quantised checkpoints": (
        *(
            "--quantization",
            "--quantization-param-path",
            "--modelopt-",
            "--quantize-and-serve",
            "--torchao-config",
        ),
        *("--rl-quant-profile", "--fp8-gemm-backend", "--fp4-gemm-backend", "--bf16-gemm-backend", "--gptq-"),
    ),
    "this part of hierarchical caching": (
        *("--hicache-io-backend", "--hicache-mem-layout", "--hicache-host-memory-"),
        "--enable-lmcache",
        *("--enable-flexkv", "--enable-hisparse", "--radix-cache-backend", "--kv-events-config"),
    ),
    "prefill/decode disaggregation": (
        *("--disaggregation-", "--num-reserved-decode-tokens", "--optimistic-prefill-attempts"),
        *("--enable-pd-role-switch", "--enable-pdmux", "--encoder-", "--language-only"),
    ),
    "several nodes": (
        *("--dist-init-addr", "--dist-timeout", "--nccl-port"),
        *("--master-addr", "--master-port", "--use-ray"),
    ),
    "placement of several devices": (
        *("--base-gpu-id", "--gpu-id-step", "--numa-node", "--load-balance-method", "--pp-", "--attn-dp-size"),
        *("--enable-dp-attention", "--enable-dp-lm-head", "--attn-cp-size", "--enable-prefill-cp", "--dcp-size"),
    ),
    "expert parallelism": (
        *("--ep-", "--moe-", "--enable-ep-moe", "--enable-deepep-moe", "--deepep-mode", "--enable-eplb"),
        *("--eplb-", "--init-expert-location", "--elastic-ep-backend", "--disable-shared-experts-fusion", "--kt-"),
    ),
    "this choice of CUDA graphs": (
        *("--cuda-graph-config", "--cuda-graph-backend-", "--cuda-graph-bs", "--disable-cuda-graph-padding"),
        "--cuda-graph-max-bs-decode",
        *("--disable-decode-cuda-graph", "--disable-prefill-cuda-graph", "--enable-piecewise-cuda-graph"),
    ),
    "choice of kernels": (
        *("--sampling-backend", "--prefill-attention-backend", "--decode-attention-backend"),
        *("--mm-attention-backend", "--enable-torch-compile", "--torch-compile-max-bs"),
        *("--disable-custom-all-reduce", "--enable-mscclpp", "--enable-nccl-nvls", "--enable-symm-mem"),
        *(
            "--enable-two-batch-overlap",
            "--enable-single-batch-overlap",
            "--disable-mla",
            "--enable-flashinfer-mla",
        ),
    ),
    "this layout of constrained JSON": (
        *("--constrained-json-whitespace-pattern", "--constrained-json-max-whitespace-cnt"),
        "--disable-outlines-disk-cache",
    ),
    "tool servers and thoughts in the cache": (
        *("--tool-server", "--enable-strict-thinking", "--strip-thinking-cache"),
    ),
    "images, audio and video": (
        *("--enable-multimodal", "--mm-", "--limit-mm-data-per-request", "--allowed-media-domains"),
        *("--media-url-max-file-size-mb", "--enable-prefix-mm-cache", "--image-processor-backend"),
    ),
    "TLS": ("--ssl-", "--enable-ssl-refresh", "--enable-http2"),
    "offloading and weight updates": (
        *("--cpu-offload-gb", "--offload-", "--enable-memory-saver", "--enable-weights-cpu-backup"),
        *("--custom-weight-loader", "--model-loader-extra-config"),
    ),
    "the numbers of a trainer": ("--rl-on-policy-target",),
    "custom logit processors": ("--enable-custom-logit-processor",),
    "tracing": ("--enable-trace", "--otlp-traces-endpoint", "--trace-modules"),
    "sessions and stored responses": ("--enable-streaming-session", "--enable-response-store"),
    "tuning of the scheduler": (
        *("--num-continuous-decode-steps", "--scheduler-recv-interval"),
        *("--enable-dynamic-chunking", "--retraction-policy", "--watchdog-timeout", "--sleep-on-idle"),
        "--enable-prefill-delayer",
    ),
    "metrics on a port of their own": ("--metrics-port",),
}


def unavailable_feature(flag: str) -> str | None:
    """The feature that `flag` (with or without `=value`) belongs to in SGLang and that is not built here."""
    name = flag.partition("=")[0]
    for feature, flags in UNAVAILABLE.items():
        for known in flags:
            if name == known or (known.endswith("-") and name.startswith(known)):
                return feature
    return None


def check_output(flag: str, path: Path) -> None:
    """Before work that may be long: can its result be written there?

    Raises:
        ConfigError: it cannot.
    """
    path = path.absolute()
    if path.is_dir():
        reason = "it is a folder"
    elif not path.parent.is_dir():
        reason = "its folder does not exist"
    elif not os.access(path if path.exists() else path.parent, os.W_OK):
        reason = "this user may not write there"
    else:
        return
    raise ConfigError(f"{flag} {path} cannot be written: {reason}.")


class Parser(argparse.ArgumentParser):
    """`argparse` that raises `ConfigError` instead of printing its usage and leaving."""

    def error(self, message: str) -> NoReturn:
        """Raise the complaint as a ConfigError of one line.

        Raises:
            ConfigError: always.
        """
        text = " ".join(message.split()).replace("ignored explicit argument", "takes no value, got")
        raise ConfigError(f"{text[:1].upper()}{text[1:]}; see `{self.prog} --help`.")

    def parse(self, argv: Sequence[str]) -> argparse.Namespace:
        """Parse `argv`.

        Raises:
            ConfigError: an unknown flag (says which feature or which near flag it may be), a bad value.
        """
        # Before anything else: a required argument that is missing must not hide the flag that ate it.
        for word in argv:
            if word == "--":
                break
            if word.startswith("--") and not self._takes(word):
                raise ConfigError(self._explain(word))
        namespace, rest = self.parse_known_args(argv)
        if rest:
            raise ConfigError(self._explain(rest[0]))
        return namespace

    def given(self, argv: Sequence[str]) -> list[str]:
        """The flags in `argv`, which `parse` has taken, by their first spelling: defaults do not count."""
        absent = object()
        blank = argparse.Namespace(**{action.dest: absent for action in self._actions})
        values = vars(self.parse_known_args(argv, blank)[0])
        flags = [action for action in self._actions if action.option_strings]
        return [action.option_strings[0] for action in flags if values[action.dest] is not absent]

    def _takes(self, word: str) -> bool:
        name = word.partition("=")[0]
        return any(option.startswith(name) for option in self._option_string_actions)

    def _explain(self, word: str) -> str:
        name = word.partition("=")[0]
        if not name.startswith("-"):
            return f"Unexpected argument {word!r}; see `{self.prog} --help`."
        feature = unavailable_feature(name)
        if feature:
            return f"{name} is known from SGLang ({feature}) but not available in this version."
        near = difflib.get_close_matches(name, list(self._option_string_actions), 1, cutoff=0.7)
        hint = f"did you mean {near[0]}?" if near else f"see `{self.prog} --help`."
        return f"Unknown flag {name}; {hint}"
