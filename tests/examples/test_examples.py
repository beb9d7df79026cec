"""The programs of `examples/programs` on the real model: constrained text is valid, the rest has its structure."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

import radixlang as sgl
from radixlang.lang.global_config import global_config

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "programs"


@pytest.fixture(scope="module", autouse=True)
def backend(smollm2_engine):
    sgl.set_default_backend(smollm2_engine)
    yield
    global_config.default_backend = None


def run(name: str) -> Any:
    """What `run()` of an example returns."""
    spec = importlib.util.spec_from_file_location(f"example_{name}", FOLDER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.run()


def chat(messages):
    assert [message["role"] for message in messages] == ["system", "user", "assistant", "user", "assistant"]
    assert "Paris" in messages[2]["content"]


def tree_of_thought(plan):
    assert " →" in plan  # the model may have nothing to say on either side


def rag(result):
    notes, answer = result
    assert len(notes) == 3
    assert "1871" in notes[0]
    assert answer


def tool_agent(result):
    call, value, answer = result
    operation, numbers = call.removesuffix(")").split("(")
    a, b = map(int, numbers.split(", "))
    assert value == {"add": a + b, "multiply": a * b}[operation]
    assert isinstance(answer, str)


def json_extraction(facts):
    assert set(facts) == {"name", "age", "city"}
    assert 0 <= facts["age"] <= 120
    assert facts["city"] in ("Oslo", "Paris", "Rome")


def essay_judge(result):
    judgements, grade = result
    assert len(judgements) == 3
    assert grade in "ABCD"


def self_consistency(result):
    numbers, winner = result
    assert len(numbers) == 5
    assert all(number.isdigit() for number in numbers)
    assert numbers.count(winner) == max(map(numbers.count, numbers))


def skeleton_of_thought(pairs):
    assert len(pairs) == 3
    assert all(isinstance(text, str) for pair in pairs for text in pair)


def classification(labels):
    assert len(labels) == 4
    assert set(labels) <= {"positive", "negative"}
    assert labels[0] == "positive"


def batch(answers):
    assert len(answers) == 6
    assert "ValueError" in answers[3]
    assert all(answer.strip().lstrip("+-").isdigit() for i, answer in enumerate(answers) if i != 3)


def streaming(result):
    pieces, whole = result
    assert len(pieces) > 2
    assert "".join(whole).startswith("Once upon a time there was a crow who")
    assert "\nIn the end" in "".join(whole)


CHECKS = {
    check.__name__: check
    for check in (
        chat,
        tree_of_thought,
        rag,
        tool_agent,
        json_extraction,
        essay_judge,
        self_consistency,
        skeleton_of_thought,
        classification,
        batch,
        streaming,
    )
}


def test_every_example_is_here():
    assert {path.stem for path in FOLDER.glob("*.py")} == set(CHECKS)


@pytest.mark.parametrize("name", CHECKS)
def test_example(name):
    CHECKS[name](run(name))
