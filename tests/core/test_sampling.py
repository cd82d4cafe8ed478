"""Token distributions compared with Hugging Face's warpers; sampling by inversion; parameters."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from transformers import (
    LogitsProcessorList,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from workbench.core.errors import ParameterError
from workbench.core.params import param, params_of
from workbench.core.sampling import (
    BLOCK,
    WIDE,
    SamplingParams,
    apply_logits_processors,
    entropy_of,
    largest,
    pick,
    to_probs,
)


def logits_of(seed: int, rows: int = 4, size: int = 40) -> torch.Tensor:
    return 3 * torch.randn(rows, size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@settings(deadline=None)
@given(
    st.integers(0, 1000),
    st.floats(0.1, 3.0),
    st.sampled_from([0, 1, 2, 5, 39, 40, 1000]),
    st.sampled_from([0.1, 0.5, 0.9, 0.999, 1.0]),
    st.sampled_from([0.0, 0.05, 0.5, 1.0]),
)
def test_probs_equal_those_of_hugging_faces_warpers(
    seed: int, temperature: float, top_k: int, top_p: float, min_p: float
) -> None:
    logits, ids = logits_of(seed), torch.zeros(4, 1, dtype=torch.long)
    warpers: Any = LogitsProcessorList([TemperatureLogitsWarper(temperature)])
    if top_k:
        warpers.append(TopKLogitsWarper(top_k))
    if top_p < 1:
        warpers.append(TopPLogitsWarper(top_p))
    if min_p:
        warpers.append(MinPLogitsWarper(min_p))
    wanted = warpers(ids, logits.clone()).softmax(1)
    found = to_probs(logits, SamplingParams(temperature, top_k, top_p, min_p))
    assert torch.equal(found > 0, wanted > 0)
    assert torch.allclose(found, wanted, atol=1e-14)
    assert torch.allclose(found.sum(1), torch.ones(4, dtype=torch.float64))


def test_temperature_zero_is_a_point_mass_on_the_first_most_likely_token() -> None:
    logits = torch.tensor([[0.0, 2.0, 2.0], [1.0, 0.0, -1.0]])
    assert to_probs(logits, SamplingParams()).tolist() == [[0, 1, 0], [1, 0, 0]]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_widened(dtype: torch.dtype) -> None:
    assert to_probs(logits_of(0).to(dtype), SamplingParams(1.0)).dtype == torch.float32


@settings(deadline=None)
@given(st.integers(0, 1000), st.lists(st.integers(0, 39), min_size=1, max_size=12), st.floats(0.5, 5.0))
def test_repetition_penalty_equals_hugging_faces(seed: int, history: list[int], penalty: float) -> None:
    logits, ids = logits_of(seed, rows=2), torch.tensor(history)
    processor: Any = RepetitionPenaltyLogitsProcessor(penalty)
    wanted = processor(ids[None].expand(2, -1), logits.clone())
    found = apply_logits_processors(logits, SamplingParams(repetition_penalty=penalty), [ids, ids])
    assert torch.allclose(found, wanted)


def test_each_row_uses_its_own_history() -> None:
    def shift(ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        return scores + ids.shape[1] * 100 + ids.sum()

    histories = [torch.tensor([1]), torch.tensor([2, 3])]
    found = apply_logits_processors(torch.zeros(2, 3), SamplingParams(processors=(shift,)), histories)
    assert found.tolist() == [[101.0] * 3, [205.0] * 3]


@settings(deadline=None)
@given(st.lists(st.floats(0, 1), min_size=1, max_size=12), st.floats(0, 1, exclude_max=True))
@example([0.0, 0.25, 0.0, 0.75], 0.0)
@example([0.25, 0.0, 0.75], 0.25)
def test_inversion_equals_a_naive_scan(weights: list[float], u: float) -> None:
    total = float(torch.tensor(weights, dtype=torch.float64).cumsum(0)[-1])
    if total <= 0:
        return
    token = int(pick(torch.tensor([weights], dtype=torch.float64), torch.tensor([u], dtype=torch.float64)))
    among = pick(torch.tensor([weights] * 2, dtype=torch.float64), torch.tensor([u] * 2, dtype=torch.float64))
    assert among.tolist() == [token, token]
    running, wanted = 0.0, max(i for i, weight in enumerate(weights) if weight > 0)  # where rounding reaches the total
    for i, cumulative in enumerate(torch.tensor(weights, dtype=torch.float64).cumsum(0).tolist()):
        running = cumulative
        if running > u * total:
            wanted = i
            break
    assert token == wanted


@settings(deadline=None, max_examples=60)
@given(st.data(), st.sampled_from([torch.float32, torch.float64]))
def test_inversion_of_a_wide_row_gives_the_same_token(data: st.DataObject, dtype: torch.dtype) -> None:
    """Weights are multiples of 2⁻¹⁰, so that sums are exact in any order and equal those of the naive scan."""
    size = data.draw(st.sampled_from([WIDE, WIDE + BLOCK]))
    some = data.draw(st.dictionaries(st.integers(0, size - 1), st.integers(0, 1023), min_size=1, max_size=9))
    u = torch.tensor([data.draw(st.floats(0, 1, exclude_max=True)), 0.0, 1 - 2**-53], dtype=torch.float64)
    p = torch.zeros(3, size, dtype=dtype)
    p[:, list(some)] = torch.tensor(list(some.values()), dtype=dtype) / 1024
    total = sum(some.values()) / 1024
    if total == 0:
        return
    places = torch.arange(size)[p[0] > 0].tolist()
    ends = p[0].double().cumsum(0)
    wanted = [next(i for i in [*places[:-1], -1] if i < 0 or ends[i] > share * total) for share in u.tolist()]
    found = pick(p, u).tolist()
    assert [int(pick(p[i : i + 1], u[i : i + 1])) for i in range(3)] == found
    nearly = [abs(float(ends[i]) - share * total) < 1e-9 for i, share in zip(found, u.tolist(), strict=True)]
    assert all(a == (b if b >= 0 else places[-1]) or close for a, b, close in zip(found, wanted, nearly, strict=True))
    assert all(float(p[0, token]) > 0 for token in found)


@pytest.mark.parametrize("size", [40, WIDE + BLOCK, WIDE + 1], ids=["narrow", "in-blocks", "no-multiple"])
@pytest.mark.parametrize("together", [True, False], ids=["in-one-block", "anywhere"])
def test_largest_values_equal_those_of_a_sort(size: int, together: bool) -> None:
    x = torch.randn(3, size, generator=torch.Generator().manual_seed(size))
    if together:
        x[1, 8:24] += 10
    values, places = largest(x, 8)
    assert torch.equal(values, x.sort(1, descending=True).values[:, :8])
    assert torch.equal(x.gather(1, places), values)
    assert all(len(set(row)) == 8 for row in places.tolist())


def test_nan_is_among_the_largest_values() -> None:
    x = torch.zeros(1, WIDE)
    x[0, WIDE // 2] = torch.nan
    assert largest(x, 8)[0].isnan().any()


# -- parameters -------------------------------------------------------------------------------------------------------

SPECS = params_of(SamplingParams())


@pytest.mark.parametrize(
    ("name", "value", "parsed"),
    [
        ("temperature", "0.7", 0.7),
        ("temperature", 1, 1.0),
        ("top_k", "50", 50),
        ("top_k", 50.0, 50),
        ("top_p", "1", 1.0),
    ],
)
def test_values_are_parsed_from_text_and_numbers(name: str, value: object, parsed: float) -> None:
    found = SPECS[name].parse(value)
    assert found == parsed
    assert type(found) is type(parsed)


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("temperature", -0.1, "outside its range"),
        ("temperature", float("nan"), "outside its range"),
        ("temperature", "warm", "not a number"),
        ("temperature", True, "not a number"),
        ("temperature", None, "not a number"),
        ("top_k", 1001, "outside its range"),
        ("top_k", 2.5, "not a whole number"),
        ("top_k", "", "not a whole number"),
        ("top_k", float("inf"), "whole number|outside"),
    ],
)
def test_error_for_a_wrong_value_states_the_allowed_ones(name: str, value: object, says: str) -> None:
    with pytest.raises(ParameterError, match=says) as caught:
        SPECS[name].parse(value)
    assert name in caught.value.message
    assert "from" in caught.value.remedy


def test_choices_and_booleans() -> None:
    choice = param("a", choices=("a", "b"), doc="").metadata["workbench.param"]
    assert choice.parse("b") == "b"
    with pytest.raises(ParameterError, match="not an allowed choice") as caught:
        choice.parse("c")
    assert "a, b" in caught.value.remedy
    flag = param(False, doc="").metadata["workbench.param"]
    assert [flag.parse(v) for v in (True, "yes", "On", "0", False, "false")] == [True, True, True, False, False, False]
    with pytest.raises(ParameterError, match="not true or false"):
        flag.parse("maybe")


@settings(deadline=None)
@given(st.sampled_from(sorted(SPECS)), st.data())
def test_allowed_values_pass_and_others_do_not(name: str, data: st.DataObject) -> None:
    spec = SPECS[name]
    assert spec.ge is not None
    assert spec.le is not None
    numbers = st.integers(-10, 2000) if spec.kind == "int" else st.floats(-10, 20)
    value = data.draw(numbers)
    if spec.ge <= value <= spec.le:
        assert spec.parse(value) == spec.parse(str(value)) == value
    else:
        with pytest.raises(ParameterError):
            spec.parse(value)


def test_parameter_is_serialised_as_plain_json() -> None:
    wire = SPECS["top_k"].to_wire()
    assert wire["name"] == "top_k"
    assert wire["kind"] == "int"
    assert (wire["ge"], wire["le"], wire["default"], wire["choices"]) == (0, 1000, 0, [])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_tiny_temperature_is_a_point_mass_without_nan(dtype: torch.dtype) -> None:
    logits = torch.tensor([[3.0, 90.0, -math.inf, 89.0], [-5.0, -4.0, -7.0, -4.5]], dtype=dtype)
    for temperature in (5e-324, 1e-300, 1e-39, 1e-7):
        sampling = SamplingParams(temperature=temperature, top_p=0.9, min_p=0.1)
        p = to_probs(logits, sampling)
        assert p.tolist() == [[0, 1, 0, 0], [0, 1, 0, 0]], temperature
        entropy = entropy_of(logits, p, torch.tensor([[1], [1]]), torch.ones(2, dtype=dtype), sampling)
        assert entropy.tolist() == [0, 0]
