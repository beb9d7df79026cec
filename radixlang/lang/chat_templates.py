"""How turns become text.

A backend that can read its model's own (Jinja) template uses that, so that a program's text is what the server
would have built from the same messages; all others use the table below, chosen by the model's path. The formats
are those that the families document. Must not know programs or backends.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

Turn = Mapping[str, Any]


class ChatTemplate(Protocol):
    """Text of a conversation. `stop` ends an answer, `default_system` is said when a program does not begin with a
    system turn, `image_token` stands for a picture, `video_token` for a film. Contents of turns are text."""

    @property
    def name(self) -> str: ...
    @property
    def stop(self) -> tuple[str, ...]: ...
    @property
    def default_system(self) -> str | None: ...
    @property
    def image_token(self) -> str: ...
    @property
    def video_token(self) -> str: ...

    def begin(self, turns: Sequence[Turn], role: str) -> str:
        """All of `turns`, and what stands before the content of a new turn of `role`."""
        ...

    def end(self, turns: Sequence[Turn]) -> str:
        """All of `turns`, each complete."""
        ...


@dataclass(frozen=True)
class RoleTemplate:
    """A text before and a text after each role's content. `joined_system`: what follows a first system turn goes
    without its own beginning, because the system turn opened it."""

    name: str
    system: tuple[str, str]
    user: tuple[str, str]
    assistant: tuple[str, str]
    stop: tuple[str, ...] = ()
    default_system: str | None = None
    image_token: str = "<image>"
    video_token: str = "<video>"
    joined_system: bool = False

    def begin(self, turns: Sequence[Turn], role: str) -> str:
        """All of `turns`, and what stands before the content of a new turn of `role`."""
        return self.end(turns) + self._around(role, len(turns), bool(turns) and turns[0]["role"] == "system")[0]

    def end(self, turns: Sequence[Turn]) -> str:
        """All of `turns`, each complete."""
        system_first = bool(turns) and turns[0]["role"] == "system"
        text = ""
        for index, turn in enumerate(turns):
            before, after = self._around(turn["role"], index, system_first)
            text += before + turn["content"] + after
        return text

    def _around(self, role: str, index: int, system_first: bool) -> tuple[str, str]:
        around: tuple[str, str] = {"system": self.system, "user": self.user}.get(role, self.assistant)
        if self.joined_system and system_first and index == 1 and role == "user":
            return "", around[1]
        return around


class JinjaTemplate:
    """A model's own template. Generated text stays as it was generated (it is cached that way): contents of
    assistant turns are put in after the template has run.

    `bos` is taken off the front, because the tokenizer puts it there itself. Where the template refuses (many do
    not begin with the assistant) the table's template `fallback` takes over.
    """

    stop: tuple[str, ...] = ()
    default_system: str | None = None

    def __init__(
        self, source: str, variables: Mapping[str, str], bos: str, fallback: RoleTemplate, **options: Any
    ) -> None:
        from radixlang.text.chat_template import ChatTemplate as Jinja

        self.name = "jinja"
        self.image_token = fallback.image_token
        self.video_token = fallback.video_token
        self._jinja = Jinja(source, variables)
        self._bos = bos
        self._fallback = fallback
        self._options = options

    def begin(self, turns: Sequence[Turn], role: str) -> str:
        """All of `turns`, and what stands before the content of a new turn of `role`."""
        from radixlang.errors import RequestError

        try:
            if role == "assistant" and turns:
                return self._render(turns, True)
            mark = _mark()
            head, found, _ = self._render([*turns, {"role": role, "content": mark}], False).partition(mark)
            if found:
                return head
            # A template that puts the system's text into the user's turn shows it when that turn begins.
            return self.end(turns)
        except RequestError:
            return self._fallback.begin(turns, role)

    def end(self, turns: Sequence[Turn]) -> str:
        """All of `turns`, each complete."""
        from radixlang.errors import RequestError

        if not turns:
            return ""
        try:
            return self._render(turns, False)
        except RequestError:
            return self._fallback.end(turns)

    def _render(self, turns: Sequence[Turn], answer: bool) -> str:
        said: dict[str, str] = {}
        messages: list[dict[str, Any]] = []
        for turn in turns:
            content = turn["content"]
            if turn["role"] == "assistant":
                mark = _mark()
                said[mark] = content
                content = mark
            messages.append({"role": turn["role"], "content": content})
        text = self._jinja.render(messages, None, answer, False, self._options)
        for mark, content in said.items():
            text = text.replace(mark, content)
        return text.removeprefix(self._bos) if self._bos else text


def _mark() -> str:
    return f"turn-{uuid.uuid4().hex}"


_Around = tuple[str, str]


def _marked(system: str, user: str, assistant: str, after: str) -> tuple[_Around, _Around, _Around]:
    """Three openings with one ending."""
    return (system, after), (user, after), (assistant, after)


_CHATML = _marked("<|im_start|>system\n", "<|im_start|>user\n", "<|im_start|>assistant\n", "<|im_end|>\n")


def _by_role(pattern: str, after: str, roles: str = "system user assistant") -> tuple[_Around, _Around, _Around]:
    """Openings that differ by the role's name."""
    system, user, assistant = (pattern.format(role) for role in roles.split())
    return _marked(system, user, assistant, after)


_LLAMA3 = _by_role("<|start_header_id|>{}<|end_header_id|>\n\n", "<|eot_id|>")
_LLAMA4 = _by_role("<|header_start|>{}<|header_end|>\n\n", "<|eot|>")
_JANUS = ("", "\n\n"), ("<|User|>: ", "\n\n"), ("<|Assistant|>: ", "<｜end▁of▁sentence｜>")
_INST = ("[INST] ", " [/INST]"), ("", " </s><s>")
_COMMAND = _by_role("<|START_OF_TURN_TOKEN|><|{}_TOKEN|>", "<|END_OF_TURN_TOKEN|>", "SYSTEM USER CHATBOT")
_GRANITE = _by_role("<|start_of_role|>{}<|end_of_role|>", "<|end_of_text|>\n")
_IM_END = ("<|im_end|>",)
_HELPFUL = "You are a helpful assistant."
_VISION = "<|vision_start|><|image_pad|><|vision_end|>"
_VISION_VIDEO = "<|vision_start|><|video_pad|><|vision_end|>"
_IMAGE_TAG, _VIDEO_TAG = "(<image>./</image>)", "(<video>./</video>)"
_VICUNA_SYSTEM = (
    "A chat between a curious user and an artificial intelligence assistant. "
    "The assistant gives helpful, detailed, and polite answers to the user's questions."
)
_YI_SYSTEM = "This is a chat between an inquisitive human and an AI assistant."

TEMPLATES: dict[str, RoleTemplate] = {
    template.name: template
    for template in (
        RoleTemplate("default", ("SYSTEM:", "\n"), ("USER:", "\n"), ("ASSISTANT:", "\n")),
        RoleTemplate("claude", ("", ""), ("\n\nHuman: ", ""), ("\n\nAssistant:", "")),
        RoleTemplate("chatml", *_CHATML, stop=_IM_END),
        RoleTemplate("chatml-llava", *_CHATML, stop=_IM_END, default_system=_HELPFUL, image_token="<image>\n"),
        RoleTemplate("qwen", *_CHATML, stop=_IM_END, default_system=_HELPFUL),
        RoleTemplate(
            "qwen2-vl",
            *_CHATML,
            stop=_IM_END,
            default_system=_HELPFUL,
            image_token=_VISION,
            video_token=_VISION_VIDEO,
        ),
        RoleTemplate(
            "vicuna_v1.1",
            ("", " "),
            ("USER:", " "),
            ("ASSISTANT:", "</s>"),
            default_system=_VICUNA_SYSTEM,
            image_token=" <image>\n",
        ),
        RoleTemplate("llama-2-chat", ("[INST] <<SYS>>\n", "\n<</SYS>>\n\n"), *_INST, joined_system=True),
        RoleTemplate("mistral", ("[SYSTEM_PROMPT] ", " [/SYSTEM_PROMPT]"), *_INST, stop=("</s>",)),
        RoleTemplate("llama-3-instruct", *_LLAMA3, stop=("<|eot_id|>",)),
        RoleTemplate("llama-3-instruct-llava", *_LLAMA3, stop=("<|eot_id|>",), image_token="<image>\n"),
        RoleTemplate("llama-4", *_LLAMA4, stop=("<|eot|>",), image_token="<|image|>"),
        RoleTemplate("minicpmv", *_CHATML, stop=_IM_END, image_token=_IMAGE_TAG, video_token=_VIDEO_TAG),
        RoleTemplate("minicpmo", *_CHATML, stop=_IM_END, image_token=_IMAGE_TAG, video_token=_VIDEO_TAG),
        RoleTemplate("janus", *_JANUS, image_token="<image_placeholder>\n"),
        RoleTemplate("janus-pro", *_JANUS, image_token="<image_placeholder>\n"),
        RoleTemplate("yi-1.5", ("", ""), _CHATML[1], _CHATML[2], stop=_IM_END),
        RoleTemplate(
            "yi-vl",
            ("", "\n\n"),
            ("### Human:", "\n"),
            ("### Assistant:", "\n"),
            stop=("###",),
            default_system=_YI_SYSTEM,
            image_token=" <image_placeholder>\n",
        ),
        RoleTemplate(
            "gemma-it",
            ("", ""),
            ("<start_of_turn>user\n", "<end_of_turn>\n"),
            ("<start_of_turn>model\n", "<end_of_turn>\n"),
            image_token="<start_of_image>",
        ),
        RoleTemplate(
            "gemma-4-it",
            *_marked("<|turn>system\n", "<|turn>user\n", "<|turn>model\n", "<turn|>\n"),
            stop=("<turn|>",),
            image_token="<|image|>",
            video_token="<|video|>",
        ),
        RoleTemplate("dbrx-instruct", *_CHATML, stop=_IM_END),
        RoleTemplate("c4ai-command-r", *_COMMAND),
        RoleTemplate("internvl-2-5", *_CHATML, stop=_IM_END, image_token="<image>"),
        RoleTemplate("interns1", *_CHATML, stop=_IM_END, default_system=_HELPFUL, image_token="<image>"),
        RoleTemplate("granite-3-instruct", *_GRANITE, stop=("<|end_of_text|>",)),
        RoleTemplate(
            "deepseek-v3",
            ("", ""),
            ("<｜User｜>", ""),
            ("<｜Assistant｜>", "<｜end▁of▁sentence｜>"),
            stop=("<｜end▁of▁sentence｜>",),
        ),
        RoleTemplate(
            "glm-4v",
            *_marked("<|system|>\n", "<|user|>\n", "<|assistant|>\n", "\n"),
            stop=("<|user|>", "<|endoftext|>", "<|observation|>"),
            image_token="<|begin_of_image|><|image|><|end_of_image|>",
            video_token="<|begin_of_video|><|video|><|end_of_video|>",
        ),
    )
}

#: model path → template: the first pattern that is found wins, so narrower ones stand first
_BY_PATH: tuple[tuple[str, str], ...] = (
    (r"llama-?3.*llava|llava.*llama-?3", "llama-3-instruct-llava"),
    (r"llava.*(34b|qwen)|(34b|qwen).*llava|llava-(v1\.6-34b|onevision)", "chatml-llava"),
    (r"vicuna|llava", "vicuna_v1.1"),
    (r"llama-?4", "llama-4"),
    (r"llama-?2.*chat|codellama.*instruct", "llama-2-chat"),
    (r"llama-?3.*instruct", "llama-3-instruct"),
    (r"pixtral|(mistral|mixtral|ministral).*instruct", "mistral"),
    (r"qwen.*vl|qvq", "qwen2-vl"),
    (r"qwen.*(chat|instruct)|qwq", "qwen"),
    (r"yi-vl", "yi-vl"),
    (r"yi-1\.5.*chat", "yi-1.5"),
    (r"minicpm-?v", "minicpmv"),
    (r"minicpm-?o", "minicpmo"),
    (r"janus-?pro", "janus-pro"),
    (r"janus", "janus"),
    (r"gemma-?4.*it", "gemma-4-it"),
    (r"gemma.*it", "gemma-it"),
    (r"dbrx.*instruct", "dbrx-instruct"),
    (r"command-?r|c4ai", "c4ai-command-r"),
    (r"internvl", "internvl-2-5"),
    (r"intern-?s1", "interns1"),
    (r"granite.*instruct", "granite-3-instruct"),
    (r"deepseek-(v3|r1)(?!.*distill)", "deepseek-v3"),
    (r"glm.*v", "glm-4v"),
    (r"claude", "claude"),
    (r"smollm.*instruct|tinyllama.*chat|chatml", "chatml"),
)


def get_chat_template(name: str) -> RoleTemplate:
    """The template called `name`.

    Raises:
        ConfigError: there is none; the message lists the names.
    """
    from radixlang.errors import ConfigError

    if name not in TEMPLATES:
        raise ConfigError(f"There is no chat template {name!r}; there are {', '.join(sorted(TEMPLATES))}.")
    return TEMPLATES[name]


def template_for(model_path: str) -> RoleTemplate:
    """The template of the family that the path names, else `default`."""
    for pattern, name in _BY_PATH:
        if re.search(pattern, model_path, re.IGNORECASE):
            return TEMPLATES[name]
    return TEMPLATES["default"]
