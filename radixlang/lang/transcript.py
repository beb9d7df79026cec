"""The text of one branch of a program, and its turns: what the next call is made with.

The chat template is asked at each boundary of a turn for the whole conversation, so that templates whose text
depends on the position (a default system prompt, a system text inside the user's turn) come out right. Text that a
program writes outside of turns stays where it is. Must not know calls or backends.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from radixlang.lang.chat_templates import ChatTemplate
from radixlang.lang.media import image_url


@dataclass
class Turn:
    """One role's part: the raw text, with the template's tokens for images, and the parts for messages."""

    role: str
    content: str = ""
    parts: list[dict[str, Any]] = field(default_factory=list)

    def say(self, text: str) -> None:
        """Append text."""
        self.content += text
        if self.parts and self.parts[-1]["type"] == "text":
            self.parts[-1] = {"type": "text", "text": self.parts[-1]["text"] + text}
        else:
            self.parts.append({"type": "text", "text": text})

    def copy(self) -> Turn:
        return Turn(self.role, self.content, list(self.parts))

    def message(self) -> dict[str, Any]:
        """OpenAI's form; a turn of text alone is a string, without the white space in front."""
        if all(part["type"] == "text" for part in self.parts):
            return {"role": self.role, "content": self.content.lstrip()}
        return {"role": self.role, "content": list(self.parts)}


class Transcript:
    """What a branch has said so far."""

    def __init__(self, template: ChatTemplate) -> None:
        self.template = template
        self.text = ""
        self.turns: list[Turn] = []
        self.open: Turn | None = None
        self.images: list[Any] = []
        self.videos: list[Any] = []
        self._rendered = ""  # the template's view of the turns, the open one included

    def copy(self) -> Transcript:
        """An independent one with the same past."""
        other = Transcript(self.template)
        other.text, other._rendered = self.text, self._rendered
        other.turns = list(self.turns)
        other.open = self.open.copy() if self.open else None
        other.images, other.videos = list(self.images), list(self.videos)
        return other

    def say(self, text: str) -> None:
        """Append text, to the open turn if there is one."""
        self.text += text
        if self.open is not None:
            self.open.say(text)
            self._rendered += text

    def begin(self, role: str) -> None:
        """A turn begins.

        Raises:
            ValueError: another one is open.
        """
        if self.open is not None:
            raise ValueError(f"The turn of {role} begins inside the one of {self.open.role}; end that first.")
        default = self.template.default_system
        if not self.turns and role != "system" and default is not None:
            self.begin("system")
            self.say(default)
            self.end("system")
        self.open = Turn(role)
        self._write(self.template.begin(self._plain(), role))

    def end(self, role: str) -> None:
        """The open turn ends.

        Raises:
            ValueError: it is not open.
        """
        if self.open is None or self.open.role != role:
            opened = f"that of {self.open.role} is open" if self.open else "none is open"
            raise ValueError(f"The turn of {role} ends, but {opened}.")
        self.turns.append(self.open)
        self.open = None
        self._write(self.template.end(self._plain()))

    def show(self, source: Any) -> None:
        """A picture."""
        url = image_url(source)
        self._show(self.template.image_token, {"type": "image_url", "image_url": {"url": url}})
        self.images.append(url)

    def play(self, path: Any, num_frames: int) -> None:
        """A film."""
        part = {"type": "video_url", "video_url": {"url": str(path), "num_frames": num_frames}}
        self._show(self.template.video_token, part)
        self.videos.append({"url": str(path), "num_frames": num_frames})

    def _show(self, token: str, part: dict[str, Any]) -> None:
        self.text += token
        if self.open is not None:
            self._rendered += token
            self.open.content += token
            self.open.parts.append(part)

    def messages(self) -> list[dict[str, Any]]:
        """The finished turns."""
        return [turn.message() for turn in self.turns]

    def messages_so_far(self) -> list[dict[str, Any]]:
        """The finished turns and the open one, if it holds anything."""
        turns = [*self.turns, self.open] if self.open is not None and self.open.parts else self.turns
        return [turn.message() for turn in turns]

    def replace_tail(self, start: int, text: str) -> None:
        """Put `text` in place of what the open turn said since position `start` of the text."""
        cut = len(self.text) - start
        self.text = self.text[:start]
        if self.open is not None and cut:
            self._rendered = self._rendered[:-cut]
            kept = self.open.content[:-cut]
            self.open.content = ""
            self.open.parts = [part for part in self.open.parts if part["type"] != "text"]
            self.open.say(kept)
        self.say(text)

    def append_from(self, other: Transcript, past: Transcript) -> None:
        """Append what `other`, a branch of `past`, said since."""
        added = other.text[len(past.text) :]
        if other.open is None and self.open is None:
            self.text += added
            self._rendered += added
        else:
            self.say(added)
        self.turns += other.turns[len(past.turns) :] if self.open is None else []
        self.images += other.images[len(past.images) :]
        self.videos += other.videos[len(past.videos) :]

    def _plain(self) -> list[dict[str, Any]]:
        return [{"role": turn.role, "content": turn.content} for turn in self.turns]

    def _write(self, rendered: str) -> None:
        """Make the text follow the template's new view of the turns."""
        old = self._rendered
        if self.text.endswith(old):
            self.text = self.text[: len(self.text) - len(old)] + rendered
        else:  # the program wrote text between turns: it stays, and what is new comes behind it
            same = 0
            for mine, theirs in zip(old, rendered, strict=False):
                if mine != theirs:
                    break
                same += 1
            self.text += rendered[same:]
        self._rendered = rendered
