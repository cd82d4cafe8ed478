"""The size of a target's KV cache, computed from its configuration, against the buffers of loaded models."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from workbench.engine.image_trace import position_bytes
from workbench.kernels.layers import text_config
from workbench.models.runner import Runner
from workbench.service import choices
from workbench.service.memory import kv_cache_layout

SIZES = {
    "vocab_size": 64, "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 64, "bos_token_id": None, "eos_token_id": None,
    "pad_token_id": None,
}  # fmt: skip


def config_of(family: str, **more: Any) -> Any:
    return text_config(AutoConfig.for_model(family, **SIZES | more))


@pytest.mark.parametrize(
    ("family", "more"),
    [("llama", {}), ("qwen3", {"head_dim": 16}), ("gemma3_text", {"head_dim": 8, "sliding_window": 16})],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_it_is_the_size_of_the_loaded_models_cache(family: str, more: dict[str, Any], dtype: torch.dtype) -> None:
    config = config_of(family, **more)
    runner = Runner(AutoModelForCausalLM.from_config(config).to(dtype).eval(), context=32)
    runner.prefill(runner.open(), [1, 2, 3])
    layout = kv_cache_layout(config)
    assert layout is not None
    assert layout["bytes_per_position"][str(dtype).removeprefix("torch.")] == position_bytes(runner)
    each = 2 * layout["layers"] * layout["kv_heads"] * layout["head_dim"] * dtype.itemsize
    assert each == position_bytes(runner)


def test_layers_with_a_sliding_window_are_counted() -> None:
    config = config_of("gemma3_text", num_hidden_layers=6, sliding_window=16)
    layout = kv_cache_layout(config)
    assert layout is not None
    assert layout["sliding"] == {"layers": config.layer_types.count("sliding_attention"), "window": 16}
    assert layout["sliding"]["layers"] == 5
    other = kv_cache_layout(config_of("llama"))
    assert other is not None
    assert other["sliding"] is None


def test_an_int8_target_caches_in_its_compute_dtype() -> None:
    layout = kv_cache_layout(config_of("llama"))
    assert layout is not None
    sizes = layout["bytes_per_position"]
    assert sizes["int8"] == sizes["bfloat16"] == sizes["float32"] // 2


def test_it_is_unknown_for_layers_of_different_sizes() -> None:
    assert kv_cache_layout(config_of("deepseek_v3")) is None


def test_every_bundled_target_has_it_except_one_without_a_cache() -> None:
    found = {entry["name"]: entry["kv_cache"] for entry in choices.targets(["no-such-model"])}
    assert found["no-such-model"] is None
    assert found["diffusion-target"] is None
    assert found["text-target"]["bytes_per_position"]["float32"] == 2 * 12 * 6 * 48 * 4
