"""The limits of numbers in forms equal those checked in requests."""

from __future__ import annotations

from typing import Any

import pytest

from workbench.client.requests import ComparisonRequest, Generation, Request, SweepRequest
from workbench.client.values import MAX_SAFE_INTEGER
from workbench.core.errors import ParameterError

NEEDED: dict[type[Request], dict[str, Any]] = {
    Generation: {"prompt": "a"},
    ComparisonRequest: {"prompts": ["a"], "lanes": ["draft-model"]},
}


@pytest.mark.parametrize("model", [Generation, ComparisonRequest, SweepRequest])
def test_numbers_at_the_limits_pass_and_numbers_beyond_them_fail(model: type[Request]) -> None:
    numbers = model.numbers()
    assert {"max_new_tokens", "seed"} <= numbers.keys()
    for name, spec in numbers.items():
        for value in (spec["ge"], spec["default"], spec["le"]):
            found = getattr(
                model.model_validate({name: value, **NEEDED.get(model, {})}, context=lambda: ([], True)), name
            )
            assert found == value
        beyond = [spec["ge"] - 1] + [spec["le"] + 1] * (spec["le"] < MAX_SAFE_INTEGER)
        for value in beyond if name != "pace" else ():  # the backend checks `pace`
            with pytest.raises(ParameterError, match=f"{name} is not a whole number from {spec['ge']}"):
                model.model_validate({name: value, **NEEDED.get(model, {})}, context=lambda: ([], True))
