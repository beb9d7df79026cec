"""Compilations away from the caller, shared, bounded."""

from __future__ import annotations

import threading

import pytest

from radixlang.errors import ConfigError
from radixlang.grammar import manager as manager_module
from radixlang.grammar.canonical import CanonicalState
from radixlang.grammar.errors import GrammarError
from radixlang.grammar.manager import GrammarManager
from radixlang.grammar.thinking import ThinkingState
from radixlang.messages import GrammarSpec
from tests.grammar.conftest import small_vocabulary


def vocabulary():
    return small_vocabulary(*"abc", "ab", "<e>")


@pytest.fixture
def manager():
    manager = GrammarManager(vocabulary, backend="native")
    yield manager
    manager.close()


def test_equal_constraints_are_compiled_once(manager) -> None:
    one, two = (manager.get(GrammarSpec("regex", "a+b")) for _ in range(2))
    assert one is two
    thinking = manager.get(GrammarSpec("regex", "a+b", thinking_end=(4,)))
    assert thinking is one
    assert isinstance(manager.start(GrammarSpec("regex", "a+b"), one.result(9)), CanonicalState)
    assert isinstance(manager.start(GrammarSpec("regex", "a+b", thinking_end=(4,)), one.result(9)), ThinkingState)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (GrammarSpec("regex", "("), "regex is not supported: .*missing"),
        (GrammarSpec("regex", "x"), "can write"),
        (GrammarSpec("ebnf", "{}"), "not ebnf"),
        (
            GrammarSpec("json_schema", '{"type": "integer", "multipleOf": 3}'),
            "no automaton states multipleOf at its root",
        ),
        (GrammarSpec("json_schema", '{"type": "x"}'), "malformed"),
        (GrammarSpec("choice", "[" * 9999), "nested too deeply|not valid JSON"),
    ],
)
def test_errors_come_with_the_result(manager, spec, message) -> None:
    for _ in range(2):
        with pytest.raises(GrammarError, match=message):
            manager.get(spec).result(9)


def test_backends() -> None:
    with pytest.raises(ConfigError, match="--grammar-backend magic is unknown"):
        GrammarManager(vocabulary, backend="magic")
    manager = GrammarManager(vocabulary, backend="none")
    with pytest.raises(GrammarError, match="takes no constraints"):
        manager.get(GrammarSpec("regex", "a")).result(9)
    manager.warm_up().result(9)
    manager.close()


def test_auto_goes_on_to_the_next_engine(request) -> None:
    pytest.importorskip("llguidance")
    from radixlang.grammar.llg import LlguidanceGrammar
    from radixlang.grammar.native import NativeGrammar

    vocabulary = request.getfixturevalue("vocabulary")
    manager = GrammarManager(lambda: vocabulary)
    kinds = {r"\d{3}": NativeGrammar, r"(a|b)*a(a|b){20}": LlguidanceGrammar, r"\p{Lu}+": LlguidanceGrammar}
    for pattern, kind in kinds.items():
        assert isinstance(manager.get(GrammarSpec("regex", pattern)).result(30).inner, kind)
    with pytest.raises(GrammarError, match="regex cannot be read"):
        manager.get(GrammarSpec("regex", "(")).result(30)
    manager.close()


def test_the_oldest_are_forgotten() -> None:
    manager = GrammarManager(vocabulary, backend="native", cache_bytes=40_000)
    specs = [GrammarSpec("regex", f"a{{{n}}}") for n in range(1, 30)]
    futures = [manager.get(spec) for spec in specs]
    for future in futures:
        future.result(9)
    assert manager.get(specs[-1]) is futures[-1]
    manager._trim()
    assert manager.get(specs[0]) is not futures[0]
    assert sum(future.result(9).nbytes for future in manager._known.values()) < 80_000
    manager.close()


def test_room_is_not_made_for_every_constraint(monkeypatch) -> None:
    """Or a client that sends others all the time has all that are known measured with each."""
    measured: list[object] = []
    size = manager_module._size
    monkeypatch.setattr(manager_module, "_size", lambda future: measured.append(future) or size(future))
    manager = GrammarManager(vocabulary, backend="native", cache_bytes=60_000)
    for number in range(240):
        manager.get(GrammarSpec("choice", f'["a"{" " * number}]')).result(9)
    manager.close()
    assert 10 < len(manager._known) < 120
    assert len(measured) < 2_400


def test_what_grows_is_measured_again() -> None:
    manager = GrammarManager(vocabulary, backend="native", cache_bytes=1 << 20)
    spec, other = GrammarSpec("regex", "a{40}"), GrammarSpec("regex", "b")
    manager.get(other).result(9)
    grammar = manager.get(spec).result(9)
    before = grammar.nbytes
    state = grammar.start()
    for _ in range(40):
        state._inner.fill(manager.vocabulary.eos_mask.copy())
        assert state.accept(0)
    assert grammar.nbytes > before
    manager._cache_bytes = grammar.nbytes
    manager._trim()
    assert len(manager._known) == 1
    manager._trim()
    assert len(manager._known) == 1
    manager.close()


def test_one_vocabulary_for_all_threads() -> None:
    made, gate = [], threading.Event()

    def slow():
        gate.wait(5)
        made.append(vocabulary())
        return made[-1]

    manager = GrammarManager(slow, backend="native", workers=4)
    futures = [manager.get(GrammarSpec("regex", f"a{{{n}}}")) for n in range(1, 5)]
    gate.set()
    for future in futures:
        future.result(9)
    assert len(made) == 1
    manager.close()


def test_tables_are_made_of_what_is_used_again(vocabulary) -> None:
    manager = GrammarManager(lambda: vocabulary)

    def tables(spec: GrammarSpec) -> list[bool]:
        """Whether there is one at the first, second and third use."""
        grammar, out = manager.get(spec).result(), []
        for _ in range(3):
            out.append(manager.table(spec, grammar, ignore_eos=False) is not None)
            manager._table_pool.submit(lambda: None).result()
        return out

    spec = GrammarSpec("regex", "(yes|no)*")
    assert tables(spec) == [False, False, True]
    grammar = manager.get(spec).result()
    assert manager.table(spec, grammar, True) is manager.table(spec, grammar, True) is not grammar.table
    assert grammar.nbytes > 2 * grammar.table.nbytes
    assert tables(GrammarSpec("regex", "(yes|no)*", thinking_end=(5,))) == [False] * 3
    assert tables(GrammarSpec("json_schema", '{"type": "integer"}')) == [False] * 3
    assert tables(GrammarSpec("regex", "[^,]{1,300}")) == [False] * 3
    manager.close()
