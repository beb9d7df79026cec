import math

import msgspec
import pytest

from radixlang.errors import RequestError
from radixlang.sampling_params import RowSampling, SamplingParams


def params(**values):
    parsed = SamplingParams.parse(values)
    parsed.verify(vocab_size=100)
    return parsed


def test_defaults_are_the_public_ones():
    p = params()
    assert (p.max_new_tokens, p.temperature, p.top_p, p.top_k, p.min_p, p.n) == (128, 1.0, 1.0, -1, 0.0, 1)
    assert (p.frequency_penalty, p.presence_penalty, p.repetition_penalty) == (0.0, 0.0, 1.0)
    assert p.skip_special_tokens
    assert not p.no_stop_trim


def test_null_means_default_but_fills_the_context_for_max_new_tokens():
    p = params(temperature=None, stop=None, max_new_tokens=None)
    assert p.temperature == 1.0
    assert p.stop == ()
    assert p.max_new_tokens is None


def test_a_single_stop_string_may_stand_alone():
    assert params(stop="x", stop_regex="a+").stop == ("x",)


def test_null_stop_ids_are_dropped_and_bias_keys_are_strings_in_json():
    p = params(stop_token_ids=[1, None, 2], logit_bias={"5": 1})
    assert p.stop_token_ids == (1, 2)
    assert p.logit_bias == {5: 1.0}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_new_tokens", -1),
        ("max_new_tokens", "8"),
        ("max_new_tokens", True),
        ("min_new_tokens", 999),
        ("temperature", -0.1),
        ("temperature", math.inf),
        ("temperature", math.nan),
        ("temperature", 1e31),
        pytest.param("temperature", 10**400, id="temperature-huge"),
        ("temperature", "hot"),
        ("top_p", 0.0),
        ("top_p", 1.1),
        ("top_k", 0),
        ("top_k", -2),
        ("top_k", 1.5),
        ("min_p", -0.1),
        ("min_p", 1.5),
        ("frequency_penalty", 2.1),
        ("presence_penalty", -2.1),
        ("repetition_penalty", 0.0),
        ("repetition_penalty", math.nan),
        ("repetition_penalty", 1e7),
        ("repetition_penalty", 1e-300),
        ("n", 0),
        ("n", 129),
        ("stop", ["a"] * 33),
        ("stop", [""]),
        ("stop", [1]),
        ("stop_regex", "x" * 257),
        ("stop_token_ids", [100]),
        ("stop_token_ids", [-1]),
        ("stop_token_ids", ["a"]),
        ("logit_bias", {"100": 1.0}),
        ("logit_bias", {"x": 1.0}),
        ("logit_bias", {"1": math.inf}),
        ("logit_bias", {"1": math.nan}),
        ("logit_bias", {"1": -1e31}),
        ("logit_bias", {"1": 10**400}),
        ("logit_bias", {"1": "2"}),
        ("sampling_seed", 2**63),
        ("sampling_seed", "7"),
        ("stream_interval", 0),
        ("no_such_parameter", 1),
    ],
)
def test_bad_values_name_their_parameter(name, value):
    with pytest.raises(RequestError) as caught:
        params(**{name: value})
    assert name in str(caught.value)
    assert caught.value.param == name
    assert caught.value.status == 400


def test_two_constraints_are_refused():
    with pytest.raises(RequestError, match="At most one"):
        params(regex="a", ebnf="b")


def test_empty_constraints_are_unset():
    assert params(regex="", json_schema="").regex is None


@pytest.mark.parametrize("raw", [[], "x", 3])
def test_parameters_must_be_an_object(raw):
    with pytest.raises(RequestError, match="object"):
        SamplingParams.parse(raw)


def test_survives_the_wire():
    p = params(stop=["a"], logit_bias={"3": -1}, temperature=0)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(p), type=SamplingParams) == p


def test_row_view():
    row = RowSampling.of(params(temperature=1e-9, stop_token_ids=[7], logit_bias={"1": 2}), (2, 7), seed=5)
    assert row.greedy
    assert row.end_ids == (2, 7)
    assert row.seed == 5
    ignoring = RowSampling.of(params(ignore_eos=True, stop_token_ids=[7], sampling_seed=-1), (2,), seed=5)
    assert ignoring.end_ids == (7,)
    assert ignoring.seed >= 0
