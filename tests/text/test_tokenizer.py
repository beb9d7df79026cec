"""Encoding and decoding: against the reference ids of three real models, and the library's own decoder."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, normalizers, processors

from radixlang.errors import ModelError, UnsupportedModelError
from radixlang.text.tokenizer import load_tokenizer
from tests.conftest import real_tokenizer, reference
from tests.text import toy

REAL = [("smollm2_path", "smollm2"), ("gemma3_path", "gemma3-270m"), ("qwen_path", "qwen2.5-coder-0.5b")]
SAMPLES = [
    "Hello, world! 12345 it's  two   spaces\n\n\ttab",
    "naïve café 日本語 中文 한국어 العربية",
    "😀👩‍👩‍👧‍👦🇩🇪 x\u0301 q\u0323\u0308",
    "  leading and trailing  ",
    "a\ufffdb and more",
    "def f(x):\n    return x**2  # <b>html</b>\r\n",
]


@pytest.mark.parametrize(("fixture", "name"), REAL)
def test_prompt_ids_of_real_models(fixture: str, name: str, request: pytest.FixtureRequest) -> None:
    tokenizer, data = real_tokenizer(request.getfixturevalue(fixture)), reference(name)
    assert set(tokenizer.eos_ids) == set(data["meta"]["stop_token_ids"])
    assert tokenizer.adds_bos == data["meta"]["bos_added"]
    kinds = set()
    for case in data["cases"]:
        kinds.add(case["kind"])
        if case["kind"] == "chat":
            ids = tokenizer.encode_chat(case["messages"], case.get("tools"))
            assert tokenizer.apply_chat_template(case["messages"], case.get("tools")) == case["prompt_text"]
        else:
            ids = tokenizer.encode(case["prompt_text"])
        assert ids == case["prompt_ids"], case["id"]
        assert tokenizer.decode(case["greedy_ids"], skip_special_tokens=False) == tokenizer.backend.decode(
            case["greedy_ids"], skip_special_tokens=False
        )
    assert "text" in kinds
    texts = [case["prompt_text"] for case in data["cases"]]
    assert tokenizer.encode_batch(texts) == [tokenizer.encode(text) for text in texts]


@pytest.mark.parametrize(("fixture", "name"), REAL)
def test_round_trip_and_vocabulary_of_real_models(fixture: str, name: str, request: pytest.FixtureRequest) -> None:
    tokenizer = real_tokenizer(request.getfixturevalue(fixture))
    for text in SAMPLES:
        ids = tokenizer.encode(text, add_special_tokens=False)
        assert tokenizer.decode(ids) == text
        assert tokenizer.backend.decode(ids) == text
        assert b"".join(map(tokenizer.token_bytes, ids)) == text.encode()
    vocabulary = tokenizer.vocab_bytes()
    assert len(vocabulary) == len(tokenizer) == tokenizer.vocab_size
    marker = tokenizer.eos_ids[0]
    assert vocabulary[marker] == tokenizer.id_to_token(marker).encode()
    assert marker in tokenizer.special_ids
    assert tokenizer.encode(tokenizer.id_to_token(marker), add_special_tokens=False) == [marker]
    assert tokenizer.decode([marker]) == ""
    assert {bytes([byte]) for byte in range(256)} <= set(vocabulary) or name != "gemma3-270m"


def test_byte_level_toy() -> None:
    tokenizer = toy.byte_level()
    hello = tokenizer.token_to_id("hello")
    assert tokenizer.encode("hello", add_special_tokens=False) == [hello]
    assert tokenizer.encode("hello")[0] == tokenizer.bos_id
    assert tokenizer.token_bytes(hello) == b"hello"
    assert tokenizer.vocab_bytes()[:256] == [bytes([byte]) for byte in range(256)]
    tool = tokenizer.token_to_id("<tool>")
    assert tokenizer.encode("a<tool></s>", add_special_tokens=False) == [97, tool, *tokenizer.eos_ids]
    assert tokenizer.decode([97, tool, *tokenizer.eos_ids]) == "a<tool>"
    assert tokenizer.decode([0xF0, 0x9F, 97, 0x80]) == "\ufffda\ufffd"
    assert tokenizer.decode([97, 10**9, -1, 98]) == "ab"
    assert tokenizer.id_to_token(10**9) is None


def test_lone_surrogates_do_not_break_the_encoder() -> None:
    tokenizer = toy.byte_level()
    assert tokenizer.decode(tokenizer.encode("a\ud800b")) == "a\ufffdb"
    assert tokenizer.decode(tokenizer.encode_batch(["\udfff"])[0]) == "\ufffd"


def test_sentencepiece_toy() -> None:
    tokenizer = toy.sentencepiece()
    assert [tokenizer.id_to_token(i) for i in tokenizer.encode("hi hi")] == ["<s>", "▁hi", "▁hi"]
    ids = tokenizer.encode("hi 日é")
    assert [tokenizer.id_to_token(i) for i in ids[2:]] == ["▁", "<0xE6>", "<0x97>", "<0xA5>", "é"]
    assert tokenizer.decode(ids) == "hi 日é"
    bare = toy.sentencepiece(space_prefix=False)
    assert [bare.id_to_token(i) for i in bare.encode("hi hi")] == ["<s>", "hi", "▁hi"]
    assert bare.decode(bare.encode(" hi")) == " hi"


def proto(*fields: tuple[int, int, object]) -> bytes:
    """A protocol-buffer message of (number, wire type, value)."""

    def varint(value: int) -> bytes:
        out = b""
        while value > 127:
            out, value = out + bytes([value & 127 | 128]), value >> 7
        return out + bytes([value])

    parts = []
    for number, wire, value in fields:
        body = {0: varint, 2: lambda data: varint(len(data)) + data, 5: lambda x: struct.pack("<f", x)}[wire](
            value
        )
        parts.append(varint(number << 3 | wire) + body)
    return b"".join(parts)


def test_sentencepiece_model_file(tmp_path: Path) -> None:
    backend = toy.sentencepiece()
    pieces = []
    for index, token in enumerate(toy.SP_TOKENS):
        kind = 2 if index == 0 else 3 if index < 3 else 6 if index < 259 else 1
        score = {"▁h": -1.0, "hi": -3.0, "▁hi": -2.0}.get(token, 0.0)
        pieces.append((1, 2, proto((1, 2, token.encode()), (2, 5, score), (3, 0, kind))))
    trainer, normalizer = (2, 2, proto((3, 0, 2))), (3, 2, proto((3, 0, 1)))
    (tmp_path / "tokenizer.model").write_bytes(proto(*pieces, trainer, normalizer))
    config = {"bos_token": "<s>", "eos_token": {"content": "</s>"}, "add_bos_token": True}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    tokenizer = load_tokenizer(tmp_path)
    for text in ["hi hi", " 日é", "<s>hi"]:
        assert tokenizer.encode(text) == backend.encode(text)
    assert tokenizer.eos_ids == (2,)
    (tmp_path / "tokenizer.model").write_bytes(proto(*pieces, (2, 2, proto((3, 0, 1)))))
    with pytest.raises(UnsupportedModelError, match=r"tokenizer\.json"):
        load_tokenizer(tmp_path)
    (tmp_path / "tokenizer.model").write_bytes(b"\xff\xfe not a model")
    with pytest.raises(ModelError, match="damaged"):
        load_tokenizer(tmp_path)


def folder(path: Path, **files: object) -> Path:
    toy.byte_level().backend.save(str(path / "tokenizer.json"))
    for name, value in files.items():
        (path / f"{name}.json").write_text(json.dumps(value))
    return path


def test_folder(tmp_path: Path) -> None:
    eos = toy.byte_level().eos_ids[0]
    path = folder(
        tmp_path,
        tokenizer_config={
            "bos_token": "<s>",
            "eos_token": "<|im_end|>",
            "chat_template": [{"name": "default", "template": "D"}, {"name": "tool_use", "template": "T"}],
            "added_tokens_decoder": {"9999": {"content": "<late>", "special": True}},
        },
        generation_config={"eos_token_id": [eos, 5]},
        config={"eos_token_id": eos},
    )
    tokenizer = load_tokenizer(path)
    end = tokenizer.token_to_id("<|im_end|>")
    assert tokenizer.eos_ids == (eos, 5, end)
    assert tokenizer.adds_bos
    assert tokenizer.encode("hello") == toy.byte_level().encode("hello")
    late = tokenizer.token_to_id("<late>")
    assert late in tokenizer.special_ids
    assert tokenizer.encode("<late>", add_special_tokens=False) == [late]
    messages = [{"role": "user", "content": "x"}]
    assert tokenizer.apply_chat_template(messages) == "D"
    assert tokenizer.apply_chat_template(messages, tools=[{"type": "function"}]) == "T"
    (path / "chat_template.jinja").write_text("J")
    assert load_tokenizer(path).chat_template == "J"


@pytest.mark.parametrize("flag", [True, False])
def test_folder_flag_decides_on_bos_and_eos(tmp_path: Path, flag: bool) -> None:
    config = {"bos_token": "<s>", "eos_token": "</s>", "add_bos_token": flag, "add_eos_token": flag}
    tokenizer = load_tokenizer(folder(tmp_path, tokenizer_config=config))
    assert (tokenizer.encode("a")[0] == tokenizer.bos_id) is flag
    assert (tokenizer.encode("a")[-1] == tokenizer.eos_ids[0]) is flag


def test_tokenizer_of_another_folder_keeps_the_models_end_tokens_and_sampling(tmp_path: Path) -> None:
    model, other = tmp_path / "model", tmp_path / "other"
    model.mkdir(), other.mkdir()
    (model / "generation_config.json").write_text('{"eos_token_id": 7, "temperature": 0.5}')
    tokenizer = load_tokenizer(model, folder(other, generation_config={"temperature": 0.9, "top_k": 3}))
    assert tokenizer.eos_ids == (7,)
    assert tokenizer.generation_config == {"temperature": 0.5}


def test_what_cannot_be_loaded(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="neither a GGUF file nor a folder"):
        load_tokenizer(tmp_path / "nothing")
    with pytest.raises(ModelError, match=r"neither tokenizer\.json nor tokenizer\.model"):
        load_tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(ModelError, match=r"tokenizer\.json cannot be read"):
        load_tokenizer(tmp_path)
    folder(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ModelError, match=r"config\.json is not valid JSON"):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("tokenizer_config", {"chat_template": [{"name": "default"}]}, "not a name and a template"),
        ("tokenizer_config", {"chat_template": ["D"]}, "not a name and a template"),
        ("tokenizer_config", {"added_tokens_decoder": {"x": {"content": "x"}}}, "'x' is no token id"),
        ("tokenizer_config", [], "must hold a JSON object"),
        ("generation_config", {"temperature": "hot"}, r"generation_config\.json .*temperature.*correct the file"),
        ("generation_config", {"top_p": 5}, r"top_p must be in \(0, 1\]"),
        ("generation_config", {"temperature": 10**400}, "cannot be done"),
    ],
)
def test_small_files_that_cannot_be_meant(tmp_path: Path, name: str, content: object, words: str) -> None:
    with pytest.raises(ModelError, match=words):
        load_tokenizer(folder(tmp_path, **{name: content}))


def test_a_template_that_is_no_text(tmp_path: Path) -> None:
    (folder(tmp_path) / "chat_template.jinja").write_bytes(b"\xff\xfe")
    with pytest.raises(ModelError, match=r"chat_template\.jinja is not UTF-8 text"):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize("value", [5.5, "x", {"a": 1}, [[1]], True])
def test_odd_end_tokens_end_nothing(tmp_path: Path, value: object) -> None:
    path = folder(tmp_path, config={"eos_token_id": value, "text_config": 5})
    assert load_tokenizer(path).eos_ids == ()


def gguf_file(path: Path, **changes: object) -> Path:
    gguf = pytest.importorskip("gguf")
    writer = gguf.GGUFWriter(str(path), "llama")
    settings = {"model": "gpt2", "pre": "gpt-2", "tokens": ["a", "b", "ab", "<|im_end|>"], "merges": ["a b"]}
    for key, value in {**settings, "token_type": [1, 1, 1, 3], **changes}.items():
        if isinstance(value, list):
            writer.add_array(f"tokenizer.ggml.{key}", value)
        elif value is not None:
            writer.add_string(f"tokenizer.ggml.{key}", value)
    writer.add_string("tokenizer.chat_template", "D")
    writer.add_string("tokenizer.chat_template.tool_use", "T")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return path


def test_gguf(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(gguf_file(tmp_path / "m.gguf"))
    assert tokenizer.encode("abb<|im_end|>") == [2, 1, 3]
    assert tokenizer.eos_ids == (3,)
    assert tokenizer.bos_id is None
    assert tokenizer.apply_chat_template([{"role": "user", "content": ""}], [{}]) == "T"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"pre": "martian"}, "'martian'.*--tokenizer-path"),
        ({"model": "t5"}, "'t5'.*--tokenizer-path"),
        ({"model": None}, "holds no tokenizer"),
        ({"token_type": [1]}, "4 tokens, but 1 entries"),
    ],
)
def test_gguf_that_cannot_be_used(tmp_path: Path, changes: dict[str, object], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        load_tokenizer(gguf_file(tmp_path / "m.gguf", **changes))


def test_pre_tokenizers_cut_as_their_families_do() -> None:
    from radixlang.text.pretokenizers import split_for

    def cut(name: str, text: str) -> list[str]:
        return [piece for piece, _ in split_for(name, "x").pre_tokenizer().pre_tokenize_str(text)]

    assert cut("smollm", "a 123") == ["a", "Ġ", "1", "2", "3"]
    assert cut("gpt-2", "a 123") == ["a", "Ġ123"]
    assert cut("qwen2", "it's 123") == ["it", "'s", "Ġ", "1", "2", "3"]
    assert cut("llama-bpe", "12345 IT'S") == ["123", "45", "ĠIT", "'S"]
    assert cut("deepseek-v3", "1234") == ["123", "4"]
    assert cut("tekken", "fooBar") == ["foo", "Bar"]
    assert cut("gpt-4o", "FooBAR's") == ["Foo", "BAR's"]
    assert cut("default", "a1234") == ["a", "123", "4"]


@pytest.mark.parametrize(
    ("decoder", "tokens"),
    [
        (decoders.WordPiece(), ["[UNK]", "hello", "##ing", "n", "'", "."]),
        (decoders.Metaspace(), ["▁a", "b", "▁c"]),
        (
            decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]),
            ["<0x41>", "▁b"],
        ),
        (None, ["a", "b", "c"]),
    ],
)
def test_decoders_agree_with_the_library(decoder: object, tokens: list[str]) -> None:
    from radixlang.text.parts import TokenizerParts
    from radixlang.text.tokenizer import Tokenizer

    backend = toy.words(tokens)
    if decoder is not None:
        backend.decoder = decoder
    ids = [*range(len(tokens)), *range(len(tokens) - 1, 0, -1)]
    assert Tokenizer(TokenizerParts(backend, "toy")).decode(ids) == backend.decode(ids)


def test_an_unknown_decoder_is_refused_by_name(tmp_path: Path) -> None:
    backend = Backend(models.WordLevel({"a": 0}, unk_token="a"))
    backend.decoder = decoders.CTC()
    backend.normalizer, backend.post_processor = normalizers.NFC(), processors.ByteLevel()
    backend.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(UnsupportedModelError, match="CTC"):
        load_tokenizer(tmp_path)


def test_neither_torch_nor_transformers_is_imported() -> None:
    code = (
        "import sys, radixlang.text.detokenize_worker; print({'torch', 'transformers', 'gguf'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
