"""Recognise masked language models: targets with bidirectional attention that fill masked positions."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

MASKED_LM = "masked-lm"
"""Name of the requirement of methods that decode masked language models."""
MASK = "<|reserved_0|>"
"""Token of the bundled tokenizer that stands for a masked position."""


def why_not_masked(target: str, is_masked: bool, needs: Collection[str]) -> str:
    """Return why a method cannot decode a target because only one of the two uses masked language modelling; else "".

    Args:
        target: name of the target.
        is_masked: whether the target is a masked language model.
        needs: requirements of the method.
    """
    if is_masked and MASKED_LM not in needs:
        return f"{target} is a masked-diffusion model, which can be decoded only by methods for such models (llada)."
    if not is_masked and MASKED_LM in needs:
        return (
            f"This method needs a masked-diffusion model, and {target} generates text from left to right. "
            f"Choose a masked-diffusion target, such as diffusion-target."
        )
    return ""


def is_masked_lm(config: Mapping[str, Any]) -> bool:
    """Return whether the content of a model's `config.json` describes a masked language model."""
    return bool(config.get("is_bidirectional")) and config.get("mask_token_id") is not None


def mask_token_of(config: Any) -> int | None:
    """Return the id of a model's mask token if it is a bidirectional masked language model, else None.

    Args:
        config: configuration of a model, whose `is_bidirectional` and `mask_token_id` are read.
    """
    return getattr(config, "mask_token_id", None) if getattr(config, "is_bidirectional", False) else None
