"""Refuse options of Transformers' `generate` that speculative decoding does not support."""

from __future__ import annotations

from typing import Any

import torch
from transformers import GenerationConfig, PreTrainedModel
from transformers.generation.logits_process import LogitsProcessorList

from workbench.core.errors import ParameterError

KEEP_STATE = ("ClassifierFreeGuidance", "SynthID", "WhisperNoSpeech", "DiaEOSDelay")
"""Substrings of class names of logits processors whose state changes at each call.

Their state would be wrong after rejected drafts.
"""
MODES = ("greedy_search", "sample", "assisted_generation")
OURS = ("attention_mask", "position_ids", "past_key_values", "use_cache", "logits_to_keep", "cache_position")
"""Names of arguments of a model's forward method that `generate` prepares and the engine ignores.

The engine has its own KV cache, positions and masks.
"""


def refuse(
    config: GenerationConfig,
    processors: LogitsProcessorList,
    synced_gpus: bool,
    streamer: Any,
    n_rows: int,
    model: PreTrainedModel,
    model_kwargs: dict[str, Any],
) -> None:
    """Refuse options of Transformers' `generate` that speculative decoding would silently ignore.

    Raises:
        ParameterError: an unsupported option is set; the message names it.
    """
    mode = config.get_generation_mode()
    refused = [f"generation mode {mode.value}"] if mode.value not in MODES else []
    unsupported = ("output_scores", "output_logits", "output_attentions", "output_hidden_states", "use_mtp",
              "prompt_lookup_num_tokens", "assistant_early_exit", "token_healing")  # fmt: skip
    refused += [name for name in unsupported if getattr(config, name, None)]
    refused += ["synced_gpus"] if synced_gpus else []
    refused += ["a streamer with several prompts"] if streamer is not None and n_rows > 1 else []
    refused += ["a model on several devices"] if len(set(getattr(model, "hf_device_map", {}).values())) > 1 else []
    refused += [name for name, value in model_kwargs.items() if name not in OURS and value is not None]
    refused += ["position_ids that do not count the prompt's tokens"] if _has_custom_positions(model_kwargs) else []
    if getattr(model_kwargs.get("past_key_values"), "_is_user_defined", False):
        refused.append("past_key_values")
    for processor in processors:
        name = type(processor).__name__
        refused += [name] if any(part in name for part in KEEP_STATE) else []
    if refused:
        raise ParameterError(
            f"speculative() does not support: {', '.join(refused)}.",
            "Remove these options, or call generate without custom_generate.",
        )


def _has_custom_positions(model_kwargs: dict[str, Any]) -> bool:
    """Return whether the user's position ids differ from those that `generate` would compute.

    Positions of padding are ignored.
    """
    positions, mask = model_kwargs.get("position_ids"), model_kwargs.get("attention_mask")
    if positions is None:
        return False
    if mask is None:
        mask = torch.ones_like(positions)
    default_positions = (mask.long().cumsum(-1) - 1).expand_as(positions)
    return not torch.equal(positions * mask, default_positions * mask)
