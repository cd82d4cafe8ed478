"""Keep a draft model's KV cache in step with a sequence's committed tokens."""

from __future__ import annotations

import time

import torch

from workbench.core.errors import MethodUnavailableError
from workbench.core.transfer import listed, to_device
from workbench.decoders.draft_verify.drafter_vision import see
from workbench.decoders.draft_verify.feedback import RoundFeedback
from workbench.engine.image_inputs import process, text_only, translated
from workbench.engine.image_trace import position_bytes
from workbench.engine.request import Row
from workbench.kernels.segment import Slot
from workbench.models.image_prefill import prefill_pictures
from workbench.models.loading import Models


def keep_chain(row: Row, slot: Slot, outcome: RoundFeedback) -> None:
    """Keep a drafted chain's KV cache entries up to the last accepted token: catch-up tokens, then accepted drafts."""
    catch_up = len(row.committed) - len(outcome.emitted) - slot.length - slot.shift
    n_drafts = max(0, slot.scratch - catch_up)
    slot.length += catch_up + min(len(outcome.verdict.path), n_drafts) if slot.scratch else 0
    slot.scratch = 0


def reach_of(row: Row, slot: Slot) -> int:
    """Return the number of levels that fit the draft model's context.

    The first level needs room for the committed tokens, and each further level for one token more.
    """
    assert row.models.drafter is not None
    return row.models.drafter.context - (len(row.committed) - slot.shift) + 1


def read_committed(row: Row, models: Models, blind: bool = False) -> Slot:
    """Return a new slot of the draft model's KV cache, prefilled with all committed tokens but the last.

    For a prompt with images, a draft model that has a processor reads the images through it; any other draft model, or
    any with `blind`, reads the text alone.

    Raises:
        ContextError: the draft model has no positions for all of it.
    """
    assert models.drafter is not None
    slot = models.drafter.open(id(row))
    try:
        _read_into(slot, row, models, blind)
    except BaseException:  # on any error: only this function can free the slot
        models.drafter.close(slot)
        raise
    return slot


def _read_into(slot: Slot, row: Row, models: Models, blind: bool) -> None:
    runner = models.drafter
    assert runner is not None
    if row.images is None:
        if len(row.committed) > 1:
            runner.prefill(slot, row.committed[:-1])
        return
    if blind or models.drafter_processor is None:
        prompt = _text_of(row, models)
        start = time.perf_counter()
        if len(prompt) > 1:
            runner.prefill(slot, prompt[:-1])
        n_vision, seconds = 0, time.perf_counter() - start
    else:
        inputs = read_pictures(row, models)
        prefill_pictures(runner, slot, inputs)
        assert slot.pictured is not None
        prompt, n_vision, seconds = listed(inputs["input_ids"][0]), slot.pictured.n_vision, slot.pictured.seconds
    slot.shift = row.prompt_length - len(prompt)
    if row.n_new:
        runner.prefill(slot, row.committed[slot.length + slot.shift : -1])
    see(row, n_drafter=n_vision, drafter_bytes=n_vision * position_bytes(runner), drafter_prefill_s=seconds)


def _text_of(row: Row, models: Models) -> list[int]:
    """Return the prompt without images; its last token stays the same, since the first round reads it again."""
    tokens = text_only(models, row.request.prompt if len(row.request.prompt) else row.committed[: row.prompt_length])
    last = row.committed[row.prompt_length - 1]
    return tokens if tokens and tokens[-1] == last else [*tokens, last]


def read_pictures(row: Row, models: Models) -> dict[str, torch.Tensor]:
    """Return the output of the draft model's own processor for the sequence's prompt and images.

    Raises:
        MethodUnavailableError: the request has only the target's image tensors, or the models end the prompt
            differently.
    """
    if not row.pictures:
        raise MethodUnavailableError(
            f"{models.drafter_name} reads images with its own processor, but only the target's tensors were given.",
            "Give Request.pictures as well.",
        )
    prompt = translated(models.processor, models.drafter_processor, row.request.prompt)
    inputs = process(models.drafter_processor, prompt, row.pictures)
    if int(inputs["input_ids"][0, -1]) != row.committed[row.prompt_length - 1]:
        raise MethodUnavailableError(
            f"{models.drafter_name} and {models.target_name} end a prompt with images by different tokens.",
            "Choose a draft model of the target's family.",
        )
    return inputs


def unread(row: Row, models: Models, slot: Slot) -> torch.Tensor:
    """Return committed tokens that the draft model's cache lacks, int64 [n], n ≥ 1."""
    assert models.drafter is not None
    slot.scratch = 0
    return to_device(row.committed[slot.length + slot.shift :], models.drafter.device)
