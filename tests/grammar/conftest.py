"""The packaged models' tokens."""

from __future__ import annotations

import pytest

from radixlang.grammar.vocabulary import Vocabulary


@pytest.fixture(scope="session")
def tokenizer(smollm2_path):
    from radixlang.text.tokenizer import load_tokenizer

    return load_tokenizer(str(smollm2_path))


@pytest.fixture(scope="session")
def vocabulary(tokenizer) -> Vocabulary:
    return Vocabulary.of(tokenizer)
