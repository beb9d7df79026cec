"""Building encoders from a bare vocabulary: byte-level BPE (merges) and SentencePiece BPE (scores).

Token types are those of SentencePiece, which GGUF has taken over. Must not know files: the loaders read them.
"""

from __future__ import annotations

from collections.abc import Sequence

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers

from radixlang.text.pretokenizers import Split

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6


def byte_level_bpe(tokens: Sequence[str], types: Sequence[int], merges: Sequence[str], split: Split) -> Tokenizer:
    """GPT-2 style: text is cut by `split`, bytes are written as printable characters, pairs merge in order."""
    pairs = [tuple(merge.split(" ", 1)) for merge in merges]
    vocabulary = {token: index for index, token in enumerate(tokens)}
    backend = Tokenizer(models.BPE(vocabulary, pairs, ignore_merges=split.ignore_merges))  # type: ignore[arg-type]
    normalizer = split.normalizer()
    if normalizer is not None:
        backend.normalizer = normalizer
    backend.pre_tokenizer = split.pre_tokenizer()
    backend.decoder = decoders.ByteLevel()
    _add(backend, tokens, types)
    return backend


def sentencepiece_bpe(
    tokens: Sequence[str], types: Sequence[int], scores: Sequence[float], space_prefix: bool
) -> Tokenizer:
    """SentencePiece BPE: spaces are written `▁`, the pair whose union scores best merges first, and what has no
    token falls back to bytes. `space_prefix`: text starts as if a space stood before it."""
    unknown = next((token for token, kind in zip(tokens, types, strict=True) if kind == UNKNOWN), None)
    if unknown is None and "<unk>" in tokens:
        unknown = "<unk>"
    model = models.BPE(
        {token: index for index, token in enumerate(tokens)},
        _merges(tokens, types, scores),
        unk_token=unknown,
        fuse_unk=True,
        byte_fallback=BYTE in types,
    )
    backend = Tokenizer(model)
    underscore: normalizers.Normalizer = normalizers.Replace(" ", "▁")
    chain: list[decoders.Decoder] = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    if space_prefix:
        underscore = normalizers.Sequence([normalizers.Prepend("▁"), underscore])
        chain.append(decoders.Strip(" ", 1, 0))
    backend.normalizer = underscore
    backend.decoder = decoders.Sequence(chain)
    _add(backend, tokens, types)
    return backend


def _merges(tokens: Sequence[str], types: Sequence[int], scores: Sequence[float]) -> list[tuple[str, str]]:
    """All ways to make a normal token of two others, best score first, then the longer left half."""
    pieces = {token: score for token, kind, score in zip(tokens, types, scores, strict=True) if kind == NORMAL}
    return [
        (piece[:cut], piece[cut:])
        for piece in sorted(pieces, key=pieces.__getitem__, reverse=True)
        for cut in range(len(piece) - 1, 0, -1)
        if piece[:cut] in pieces and piece[cut:] in pieces
    ]


def _add(backend: Tokenizer, tokens: Sequence[str], types: Sequence[int]) -> None:
    """Makes control and user-defined tokens match in raw text; control (and unknown) ones count as special."""
    special, plain = [], []
    for token, kind in zip(tokens, types, strict=True):
        if kind in (CONTROL, UNKNOWN):
            special.append(AddedToken(token, normalized=False, special=True))
        elif kind == USER_DEFINED:
            plain.append(AddedToken(token, normalized=False, special=False))
    backend.add_special_tokens(special)
    backend.add_tokens(plain)
