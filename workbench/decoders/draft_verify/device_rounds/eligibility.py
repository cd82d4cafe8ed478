"""Conditions under which a sequence's rounds can stay on the device."""

from __future__ import annotations

from typing import TYPE_CHECKING

from workbench.decoders.draft_verify.parts import Part, Policy, TreeBuilder, Verifier
from workbench.decoders.draft_verify.tentative_tokens import has_tentative

if TYPE_CHECKING:
    from workbench.engine.request import Sequence


def why_not_on_device(sequence: Sequence) -> str:
    """Return why the host must read every round of a sequence before the next one; "" if it need not.

    Verifier, policy and tree builder decide by what they declare; `Drafter.runs_on_device` answers for the drafter.
    """
    verifier, sampling, models, state = sequence.verifier, sequence.sampling, sequence.models, sequence.state
    target, request, builder = models.target, sequence.request, sequence.configured_method.tree_builder
    if not sequence.policy.is_constant or type(sequence.policy).observe is not Policy.observe:
        return "the policy reads the results of every round"
    if type(verifier).walk is not Verifier.walk or type(verifier).observe is not Verifier.observe:
        return "the verifier needs the results of every round on the host"
    if verifier.max_tentative() or type(verifier).probes is not Part.probes:
        return "the verifier has tentative (revocable) tokens, or probe positions, which are never accepted"
    if builder is not None and not (builder.has_fixed_shape and type(builder).observe is TreeBuilder.observe):
        return "the tree builder reads the results of every round"
    if type(sequence.drafter).probes is not Part.probes:
        return "the drafter has probe positions, which are never accepted"
    if has_tentative(sequence):
        return "some tokens are tentative"
    if sampling.needs_history:
        return "penalties and logits processors read the text"
    if request.options.logprobs is not None:
        return "log-probabilities are computed on the host"
    if sequence.image_inputs is not None:
        return "the prompt contains images"
    if sequence.pace.is_slowed:
        return "the run is slowed down to a set number of tokens per second"
    if state.inactive or state.no_draft_reason:
        return "an inactive drafter needs the results of every round"
    if sequence.cache_slot.retention is not None:
        return "entries of the KV cache are dropped"
    return target.geometry.why_not_on_device
