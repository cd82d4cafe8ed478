"""Vision-language targets: prefill with pixels, then the same tree verification as for text, exact in float64."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import model_helpers
import pytest
import torch
import transformers
from torch import Tensor
from transformers import AutoModelForImageTextToText

from workbench.core.errors import ModelError, PromptError
from workbench.engine import Engine, Models, Request, Runner
from workbench.methods import registry
from workbench.models.image_prefill import prefill_images

hf: Any = transformers  # configurations take more arguments than their stubs declare
IMAGE, START, END = 60, 61, 62
TEXT = {
    "vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 128, "bos_token_id": None, "eos_token_id": None,
    "pad_token_id": None,
}  # fmt: skip
NO_TOKENS = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
TOWER = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2, "image_size": 8}
QWEN_TOWER = {
    "depth": 2, "hidden_size": 16, "intermediate_size": 24, "num_heads": 2, "out_hidden_size": 32, "patch_size": 4,
    "spatial_merge_size": 2, "temporal_patch_size": 1, "in_channels": 3,
}  # fmt: skip
QWEN_TOKENS = {
    "image_token_id": IMAGE, "vision_start_token_id": START, "vision_end_token_id": END, "video_token_id": 63
}  # fmt: skip
QWEN_ROPE = {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [1, 1, 2]}}

World = tuple[Any, dict[str, Tensor]]


def llava(device: str) -> World:
    """LLaVA with an image of 4 patches, and its processor's output for a prompt."""
    config = hf.LlavaConfig(
        vision_config=hf.CLIPVisionConfig(**TOWER, patch_size=4), text_config=hf.LlamaConfig(**TEXT),
        image_token_index=IMAGE, vision_feature_layer=-1, vision_feature_select_strategy="default", image_seq_length=4,
    )  # fmt: skip
    return _world(config, [4, [IMAGE] * 4, 3], device, pixel_values=_noise(1, 3, 8, 8))


def llava_next(device: str) -> World:
    """LLaVA-NeXT with an image of two tiles and its thumbnail: 4 tokens, and 4 rows of 2 with a line end."""
    config = hf.LlavaNextConfig(
        vision_config=hf.CLIPVisionConfig(**TOWER, patch_size=4), text_config=hf.LlamaConfig(**TEXT),
        image_token_index=IMAGE, vision_feature_layer=-1, vision_feature_select_strategy="default",
        image_grid_pinpoints=[[8, 16], [16, 8], [16, 16]],
    )  # fmt: skip
    sizes = torch.tensor([[16, 8]])
    return _world(config, [4, [IMAGE] * 16, 3], device, pixel_values=_noise(1, 3, 3, 8, 8), image_sizes=sizes)


def qwen(device: str) -> World:
    """Qwen2.5-VL (positions in three dimensions) with two images of different sizes."""
    tower = QWEN_TOWER | {"window_size": 16, "fullatt_block_indexes": [1]}
    config = hf.Qwen2_5_VLConfig(text_config=TEXT | QWEN_ROPE, vision_config=tower, **QWEN_TOKENS, **NO_TOKENS)
    return _qwen_world(config, device)


def qwen3(device: str) -> World:
    """Qwen3-VL, whose first layers also get the tower's inner states."""
    tower = QWEN_TOWER | {"num_position_embeddings": 64, "deepstack_visual_indexes": [0]}
    config = hf.Qwen3VLConfig(text_config=TEXT | QWEN_ROPE | {"head_dim": 8}, vision_config=tower, **QWEN_TOKENS)
    return _qwen_world(config, device)


def _qwen_world(config: Any, device: str) -> World:
    grid = torch.tensor([[1, 4, 6], [1, 2, 4]])  # 6 and 2 tokens after merging
    pixels = _noise(int(grid.prod(1).sum()), 3 * 4 * 4)
    parts = [2, [START, *[IMAGE] * 6, END], 2, [START, *[IMAGE] * 2, END], 3]
    return _world(config, parts, device, pixel_values=pixels, image_grid_thw=grid, mm_token_type_ids=None)


def idefics3(device: str) -> World:
    """Idefics3 with an image in two tiles, each with its marker."""
    return _idefics(hf.Idefics3Config, device)


def smolvlm(device: str) -> World:
    """SmolVLM, with the same structure."""
    return _idefics(hf.SmolVLMConfig, device)


def _idefics(kind: Any, device: str) -> World:
    text = hf.LlamaConfig(**TEXT).to_dict()
    config = kind(vision_config=TOWER | {"patch_size": 2}, text_config=text, image_token_id=IMAGE, scale_factor=2)
    tiles = [START, *[IMAGE] * 4, START, *[IMAGE] * 4, START]
    mask = torch.ones(1, 2, 8, 8, dtype=torch.bool)
    return _world(config, [3, tiles, 3], device, pixel_values=_noise(1, 2, 3, 8, 8), pixel_attention_mask=mask)


def gemma3(device: str) -> World:
    """Gemma 3: sliding windows, and bidirectional attention among vision tokens."""
    layers = ["sliding_attention", "full_attention", "sliding_attention"]
    config = hf.Gemma3Config(
        text_config=hf.Gemma3TextConfig(**TEXT, head_dim=8, sliding_window=6, layer_types=layers),
        vision_config=TOWER | {"patch_size": 2}, mm_tokens_per_image=4, image_token_id=IMAGE, boi_token_index=START,
        eoi_token_index=END, **NO_TOKENS,
    )  # fmt: skip
    parts = [4, [START, *[IMAGE] * 4, END], 3]
    return _world(config, parts, device, pixel_values=_noise(1, 3, 8, 8), token_type_ids=None)


def paligemma(device: str) -> World:
    """PaliGemma: bidirectional attention in the whole prompt, and positions from 1."""
    tower = TOWER | {"patch_size": 4, "projection_dim": 32, "vision_use_head": False}
    config = hf.PaliGemmaConfig(
        text_config=hf.GemmaConfig(**TEXT, head_dim=8), vision_config=tower, image_token_index=IMAGE,
        projection_dim=32, hidden_size=32, **NO_TOKENS,
    )  # fmt: skip
    types = torch.zeros(1, 9, dtype=torch.long)
    return _world(config, [[IMAGE] * 4, 5], device, pixel_values=_noise(1, 3, 8, 8), token_type_ids=types)


def internvl(device: str) -> World:
    """InternVL: four patches become one token."""
    config = hf.InternVLConfig(
        vision_config=TOWER | {"image_size": [8, 8], "patch_size": [2, 2]}, text_config=hf.Qwen2Config(**TEXT),
        image_token_id=IMAGE, image_seq_length=4,
    )  # fmt: skip
    return _world(config, [3, [IMAGE] * 4, 3], device, pixel_values=_noise(1, 3, 8, 8))


def _noise(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(7), dtype=torch.float64)


def _world(config: Any, parts: list[Any], device: str, **more: Tensor | None) -> World:
    """Return a random model and a prompt's tensors. `parts`: lengths of text; None stands for vision tokens."""
    model = model_helpers.random_model(config, device=device, auto=AutoModelForImageTextToText)
    ids: list[int] = []
    for i, part in enumerate(parts):
        ids += model_helpers.random_prompt(part, 60, seed=i + 1) if isinstance(part, int) else part
    marked = torch.tensor([[int(t == IMAGE) for t in ids]])
    own = {"input_ids": torch.tensor([ids]), "attention_mask": torch.ones(1, len(ids), dtype=torch.long)}
    return model, {name: (marked if v is None else v).to(device) for name, v in (own | more).items()}


def ask_with_pixels(model: Any, inputs: dict[str, Tensor]) -> Any:
    """Return a function ids → logits after the last one, by a whole forward pass with pixels, without a cache."""
    text = int(model.config.model_type == "paligemma")  # marks text after the prompt

    def ask(ids: list[int]) -> Tensor:
        whole = torch.tensor([ids], device=model.device)
        more = {k: v for k, v in inputs.items() if k not in ("input_ids", "attention_mask")}
        for name in ("mm_token_type_ids", "token_type_ids"):
            if name in more:
                behind = torch.full((1, len(ids) - more[name].shape[1]), text, device=model.device)
                more[name] = torch.cat([more[name], behind], 1)
        with torch.inference_mode():
            return model(input_ids=whole, attention_mask=torch.ones_like(whole), use_cache=False, **more).logits[0, -1]

    return ask


WORLDS = {
    "llava": llava, "llava-next": llava_next, "qwen2.5-vl": qwen, "qwen3-vl": qwen3, "idefics3": idefics3,
    "smolvlm": smolvlm, "gemma3": gemma3, "paligemma": paligemma, "internvl": internvl,
}  # fmt: skip
SEEN = {
    "llava": ([(2, 2)], [(4, 8)]), "llava-next": ([(1, 16)], [(4, 20)]), "idefics3": ([(1, 8)], [(4, 13)]),
    "qwen2.5-vl": ([(2, 3), (1, 2)], [(3, 9), (13, 15)]), "qwen3-vl": ([(2, 3), (1, 2)], [(3, 9), (13, 15)]),
    "smolvlm": ([(1, 8)], [(4, 13)]), "gemma3": ([(2, 2)], [(5, 9)]), "paligemma": ([(2, 2)], [(0, 4)]),
    "internvl": ([(2, 2)], [(3, 7)]),
}  # fmt: skip


@pytest.mark.parametrize("name", WORLDS)
def test_trees_after_images_equal_full_forwards_of_each_path(name: str, device: str) -> None:
    model, inputs = WORLDS[name](device)
    ask = ask_with_pixels(model, inputs)
    runner = Runner(model)
    other, slot = runner.open(), runner.open()  # a text-only sequence beside the one with images
    words = model_helpers.random_prompt(5, 60, seed=9)
    runner.prefill(other, words[:-1])
    prefill_images(runner, slot, inputs)
    text = inputs["input_ids"][0].tolist()
    seen = slot.image_prefill
    assert seen is not None
    assert (seen.grids, seen.spans) == SEEN[name]
    assert seen.is_vision.tolist() == [t == IMAGE for t in text]
    assert float((runner.lm_head(seen.features[-1]) - ask(text)).abs().max()) < 1e-12
    assert seen.embeds.shape == seen.features.shape == (len(text), 32)
    parents, path = [-1, -1, 0, 0, 1, 2, 5], [0, 2, 5]
    for turn in range(2):
        draft = model_helpers.random_prompt(7, 60, seed=20 + turn)
        alone = model_helpers.tree_segment(other, words[-1], draft[:1], [-1], device)
        out = runner.forward([alone, model_helpers.tree_segment(slot, text[-1], draft, parents, device)])
        error = model_helpers.tree_error(out.logits[1], text, draft, parents, ask)
        assert error < 1e-12, f"turn {turn}: {error}"
        if name != "paligemma":  # this family reads no text without an image
            plain = model_helpers.next_logits_function(model)
            assert float((out.logits[0, 1] - plain([*words, draft[0]])).abs().max()) < 1e-12
        runner.commit(slot, [0, *(node + 1 for node in path)])
        text += [draft[i] for i in path] + model_helpers.random_prompt(1, 60, seed=40 + turn)
        runner.commit(other, [0, 1])
        words += [draft[0], *model_helpers.random_prompt(1, 60, seed=50 + turn)]
    alone_again = model_helpers.tree_segment(
        slot, text[-1], [3, 5, 7], [-1, 0, 0], device
    )  # one sequence, the usual case
    assert model_helpers.tree_error(runner.forward([alone_again]).logits[0], text, [3, 5, 7], [-1, 0, 0], ask) < 1e-12


@pytest.mark.parametrize("name", WORLDS)
def test_generation_with_images_equals_hugging_face(name: str, device: str, tmp_path: Path) -> None:
    model, inputs = WORLDS[name](device)
    with torch.inference_mode():
        config = hf.GenerationConfig(max_new_tokens=20, do_sample=False, pad_token_id=0)
        wanted = model.generate(**inputs, generation_config=config)[0, inputs["input_ids"].shape[1] :].tolist()
    models = Models(Runner(model), model_helpers.letter_tokenizer(64), name)
    models.heads = {"medusa": model_helpers.write_random_medusa(tmp_path / "medusa", models)}
    models.drafter = Runner(model_helpers.family("llama", seed=3, device=device))
    engine = Engine(models)
    thorough = name in ("llava", "qwen2.5-vl")
    few = [registry.get("draft-tree"), registry.get("prompt-lookup")]
    for method in model_helpers.speculative_methods() if thorough else few:
        if models.unsupported_reason(method.needs):
            continue
        trace = engine.generate(Request([], method, max_new_tokens=20, image_inputs=inputs))
        assert trace.token_ids == wanted, method.name
    text = Request(model_helpers.repeating_prompt(9), registry.get("prompt-lookup"), max_new_tokens=8)
    if name == "paligemma":
        with pytest.raises(PromptError, match="only together with an image"):
            engine.submit(text)
    else:
        assert engine.generate(text).token_ids == model_helpers.hf_greedy(model, model_helpers.repeating_prompt(9), 8)


def test_family_that_cannot_continue_after_images_is_refused_by_name(device: str, monkeypatch: Any) -> None:
    tower = {
        "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_global_layers": 1,
        "attention_heads": 2, "image_size": 8, "patch_size": 4, "vision_output_dim": 32,
        "intermediate_layers_indices": [0], "max_num_tiles": 1, "supported_aspect_ratios": [[1, 1]],
    }  # fmt: skip
    text = {k: v for k, v in TEXT.items() if v is not None} | {"cross_attention_layers": [1], "pad_token_id": 0}
    config = hf.MllamaConfig(vision_config=tower, text_config=text, image_token_index=IMAGE)
    model = model_helpers.random_model(config, device=device, auto=AutoModelForImageTextToText)
    runner = Runner(model)
    with pytest.raises(ModelError, match=r"Mllama.*cross-attention"):
        prefill_images(runner, runner.open(), {"input_ids": torch.tensor([[IMAGE, 1, 2]])})
    # A model with its own way of counting positions is detected, whatever its name.
    model, inputs = paligemma(device)
    runner = Runner(model)
    forward = model.model.language_model.forward
    monkeypatch.setattr(
        model.model.language_model, "forward",
        lambda *a, position_ids, **kw: forward(*a, position_ids=position_ids**2, **kw),
    )  # fmt: skip
    with pytest.raises(ModelError, match=r"PaliGemma.* cannot verify drafts after images"):
        prefill_images(runner, runner.open(), inputs)


def test_prompt_with_images_that_does_not_fit_is_an_error(device: str) -> None:
    model, inputs = llava(device)
    engine = Engine(Models(Runner(model, context=10), model_helpers.letter_tokenizer(64), "llava"))
    with pytest.raises(PromptError, match="11 tokens"):
        engine.submit(Request([], registry.get("autoregressive"), image_inputs=inputs))
