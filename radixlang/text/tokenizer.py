"""Text to token ids and back, for one model; the only place where the `tokenizers` library is called at run time.

Loads in a fraction of a second from a Hugging Face folder or from a GGUF file, without transformers. Decoding
joins the bytes of the tokens and reads them as UTF-8: bytes that are none become U+FFFD, one for each maximal
invalid piece, at whatever token they stand. Must not know requests, HTTP or torch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from radixlang.errors import ModelError
from radixlang.gguf_file import is_gguf
from radixlang.text.chat_template import ChatTemplate, named_template, no_template
from radixlang.text.gguf_tokenizer import gguf_sampling, load_gguf_tokenizer
from radixlang.text.hf_folder import folder_eos_ids, folder_sampling, load_folder_tokenizer
from radixlang.text.parts import TokenizerParts
from radixlang.text.token_bytes import token_bytes_rule


class Tokenizer:
    """Encoder, decoder and chat template of a model. Safe to use from several threads."""

    def __init__(self, parts: TokenizerParts, chat_template: str | None = None) -> None:
        """`chat_template`: Jinja source that replaces the model's own templates."""
        self.backend = parts.backend
        self.source = parts.source
        self.bos_id = parts.bos_id
        self.adds_bos = parts.adds_bos
        added = parts.backend.get_added_tokens_decoder()
        self.special_ids: frozenset[int] = frozenset(index for index, token in added.items() if token.special)
        #: number of ids: every id the vocabulary knows is below it
        self.vocab_size: int = max([parts.backend.get_vocab_size(True), *(index + 1 for index in added)])
        self.eos_ids: tuple[int, ...] = tuple(index for index in parts.eos_ids if 0 <= index < self.vocab_size)
        self.named_tokens: Mapping[str, str] = parts.named_tokens
        #: sampling that the model's makers advise (`temperature`, `top_p`, …); empty when the files say nothing
        self.generation_config: Mapping[str, Any] = parts.generation_config
        self._templates = {"default": chat_template} if chat_template is not None else parts.templates
        self._compiled: dict[str, ChatTemplate] = {}
        self._to_bytes, self.drops_first_space = token_bytes_rule(parts.backend)
        self._bytes: list[bytes | None] = [None] * self.vocab_size

    def __len__(self) -> int:
        return self.vocab_size

    # ---- ids ----

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Ids of `text`. Special tokens written in the text are recognised; `add_special_tokens` adds the bos
        (and eos) of models that want one."""
        return self.backend.encode(_sound(text), add_special_tokens=add_special_tokens).ids

    def encode_batch(self, texts: Sequence[str], add_special_tokens: bool = True) -> list[list[int]]:
        """As `encode`, for many texts at once and on all cores."""
        sound = [_sound(text) for text in texts]
        encodings = self.backend.encode_batch_fast(sound, add_special_tokens=add_special_tokens)
        return [encoding.ids for encoding in encodings]

    def encode_plain(self, text: str) -> list[int]:
        """Ids of a text that stands inside a longer one: nothing is added in front, and names of special tokens
        are taken as plain text."""
        backend = self._plain
        if not self.drops_first_space:
            return backend.encode(_sound(text), add_special_tokens=False).ids
        # These tokenizers put a space in front; behind a line break they do not.
        ids = backend.encode("\n" + _sound(text), add_special_tokens=False).ids
        head = len(backend.encode("\n", add_special_tokens=False).ids)
        return ids[head:]

    def encode_plain_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """As `encode_plain`, for many texts at once and on all cores."""
        head = "\n" * self.drops_first_space
        sound = [head + _sound(text) for text in texts]
        encodings = self._plain.encode_batch_fast(sound, add_special_tokens=False)
        begin = len(self._plain.encode(head, add_special_tokens=False).ids)
        return [encoding.ids[begin:] for encoding in encodings]

    @cached_property
    def _plain(self) -> Any:
        backend = type(self.backend).from_str(self.backend.to_str())
        backend.encode_special_tokens = True
        return backend

    def decode(
        self,
        ids: Iterable[int],
        skip_special_tokens: bool = True,
        spaces_between_special_tokens: bool = True,
    ) -> str:
        """Text of `ids`; those outside the vocabulary stand for nothing (a model's output layer may be wider).
        `spaces_between_special_tokens` is part of the public interface and changes nothing: only tokenizers
        written in Python ever added such spaces, none of which are used here."""
        hidden = self.special_ids if skip_special_tokens else frozenset()
        data = b"".join([self.token_bytes(index) for index in ids if index not in hidden])
        if self.drops_first_space:
            data = data.removeprefix(b" ")
        return data.decode("utf-8", "replace")

    def token_bytes(self, index: int) -> bytes:
        """The bytes token `index` adds to a text; special tokens stand for their own name. A hole in the
        vocabulary and an id outside it have none."""
        if not 0 <= index < self.vocab_size:
            return b""
        known = self._bytes[index]
        if known is None:
            token = self.backend.id_to_token(index)
            known = self._bytes[index] = b"" if token is None else self._to_bytes(token)
        return known

    def vocab_bytes(self) -> list[bytes]:
        """`token_bytes` of every id, in order."""
        return [self.token_bytes(index) for index in range(self.vocab_size)]

    @cached_property
    def longest_token(self) -> int:
        """Bytes of the longest token; the first call looks at the whole vocabulary."""
        return max(map(len, self.vocab_bytes()), default=0)

    def id_to_token(self, index: int) -> str | None:
        """The token as the vocabulary writes it; None for a hole."""
        return self.backend.id_to_token(index) if 0 <= index < self.vocab_size else None

    def token_to_id(self, token: str) -> int | None:
        return self.backend.token_to_id(token)

    # ---- chats ----

    @property
    def chat_template(self) -> str | None:
        """Jinja source of the usual template, or None."""
        return self._templates.get("default")

    def template_facts(self) -> dict[str, Any] | None:
        """What another process needs to render the usual template itself: its `source`, the `variables` it sees,
        and the `bos` that `encode` puts in front of plain text ("" when it does not). None without a template."""
        if self.chat_template is None:
            return None
        template = self._template(None)
        return {
            "source": template.source,
            "variables": template.variables,
            "bos": template.variables["default_bos"],
        }

    @property
    def tool_template(self) -> str | None:
        """Jinja source of the template for conversations with tools, or None."""
        return self._templates.get("tool_use") or self.chat_template

    def apply_chat_template(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        **kwargs: Any,
    ) -> str:
        """The prompt for a conversation. `kwargs` go to the template (`enable_thinking=False`, ...).

        Raises:
            RequestError: the model has no template, a message is malformed, or the template refuses it.
        """
        return self._template(tools).render(messages, tools, add_generation_prompt, continue_final_message, kwargs)

    def encode_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        **kwargs: Any,
    ) -> list[int]:
        """Ids of `apply_chat_template`. The template alone decides on the bos: none is added to what it wrote."""
        text = self.apply_chat_template(messages, tools, add_generation_prompt, continue_final_message, **kwargs)
        return self.encode(text, add_special_tokens=False)

    def _template(self, tools: Sequence[Any] | None) -> ChatTemplate:
        name = "tool_use" if tools and "tool_use" in self._templates else "default"
        if name not in self._templates:
            raise no_template(self.source)
        template = self._compiled.get(name)
        if template is None:
            bos = self.named_tokens.get("bos_token", "") if self.adds_bos else ""
            template = ChatTemplate(self._templates[name], {**self.named_tokens, "default_bos": bos})
            self._compiled[name] = template
        return template


def load_tokenizer(
    model_path: str | Path, tokenizer_path: str | Path | None = None, chat_template: str | None = None
) -> Tokenizer:
    """The tokenizer of a model: a GGUF file or a folder, on this machine.

    `tokenizer_path`: take the tokenizer from there; `chat_template`: name of a built-in template, or a `.jinja`
    or `.json` file. Raises ModelError when the files cannot be used, ConfigError for a bad `chat_template`.
    """
    source = Path(tokenizer_path if tokenizer_path is not None else model_path)
    if is_gguf(source):
        parts = load_gguf_tokenizer(str(source))
    elif source.is_dir():
        parts = load_folder_tokenizer(source)
    else:
        raise ModelError(f"{source} is neither a GGUF file nor a folder: no tokenizer can be loaded from it.")
    model = Path(model_path)
    if model != source:  # the model's own end tokens and sampling, and not those of the model it borrows from
        if model.is_dir():
            parts.eos_ids = tuple(dict.fromkeys([*folder_eos_ids(model), *parts.eos_ids]))
            parts.generation_config = folder_sampling(model)
        elif is_gguf(model):
            parts.generation_config = gguf_sampling(str(model))
    return Tokenizer(parts, named_template(chat_template) if chat_template else None)


def _sound(text: str) -> str:
    """`text` with lone surrogates (JSON may carry them, UTF-8 cannot) replaced by U+FFFD."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text
