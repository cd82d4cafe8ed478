"""The limits of a form's numbers are those that a request is checked by."""

from __future__ import annotations

from typing import Any

import pytest

from workbench.client.requests import ComparisonRequest, Generation, Request, SweepRequest
from workbench.client.values import MAX_SAFE_INTEGER
from workbench.core.errors import ParameterError

NEEDED: dict[type[Request], dict[str, Any]] = {ComparisonRequest: {"prompts": ["a"], "lanes": ["draft-model"]}}


@pytest.mark.parametrize("model", [Generation, ComparisonRequest, SweepRequest])
def test_a_number_at_its_limits_passes_and_none_beyond_them(model: type[Request]) -> None:
    numbers = model.numbers()
    assert {"max_new_tokens", "seed"} <= numbers.keys()
    for name, spec in numbers.items():
        for value in (spec["ge"], spec["default"], spec["le"]):
            found = getattr(
                model.model_validate({name: value, **NEEDED.get(model, {})}, context=lambda: ([], True)), name
            )
            assert found == value
        beyond = [spec["ge"] - 1] + [spec["le"] + 1] * (spec["le"] < MAX_SAFE_INTEGER)
        for value in beyond if name != "pace" else ():  # which the backend checks
            with pytest.raises(ParameterError, match=f"{name} is not a whole number from {spec['ge']}"):
                model.model_validate({name: value, **NEEDED.get(model, {})}, context=lambda: ([], True))
