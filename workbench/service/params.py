"""What can be checked of a request before any model is there; parameters of a method and of sampling in one dict."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from workbench.core.errors import ParameterError, UnknownNameError
from workbench.core.params import ParamSpec, params_of
from workbench.core.sampling import SamplingParams
from workbench.engine import Method
from workbench.engine.method import Configured
from workbench.methods import registry
from workbench.service.limits import Limits

FASTEST_PACE = 1000
"""Tokens a second; what is faster than that nobody can follow."""


def check_pace(pace: Any) -> float:
    """Tokens a second at which the rounds of a run are to be held back; 0: not at all.

    Raises:
        ParameterError: not such a number.
    """
    if isinstance(pace, bool) or not isinstance(pace, int | float) or not 0 <= pace <= FASTEST_PACE:
        raise ParameterError(f"pace={pace!r} is not a number of tokens a second.", f"Use 0 to {FASTEST_PACE}; 0: off.")
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
    method: Method, params: dict[str, Any], sampling: SamplingParams | None = None
) -> tuple[dict[str, Any], SamplingParams]:
    """Separate the sampling parameters from the method's own.

    Raises:
        UnknownNameError: a name that neither has.
        ParameterError: not a dict, or a sampling value out of range.
    """
    if not isinstance(params, dict) or not all(isinstance(name, str) for name in params):
        raise ParameterError("The parameters are not given by name.", 'Give a dict such as {"depth": 4}.')
    base = sampling or SamplingParams()
    specs: dict[str, ParamSpec] = params_of(base)
    mine = {name: value for name, value in params.items() if name not in specs}
    for name in mine:
        if name not in method.params:
            raise UnknownNameError.of(f"parameter of {method.name}", name, [*method.params, *specs])
    shared = {name: specs[name].parse(value) for name, value in params.items() if name in specs}
    return mine, dataclasses.replace(base, **shared)
