"""How byte-level BPE vocabularies cut text into words before merging, by the name a GGUF file gives.

The name is under `tokenizer.ggml.pre`. The cut is part of a model's training and is not stored in the file, only
named there. The expressions are facts of the model families; a name that is not in the table is an error, because
a wrong cut silently gives other ids.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tokenizers import Regex, normalizers, pre_tokenizers

from radixlang.errors import UnsupportedModelError

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_ENDINGS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_TAIL = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_SLASH_TAIL = r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CASED = rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+%s|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*%s"
_CJK = "[一-龥ࠀ-一가-퟿]+"

_LLAMA3 = rf"{_ENDINGS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}|{_TAIL}"
_QWEN2 = rf"{_ENDINGS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}|{_TAIL}"
_TEKKEN = _CASED % ("", "") + rf"|\p{{N}}|{_SLASH_TAIL}"
_GPT4O = _CASED % (_ENDINGS + "?", _ENDINGS + "?") + rf"|\p{{N}}{{1,3}}|{_SLASH_TAIL}"
_DEEPSEEK_V3 = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_DEEPSEEK_LLM_LETTERS = (
    r"\s?[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-ώ"
    r"ᾀ-ᾴᾶ-ᾼιῂ-ῄῆ-ῌῐ-ΐῖ-Ίῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤΩℨK-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿff-stﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓"
    r"𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃]+"
)


@dataclass(frozen=True, slots=True)
class Split:
    """Expressions applied one after the other; `ignore_merges`: a word that is itself a token is taken whole."""

    expressions: Sequence[str]
    ignore_merges: bool = False
    add_bos: bool = False
    nfc: bool = False

    def pre_tokenizer(self) -> pre_tokenizers.PreTokenizer:
        cuts = [pre_tokenizers.Split(Regex(one), behavior="isolated") for one in self.expressions]
        return pre_tokenizers.Sequence([*cuts, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])

    def normalizer(self) -> normalizers.Normalizer | None:
        return normalizers.NFC() if self.nfc else None


_PUNCTUATION = r"[\p{P}\$\+<=>\^~\|]+"
_DEFAULT = Split((_PUNCTUATION, _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]"))
_PLAIN = Split((_GPT2,))
_DIGITS = Split((r"\p{N}", _GPT2))
_LLAMA3_SPLIT = Split((_LLAMA3,), ignore_merges=True, add_bos=True)
_QWEN2_SPLIT = Split((_QWEN2,), nfc=True)

_SPLITS: dict[str, Split] = {
    "default": _DEFAULT,
    **dict.fromkeys(["gpt-2", "gpt2", "phi-2", "mpt", "olmo", "jais", "trillion", "roberta-bpe"], _PLAIN),
    **dict.fromkeys(["smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"], _DIGITS),
    **dict.fromkeys(["llama-bpe", "llama3", "llama-v3", "falcon3", "pixtral", "lfm2"], _LLAMA3_SPLIT),
    **dict.fromkeys(["dbrx", "smaug-bpe", "chatglm-bpe"], Split((_LLAMA3,))),
    **dict.fromkeys(["qwen2", "deepseek-r1-qwen"], _QWEN2_SPLIT),
    "stablelm2": Split((_QWEN2,)),
    "megrez": Split((_QWEN2,)),
    "tekken": Split((_TEKKEN,), ignore_merges=True, add_bos=True),
    **dict.fromkeys(["gpt-4o", "llama4"], Split((_GPT4O,))),
    "falcon": Split((r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, r"[0-9][0-9][0-9]")),
    "deepseek-llm": Split(
        (r"[\r\n]", _DEEPSEEK_LLM_LETTERS, r"\s?[!-/:-~！-／：-～‘-‟　-。]+", r"\s+$", _CJK, r"\p{N}+")
    ),
    "deepseek-coder": Split((r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _CJK, r"\p{N}")),
    "deepseek-v3": Split((r"\p{N}{1,3}", "[一-龥぀-ゟ゠-ヿ]+", _DEEPSEEK_V3)),
}


def split_for(name: str, path: str) -> Split:
    """The cut named `name`; raises UnsupportedModelError with the fix when it is not known."""
    split = _SPLITS.get(name)
    if split is None:
        raise UnsupportedModelError(
            f"{path} names the pre-tokenizer {name!r}, which is not implemented: "
            "give a folder with its tokenizer.json as --tokenizer-path."
        )
    return split
