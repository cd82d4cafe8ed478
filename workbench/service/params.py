"""What can be checked of a request before any model is there; parameters of a method and of sampling in one dict."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from workbench.core.errors import ParameterError
from workbench.core.params import params_of, split_values
from workbench.core.sampling import SamplingParams
from workbench.engine.chosen import Choice
from workbench.engine.method import Configured
from workbench.engine.pace import FASTEST
from workbench.methods import registry
from workbench.service.limits import Limits


def check_pace(pace: Any) -> float:
    """Tokens a second at which the rounds of a run are to be held back; 0: not at all.

    Raises:
        ParameterError: not such a number.
    """
    if isinstance(pace, bool) or not isinstance(pace, int | float) or not 0 <= pace <= FASTEST:
        raise ParameterError(f"pace={pace!r} is not a number of tokens a second.", f"Use 0 to {FASTEST}; 0: off.")
    return float(pace)


def check_request(
    limits: Limits,
    prompt: str | Sequence[int],
    method: str,
    params: dict[str, Any] | None,
    max_new_tokens: int,
    seed: int,
    stop: Sequence[str],
) -> tuple[Configured, SamplingParams]:
    """A request for a generation, as far as it can be checked without models: how it will run.

    Raises:
        WorkbenchError: what is wrong, with what to do.
    """
    limits.check_prompt(prompt)
    limits.check_tokens(max_new_tokens)
    limits.check_stops(stop)
    if not isinstance(seed, int):
        raise ParameterError(f"seed={seed!r} is not a whole number.", "Use 0, 1, 2, ….")
    chosen = registry.get(method)
    mine, sampling = split_params(chosen, params or {})
    return chosen.with_params(**mine), sampling


def split_params(
    method: Choice, params: dict[str, Any], sampling: SamplingParams | None = None
) -> tuple[dict[str, Any], SamplingParams]:
    """Separate the sampling parameters from the method's own.

    Raises:
        UnknownNameError: a name that neither has.
        ParameterError: not a dict, or a sampling value out of range.
    """
    base = sampling or SamplingParams()
    mine, shared = split_values(f"parameter of {method.name}", method.params, params_of(base), params)
    return mine, dataclasses.replace(base, **shared)
