"""Check requests for generations without loading models; separate sampling parameters from method parameters."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from workbench.core.errors import ParameterError
from workbench.core.params import params_of, split_values
from workbench.core.sampling import SamplingParams
from workbench.decoders.method import ConfiguredMethod
from workbench.engine.method_protocols import MethodProtocol
from workbench.engine.pacing import FASTEST
from workbench.methods import registry
from workbench.service.limits import Limits


def check_pace(pace: Any) -> float:
    """Check the display rate to which a run is slowed down, in tokens per second; 0: no delay.

    Raises:
        ParameterError: the value is not a number in range.
    """
    if isinstance(pace, bool) or not isinstance(pace, int | float) or not 0 <= pace <= FASTEST:
        raise ParameterError(
            f"pace={pace!r} is not a number of tokens per second.",
            f"Use 0 to {FASTEST} tokens per second; 0: no delay.",
        )
    return float(pace)


def check_request(
    limits: Limits,
    prompt: str | Sequence[int],
    method: str,
    params: dict[str, Any] | None,
    max_new_tokens: int,
    seed: int,
    stop: Sequence[str],
) -> tuple[ConfiguredMethod, SamplingParams]:
    """Check everything in a request for a generation that can be checked without loaded models.

    Returns:
        The method with its parameters, and the sampling parameters.

    Raises:
        WorkbenchError: the request is invalid.
    """
    limits.check_prompt(prompt)
    limits.check_tokens(max_new_tokens)
    limits.check_stops(stop)
    if not isinstance(seed, int):
        raise ParameterError(f"seed={seed!r} is not a whole number.", "Use 0, 1, 2, ….")
    chosen = registry.get(method)
    method_params, sampling = split_params(chosen, params or {})
    return chosen.with_params(**method_params), sampling


def split_params(
    method: MethodProtocol, params: dict[str, Any], sampling: SamplingParams | None = None
) -> tuple[dict[str, Any], SamplingParams]:
    """Separate a method's own parameters from sampling parameters.

    Args:
        method: method whose parameters are separated.
        params: values of method parameters and sampling parameters, by name.
        sampling: sampling parameters to start from; by default, the default ones.

    Returns:
        The method's own parameters by name, and the sampling parameters.

    Raises:
        UnknownNameError: a name is neither a parameter of the method nor of sampling.
        ParameterError: `params` is not a dict, or a sampling value is out of range.
    """
    base = sampling or SamplingParams()
    method_params, shared = split_values(f"parameter of {method.name}", method.params, params_of(base), params)
    return method_params, dataclasses.replace(base, **shared)
