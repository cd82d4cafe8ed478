"""Prefill a prompt with images: the model's own forward method reads the pixels and fills a sequence's KV cache."""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from workbench.core.errors import ModelError
from workbench.kernels.image_layout import ImagePrefill, layout, record_prefill_tensors, why_no_images
from workbench.kernels.kv_cache import Window
from workbench.kernels.segment import Segment, Slot
from workbench.kernels.self_test import ROUNDING, logits_error
from workbench.models.runner import Runner


@torch.inference_mode()
def prefill_images(runner: Runner, slot: Slot, inputs: dict[str, Tensor], counts: Sequence[int] | None = None) -> None:
    """Prefill a prompt with images, except its last token, which the first verification pass computes.

    Afterwards `slot.image_prefill` has the embeddings and hidden states of the prompt with its images.

    Args:
        runner: runner of a model that reads images.
        slot: empty slot of this runner.
        inputs: output of the model's processor for one prompt, including `input_ids` [1, n].
        counts: vision tokens of each image, if the tensors do not determine them; see `image_layout.layout`.

    Raises:
        ContextError: the prompt does not fit the context.
        ModelError: the model does not read images in this engine, or cannot continue token by token after them.
    """
    n, model = inputs["input_ids"].shape[1], runner.model
    runner.refuse_beyond(n)
    reason = why_no_images(model.config, type(model).__name__)
    if reason:
        raise ModelError(reason, "Remove the images, or choose a target that reads images.")
    inputs = {k: v.to(runner.device, runner.dtype if v.is_floating_point() else None) for k, v in inputs.items()}
    runner.cache.window = Window(slice(slot.index, slot.index + 1), 0, None, n)
    runner.cache.mark_written(runner.cache.window.rows, n)
    start_s, start = time.perf_counter(), runner.clock.mark()
    with record_prefill_tensors(model, runner.layers[0]) as states:
        logits = model(**inputs, past_key_values=runner.cache, use_cache=True, logits_to_keep=2).logits
    runner.meter.add(start, runner.clock.mark(), [slot.sequence_id])
    if runner.geometry.multi_rope and model.model.rope_deltas is not None:
        slot.rope_delta = int(model.model.rope_deltas[0])
    elif "places" in states:  # PaliGemma counts from 1
        slot.rope_delta = int(states["places"][0, -1]) + 1 - n
    slot.length, slot.scratch = n - 1, 0
    features = states["features"][0]
    slot.last_hidden = features[-2] if n > 1 else None
    slot.image_prefill = ImagePrefill(
        states["embeds"][0], features, *layout(model.config, inputs, counts), time.perf_counter() - start_s
    )
    if not runner.is_image_decoding_tested:
        _check_continuation(runner, slot, int(inputs["input_ids"][0, -1]), logits[0, -1])


def _check_continuation(runner: Runner, slot: Slot, last: int, wanted: Float[Tensor, " V"]) -> None:
    """Check that a model can continue after images: its logits for the prompt's last token alone equal the prefill's.

    The check runs once per model.

    Args:
        runner: runner of the model.
        slot: slot with the prefilled prompt.
        last: id of the prompt's last token.
        wanted: logits after the prompt, from the prefill.
    """
    out = runner.forward([Segment(slot, torch.tensor([last], device=runner.device))])
    slot.scratch = 0
    error = logits_error(out.logits[0, -1], wanted)
    if not error <= ROUNDING[runner.dtype]:
        slot.length = 0
        raise ModelError(
            f"{type(runner.model).__name__} cannot verify drafts after images: a token after an image has other "
            f"logits when it is processed in a separate forward pass (difference: {error:.1e} of the largest logit).",
            "Remove the images, or choose a target of another family (LLaVA, Qwen-VL, SmolVLM, Gemma 3, …).",
        )
    runner.is_image_decoding_tested = True
