"""Functions that keep a draft model's KV cache consistent with a sequence's committed tokens."""

from __future__ import annotations

import time

import torch

from workbench.core.errors import MethodUnavailableError
from workbench.core.transfer import to_list
from workbench.decoders.draft_verify.drafter_vision import report_vision
from workbench.decoders.draft_verify.parts import RoundFeedback
from workbench.engine.image_inputs import process, text_only, translate_placeholders
from workbench.engine.image_trace import position_bytes
from workbench.engine.request import Sequence
from workbench.kernels.segment import Slot
from workbench.models.image_prefill import prefill_images
from workbench.models.loading import Models


def keep_accepted_chain(sequence: Sequence, slot: Slot, feedback: RoundFeedback) -> None:
    """Retain the draft model's KV cache entries up to the last accepted token of a chain, and drop all later entries.

    The scratch part of the slot contains first the entries of committed tokens that were not cached before the draft,
    then the entries of the drafted tokens.

    Args:
        sequence: sequence after the round.
        slot: the sequence's slot of the draft model's KV cache.
        feedback: result of the round.
    """
    catch_up = len(sequence.committed) - len(feedback.emitted) - slot.length - slot.shift
    n_drafts = max(0, slot.scratch - catch_up)
    slot.length += catch_up + min(len(feedback.result.path), n_drafts) if slot.scratch else 0
    slot.scratch = 0


def max_draft_depth(sequence: Sequence, slot: Slot) -> int:
    """Return the number of draft levels that fit into the draft model's context.

    The first level needs positions for the committed tokens, and each further level for one token more.
    """
    assert sequence.models.drafter is not None
    return sequence.models.drafter.context - (len(sequence.committed) - slot.shift) + 1


def open_prefilled_slot(sequence: Sequence, models: Models, ignore_images: bool = False) -> Slot:
    """Open a slot of the draft model's KV cache, prefilled with all committed tokens but the last.

    A draft model with an image processor also reads the images of the prompt, unless `ignore_images`. Other draft
    models read the text alone.

    Raises:
        ContextError: the text is longer than the draft model's context.
    """
    assert models.drafter is not None
    slot = models.drafter.open(id(sequence))
    try:
        _read_into(slot, sequence, models, ignore_images)
    except BaseException:  # on any error: only this function can free the slot
        models.drafter.close(slot)
        raise
    return slot


def _read_into(slot: Slot, sequence: Sequence, models: Models, ignore_images: bool) -> None:
    runner = models.drafter
    assert runner is not None
    if sequence.image_inputs is None:
        if len(sequence.committed) > 1:
            runner.prefill(slot, sequence.committed[:-1])
        return
    if ignore_images or models.drafter_processor is None:
        prompt = _text_of(sequence, models)
        start = time.perf_counter()
        if len(prompt) > 1:
            runner.prefill(slot, prompt[:-1])
        n_vision, seconds = 0, time.perf_counter() - start
    else:
        inputs = process_images(sequence, models)
        prefill_images(runner, slot, inputs)
        assert slot.image_prefill is not None
        prompt, n_vision, seconds = (
            to_list(inputs["input_ids"][0]),
            slot.image_prefill.n_vision,
            slot.image_prefill.seconds,
        )
    slot.shift = sequence.prompt_length - len(prompt)
    if sequence.n_new:
        runner.prefill(slot, sequence.committed[slot.length + slot.shift : -1])
    report_vision(
        sequence, n_drafter=n_vision, drafter_bytes=n_vision * position_bytes(runner), drafter_prefill_s=seconds
    )


def _text_of(sequence: Sequence, models: Models) -> list[int]:
    """Return the tokens of the prompt without its images.

    If their last token is not the last token of the whole prompt, that token is appended, because the first round
    reads it again.
    """
    tokens = text_only(
        models,
        sequence.request.prompt if len(sequence.request.prompt) else sequence.committed[: sequence.prompt_length],
    )
    last = sequence.committed[sequence.prompt_length - 1]
    return tokens if tokens and tokens[-1] == last else [*tokens, last]


def process_images(sequence: Sequence, models: Models) -> dict[str, torch.Tensor]:
    """Return the output of the draft model's own processor for the sequence's prompt and images.

    Raises:
        MethodUnavailableError: the request has image tensors for the target instead of images, or the prompts of both
            models end with different tokens.
    """
    if not sequence.pil_images:
        raise MethodUnavailableError(
            f"{models.drafter_name} reads images with its own processor, but the request has only the target's image "
            "tensors.",
            "Give the images as Request.pil_images as well.",
        )
    prompt = translate_placeholders(models.processor, models.drafter_processor, sequence.request.prompt)
    inputs = process(models.drafter_processor, prompt, sequence.pil_images)
    if int(inputs["input_ids"][0, -1]) != sequence.committed[sequence.prompt_length - 1]:
        raise MethodUnavailableError(
            f"{models.drafter_name} and {models.target_name} end prompts that contain images with different tokens.",
            "Choose a draft model of the target's family.",
        )
    return inputs


def uncached_tokens(sequence: Sequence, models: Models, slot: Slot) -> torch.Tensor:
    """Return the committed tokens that the draft model's KV cache lacks, int64 [n] with n ≥ 1."""
    assert models.drafter is not None
    slot.scratch = 0
    return sequence.uncached_tokens(slot, models.drafter.device)
