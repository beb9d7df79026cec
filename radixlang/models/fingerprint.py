"""What a model's weights are, in a few bytes: for pages of its KV that outlive the process.

Must not import torch.
"""

from __future__ import annotations

import json
import os
from concurrent.futures import ThreadPoolExecutor
from hashlib import blake2b
from pathlib import Path

from radixlang.config import ModelConfig
from radixlang.hub_files import cache_dir
from radixlang.log import get_logger
from radixlang.models.files import read_checkpoint

log = get_logger(__name__)

_BLOCK = 4 << 20
_AT_ONCE = 4
"""files that are read at once"""


def weights_digest(model: ModelConfig) -> str:
    """A hash over the bytes of all weight files, whatever they are called and wherever they lie. It is remembered
    with each file's size and times, so that only the first start with a checkpoint reads it for this.

    Random weights (`--load-format dummy`) depend on nothing but the model's spec.
    """
    if model.load_format == "dummy":
        return "dummy"
    path = read_checkpoint(model).path
    files = [path] if path.is_file() else sorted(path.glob("*.safetensors"))
    book = cache_dir() / "digests.json"
    known = _read(book)
    names = [_name(file) for file in files]
    new = {name: file for name, file in zip(names, files, strict=True) if name not in known}
    if new:
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            known |= dict(zip(new, pool.map(_digest, new.values()), strict=True))
        _write(book, known)
    return blake2b("".join(known[name] for name in names).encode(), digest_size=16).hexdigest()


def _name(file: Path) -> str:
    state = file.stat()
    return f"{file.resolve()}:{state.st_size}:{state.st_mtime_ns}:{state.st_ctime_ns}:{state.st_ino}"


def _digest(file: Path) -> str:
    digest = blake2b(digest_size=32)
    with open(file, "rb", buffering=0) as data:
        while block := data.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()


def _read(book: Path) -> dict[str, str]:
    try:
        entries = json.loads(book.read_text())
    except (OSError, ValueError):
        return {}
    return entries if isinstance(entries, dict) else {}


def _write(book: Path, entries: dict[str, str]) -> None:
    part = book.with_name(f"{book.name}.{os.getpid()}")
    try:
        book.parent.mkdir(parents=True, exist_ok=True)
        part.write_text(json.dumps(entries))
        os.replace(part, book)
    except OSError as error:
        log.debug("%s could not be written: %s", book, error)
