"""Prefill: the target's first pass over the prompt, in chunks, so that other sequences decode in between."""

from __future__ import annotations

from typing import TYPE_CHECKING

from workbench.engine.image_inputs import image_token_counts
from workbench.engine.request import Sequence
from workbench.engine.request_options import prefill_with_logprobs
from workbench.models.image_prefill import prefill_images

if TYPE_CHECKING:
    from workbench.engine.decoder import EngineContext

PREFILL_CHUNK = 512


def prefill_chunk(sequence: Sequence, context: EngineContext, most: int | None = None) -> bool:
    """Prefill the next chunk of a sequence's prompt without its last token. Return whether the prompt is finished.

    Args:
        sequence: a sequence in prefill. The chunk starts after the tokens that its slot of the KV cache contains.
        context: state of the engine, with its models.
        most: maximum number of tokens in the chunk; None or a larger number: `PREFILL_CHUNK`. A prompt with images is
            always one chunk.
    """
    slot, models = sequence.cache_slot, context.models
    if sequence.image_inputs is not None:
        counts = image_token_counts(models, sequence.image_inputs, sequence.pil_images)
        prefill_images(models.target, slot, sequence.image_inputs, counts)
        return True
    done = slot.text_length
    chunk = sequence.committed[done : min(done + min(most or PREFILL_CHUNK, PREFILL_CHUNK), sequence.prompt_length - 1)]
    n_top = sequence.request.options.prompt_logprobs
    if chunk and n_top is not None:
        scored = sequence.committed[done : done + len(chunk) + 1]
        scores = prefill_with_logprobs(models.target, slot, scored, n_top, context.token_text)
        sequence.request.prompt_logprobs.extend(scores)
    elif chunk:
        models.target.prefill(slot, chunk)
    return slot.text_length >= sequence.prompt_length - 1
