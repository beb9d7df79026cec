"""Token ids to text as they are generated.

Every token stands for fixed bytes, so text is what an incremental UTF-8 reader makes of them: only an incomplete
byte sequence is held back (a real U+FFFD is complete and flows), and a token costs the same however long the text
already is. Must not know requests or stop strings.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Sequence

from radixlang.text.tokenizer import Tokenizer

_Reader = codecs.getincrementaldecoder("utf-8")


class IncrementalDetokenizer:
    """The text of a growing list of ids; what is pushed and finished joins to `Tokenizer.decode` of all ids.

    `prompt_tail_ids`: the last few ids of the prompt. The text then continues the prompt: a first space is kept,
    and a character whose first bytes were in the prompt is completed.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        skip_special_tokens: bool = True,
        spaces_between_special_tokens: bool = True,
        prompt_tail_ids: Sequence[int] = (),
    ) -> None:
        """`spaces_between_special_tokens` changes nothing, as in `Tokenizer.decode`."""
        self._bytes_of = tokenizer.token_bytes
        self._hidden = tokenizer.special_ids if skip_special_tokens else frozenset()
        self._reader = _Reader("replace")
        self._at_start = tokenizer.drops_first_space
        self.push(prompt_tail_ids)

    def push(self, ids: Iterable[int]) -> str:
        """The text that has become complete with `ids`."""
        hidden, bytes_of = self._hidden, self._bytes_of
        data = b"".join([bytes_of(index) for index in ids if index not in hidden])
        if self._at_start and data:
            self._at_start = False
            data = data.removeprefix(b" ")
        return self._reader.decode(data)

    def finish(self) -> str:
        """What was held back: U+FFFD for an incomplete sequence, else nothing."""
        return self._reader.decode(b"", final=True)
