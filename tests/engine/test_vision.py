"""Vision-language targets: prefill with pixels, then the same tree verification as for text, float64-exact."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
import worlds
from torch import Tensor
from transformers import AutoModelForImageTextToText

from workbench.core.errors import PromptError
from workbench.core.sampling import SamplingParams
from workbench.engine import Engine, Models, Request, Runner
from workbench.methods import registry

hf: Any = transformers  # configurations take more than their stubs know
IMAGE, START, END = 60, 61, 62
TEXT = {
    "vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 128, "bos_token_id": None, "eos_token_id": None,
    "pad_token_id": None,
}  # fmt: skip


def llava(device: str) -> tuple[Any, dict[str, Tensor]]:
    """LLaVA with a picture of 4 patches, and what its processor would return for a prompt."""
    vision = hf.CLIPVisionConfig(
        hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2, image_size=8, patch_size=4
    )
    config = hf.LlavaConfig(
        vision_config=vision, text_config=hf.LlamaConfig(**TEXT), image_token_index=IMAGE, vision_feature_layer=-1,
        vision_feature_select_strategy="default", image_seq_length=4,
    )  # fmt: skip
    model = worlds.random_model(config, device=device, auto=AutoModelForImageTextToText)
    ids = [*worlds.random_prompt(4, 60, seed=1), *[IMAGE] * 4, *worlds.random_prompt(3, 60, seed=2)]
    return model, _inputs(ids, device, pixel_values=torch.randn(1, 3, 8, 8, generator=_seeded(), dtype=torch.float64))


def qwen(device: str) -> tuple[Any, dict[str, Tensor]]:
    """Qwen2.5-VL (positions in three dimensions) with two pictures of different sizes."""
    config = hf.Qwen2_5_VLConfig(
        text_config=TEXT | {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [1, 1, 2]}},
        vision_config={
            "depth": 2, "hidden_size": 16, "intermediate_size": 24, "num_heads": 2, "out_hidden_size": 32,
            "patch_size": 4, "spatial_merge_size": 2, "temporal_patch_size": 1, "window_size": 16,
            "fullatt_block_indexes": [1], "in_channels": 3,
        },
        image_token_id=IMAGE, vision_start_token_id=START, vision_end_token_id=END, video_token_id=63,
        bos_token_id=None, eos_token_id=None, pad_token_id=None,
    )  # fmt: skip
    model = worlds.random_model(config, device=device, auto=AutoModelForImageTextToText)
    grid = torch.tensor([[1, 4, 6], [1, 2, 4]])  # 6 and 2 tokens after merging
    patches = int(grid.prod(1).sum())
    ids = [
        *worlds.random_prompt(2, 60, seed=1), START, *[IMAGE] * 6, END, *worlds.random_prompt(2, 60, seed=2),
        START, *[IMAGE] * 2, END, *worlds.random_prompt(3, 60, seed=3),
    ]  # fmt: skip
    pixels = torch.randn(patches, 3 * 4 * 4, generator=_seeded(), dtype=torch.float64)
    kinds = torch.tensor([[int(t == IMAGE) for t in ids]])
    return model, _inputs(ids, device, pixel_values=pixels, image_grid_thw=grid, mm_token_type_ids=kinds)


def _seeded() -> torch.Generator:
    return torch.Generator().manual_seed(7)


def _inputs(ids: list[int], device: str, **more: Tensor) -> dict[str, Tensor]:
    own = {"input_ids": torch.tensor([ids]), "attention_mask": torch.ones(1, len(ids), dtype=torch.long)}
    return {name: value.to(device) for name, value in (own | more).items()}


def ask_with_pixels(model: Any, inputs: dict[str, Tensor]) -> Any:
    """ids → logits after the last one, by a forward of everything, pixels and all, without a cache."""

    def ask(ids: list[int]) -> Tensor:
        more = {k: v for k, v in inputs.items() if k not in ("input_ids", "attention_mask", "mm_token_type_ids")}
        whole = torch.tensor([ids], device=model.device)
        if "mm_token_type_ids" in inputs:
            more["mm_token_type_ids"] = (whole == IMAGE).long()
        with torch.inference_mode():
            return model(input_ids=whole, attention_mask=torch.ones_like(whole), use_cache=False, **more).logits[0, -1]

    return ask


WORLDS = {"llava": llava, "qwen2.5-vl": qwen}


@pytest.mark.parametrize("name", WORLDS)
def test_trees_behind_pixels_equal_full_forwards_of_each_path(name: str, device: str) -> None:
    model, inputs = WORLDS[name](device)
    ask = ask_with_pixels(model, inputs)
    runner = Runner(model)
    other, slot = runner.open(), runner.open()  # a row of plain text beside the one with pictures
    words = worlds.random_prompt(5, 60, seed=9)
    runner.prefill(other, words[:-1])
    runner.prefill_multimodal(slot, inputs)
    text = inputs["input_ids"][0].tolist()
    parents, path = [-1, -1, 0, 0, 1, 2, 5], [0, 2, 5]
    for turn in range(3):
        draft = worlds.random_prompt(7, 60, seed=20 + turn)
        alone = worlds.tree_segment(other, words[-1], draft[:1], [-1], device)
        out = runner.forward([alone, worlds.tree_segment(slot, text[-1], draft, parents, device)])
        error = worlds.tree_error(out.logits[1], text, draft, parents, ask)
        assert error < 1e-12, f"turn {turn}: {error}"
        plain = worlds.ask_model(model)
        assert float((out.logits[0, 1] - plain([*words, draft[0]])).abs().max()) < 1e-12
        runner.commit(slot, [0, *(node + 1 for node in path)])
        text += [draft[i] for i in path] + worlds.random_prompt(1, 60, seed=40 + turn)
        runner.commit(other, [0, 1])
        words += [draft[0], *worlds.random_prompt(1, 60, seed=50 + turn)]


@pytest.mark.parametrize("name", WORLDS)
def test_generation_with_pictures_equals_hugging_face(name: str, device: str, tmp_path: Path) -> None:
    model, inputs = WORLDS[name](device)
    with torch.inference_mode():
        config = hf.GenerationConfig(max_new_tokens=24, do_sample=False, pad_token_id=0)
        wanted = model.generate(**inputs, generation_config=config)[0, inputs["input_ids"].shape[1] :].tolist()
    models = Models(Runner(model), worlds.letter_tokenizer(64), name)
    models.heads = {"medusa": worlds.random_medusa(tmp_path / "medusa", models)}
    models.drafter = Runner(worlds.family("llama", seed=3, device=device))
    engine = Engine(models)
    for method in registry.methods():
        trace = engine.generate(Request([], method, max_new_tokens=24, images=inputs))
        assert trace.token_ids == wanted, method.name
    engine.generate(Request([1, 2, 3], registry.get("prompt-lookup"), SamplingParams(temperature=1.0), 8))  # text alone


def test_a_prompt_with_pictures_that_does_not_fit_is_an_error(device: str) -> None:
    model, inputs = llava(device)
    engine = Engine(Models(Runner(model, context=10), worlds.letter_tokenizer(64), "llava"))
    with pytest.raises(PromptError, match="11 tokens"):
        engine.submit(Request([], registry.get("autoregressive"), images=inputs))
