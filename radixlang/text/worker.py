"""The detokenizer's stage of the ring: token ids in, text out; runs in a process or in a thread.

It finds stop strings, so the engine stays blind to text. Everything that is not text passes through.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from radixlang.channel import Receiver, Sender, ZmqReceiver, ZmqSender
from radixlang.config import Config
from radixlang.errors import RadixLangError
from radixlang.log import get_logger
from radixlang.messages import Failed, FromEngine, Opened, Ready, Stopped, Texts, Tokens, pack_ids, unpack_ids
from radixlang.process import Start, run_stage
from radixlang.text.detokenize_worker import DetokenizerState
from radixlang.text.tokenizer import Tokenizer, load_tokenizer

log = get_logger(__name__)


def load_for(config: Config) -> Tokenizer | None:
    """The tokenizer that the flags ask for; None with --skip-tokenizer-init."""
    model = config.model
    if model.skip_tokenizer_init:
        return None
    return load_tokenizer(model.model_path, model.tokenizer_path, model.chat_template)


class DetokenizerLoop:
    """Turns `Tokens` into `Texts` until the engine says `Stopped`. `tokenizer` None: texts stay empty."""

    def __init__(self, tokenizer: Tokenizer | None, receiver: Receiver, sender: Sender) -> None:
        self._state = DetokenizerState(tokenizer) if tokenizer is not None else None
        self._receiver = receiver
        self._sender = sender
        self._stopped = False
        self._handlers: dict[type, Callable[[Any], None]] = {
            Opened: self._on_opened,
            Tokens: self._on_tokens,
            Failed: self._on_failed,
            Stopped: self._on_stopped,
        }

    def run(self) -> None:
        while not self._stopped:
            for message in self._receiver.receive(None):
                self._handlers.get(type(message), self._sender.send)(message)

    def _on_opened(self, message: Opened) -> None:
        if self._state is None:
            return
        try:
            self._state.open(message.rid, unpack_ids(message.prompt_tail).tolist(), message.sampling)
        except Exception as error:
            self._fail(message.rid, error, running=True)

    def _fail(self, rid: str, error: Exception, running: bool) -> None:
        """The text of one request cannot be made, whatever the reason: that costs no other its answer."""
        if isinstance(error, RadixLangError):
            status, sentence = error.status, str(error)
        else:
            log.error("the text of request %s could not be made", rid, exc_info=error)
            status, sentence = 500, f"The text could not be made: {type(error).__name__}: {error}"
        self._sender.send(Failed(rid, status, sentence, running=running))

    def _on_failed(self, message: Failed) -> None:
        if self._state is not None:
            self._state.close(message.rid)
        self._sender.send(message)

    def _on_stopped(self, message: Stopped) -> None:
        self._stopped = True
        self._sender.send(message)

    def _on_tokens(self, message: Tokens) -> None:
        """The columns keep their order, so that the log-probabilities' indexes stay right; a request that has
        ended already (tokens in flight behind a stop) keeps its place with nothing in it."""
        out = Texts(
            message.rids,
            [""] * len(message.rids),
            message.counts,
            message.ids,
            message.finishes,
            message.metas,
            [False] * len(message.rids),
            message.prompt_logprobs,
            message.output_logprobs,
        )
        if self._state is not None:
            self._add_texts(message, out, self._state)
        self._sender.send(out)

    def _add_texts(self, message: Tokens, out: Texts, state: DetokenizerState) -> None:
        ids = unpack_ids(message.ids).tolist()
        kept: list[int] = []
        out.counts, out.finishes = [], []
        offset = 0
        for i, (rid, count, finish) in enumerate(zip(message.rids, message.counts, message.finishes, strict=True)):
            try:
                delta = state.push(rid, ids[offset : offset + count], finish)
            except Exception as error:
                state.close(rid)
                self._fail(rid, error, running=finish is None)
                delta = None
            offset += count
            if delta is None:
                out.counts.append(0)
                out.finishes.append(None)
                continue
            kept += delta.ids
            out.texts[i] = delta.text
            out.counts.append(len(delta.ids))
            out.finishes.append(delta.finish_reason)
            # The engine knows of an end that it decided itself.
            out.ends[i] = delta.stopped_by_text and finish is None
        if len(kept) != len(ids):
            out.ids = pack_ids(kept)


def detokenizer(start: Start, sender: ZmqSender) -> None:
    receiver = ZmqReceiver(start.inbox, FromEngine)
    tokenizer = load_for(start.config)
    sender.send(Ready("detokenizer"))
    DetokenizerLoop(tokenizer, receiver, sender).run()


if __name__ == "__main__":
    run_stage("detokenizer", detokenizer)
