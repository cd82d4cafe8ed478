"""Diagnosis of differences between a greedy run and plain decoding: rounding errors or a bug.

In half precision two ways of computing the same logits can round differently, so that texts diverge where two tokens
are almost equally probable. Plain decoding is computed at every position of the run's text. Wherever plain decoding
would have generated another token, plain decoding from that prefix is computed again in other ways: in one forward
pass, and in passes as long as those of the run. Drafts and verifiers are not involved. If one of these ways generates
the run's token, rounding explains the difference. If none does, it is a bug, unless the logits of the two tokens are
closer than the rounding errors at this position.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import accumulate
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from workbench.core.errors import ParameterError, WorkbenchError
from workbench.decoders.method import ConfiguredMethod
from workbench.engine import Engine, Request
from workbench.kernels.segment import Segment
from workbench.models.image_prefill import prefill_images
from workbench.models.loading import Models
from workbench.trace.events import Trace

IDENTICAL, NUMERICS, BUG = "identical", "numerics", "bug"

STEPWISE, AT_ONCE = "token by token", "with the whole prefix in one forward pass"
AS_ROUNDS = "in forward passes of the same lengths as in the run"


@dataclass(frozen=True, slots=True)
class Recomputation:
    """Next token of plain decoding, computed token by token, in one forward pass, or in passes like the run's.

    Attributes:
        how: name of the way of computing: `STEPWISE`, `AT_ONCE` or `AS_ROUNDS`.
        token: the token that plain decoding generates when computed in this way.
        gap: logit of `token` minus the logit of the run's token; 0 if they are the same token.
        lead: logit of step-by-step plain decoding's token minus the logit of the run's token, both computed in this
            way. Leads are comparable between ways.
    """

    how: str
    token: int
    gap: float
    lead: float


@dataclass(frozen=True, slots=True)
class Difference:
    """A position where plain decoding would have generated another token than the run.

    Attributes:
        at: index of the token in the text, from 0.
        round: round of the run that generated it.
        run: token of the run.
        run_text: text of the token `run`.
        plain: token of plain decoding.
        plain_text: text of the token `plain`.
        readings: next token of plain decoding after the equal prefix, computed in several ways.
        rounding: size of rounding errors here, in logits: the largest difference, between these ways, of the logit gap
            of the two tokens, and at least one step of the number format at this size of logit.
        verdict: "numerics" if rounding explains the difference, else "bug".
    """

    at: int
    round: int
    run: int
    run_text: str
    plain: int
    plain_text: str
    readings: tuple[Recomputation, ...]
    rounding: float
    verdict: str

    @property
    def gap(self) -> float:
        """Return the logit of plain decoding's token minus that of the run's token, where both texts first differ.

        Both logits come from forward passes over one token at a time.
        """
        return self.readings[0].gap

    def describe(self) -> str:
        """Return a sentence that states where the run and plain decoding differ, and why."""
        intro = f"Token {self.at + 1} (round {self.round + 1}) is {self.run_text!r}; plain decoding gives "
        gap = f"{self.plain_text!r}, whose logit is {self.gap:.4g} larger"
        agreeing = [r.how for r in self.readings if r.token == self.run]
        if self.verdict == NUMERICS and agreeing:
            explanation = (
                f"Plain decoding {' and '.join(agreeing)} also gives {self.run_text!r}, so the "
                f"difference is a rounding effect."
            )
        elif self.verdict == NUMERICS:
            explanation = (
                f"Rounding alone changes this logit difference by {self.rounding:.4g} here, so the different token "
                f"is a rounding effect."
            )
        else:
            explanation = (
                f"Plain decoding from this prefix never gives {self.run_text!r}, and rounding changes the "
                f"logit difference by only {self.rounding:.4g}, so this is a bug."
            )
        return f"{intro}{gap}. {explanation}"


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """Comparison of a run with plain decoding.

    Attributes:
        verdict: "identical"; "bug" if any position has this verdict; else "numerics" (rounding errors).
        method: registry name of the run.
        dtype: number format of the target.
        tokens: number of tokens of the run.
        differences: all differing positions, in order.
    """

    verdict: str
    method: str
    dtype: str
    tokens: int
    differences: tuple[Difference, ...]

    def to_wire(self) -> dict[str, Any]:
        """Return the comparison of the run with plain decoding as plain JSON."""
        return asdict(self) | {"words": self.sentences()}

    def sentences(self) -> list[str]:
        """Return the result of the comparison with plain decoding in words, one sentence per differing position."""
        if not self.differences:
            return [f"All {self.tokens} tokens equal those of plain decoding."]
        return [d.describe() for d in self.differences]


def diagnose(
    models: Models, method: ConfiguredMethod, prompt: Sequence[int] | str, max_new_tokens: int = 64, images: Any = None
) -> Diagnosis:
    """Run a method greedily, and compare its text with plain decoding, position by position."""
    request = Request(prompt, method, max_new_tokens=max_new_tokens, image_inputs=images)
    return examine(models, Engine(models).generate(request), images)


def examine(models: Models, trace: Trace, images: Any = None) -> Diagnosis:
    """Compare a greedy run with plain decoding by the same target, position by position.

    Args:
        models: models with the run's target, in its number format.
        trace: trace of the greedy run.
        images: the processor's output for the run's prompt, if the prompt has images.

    Raises:
        ParameterError: the run sampled, or used a repetition penalty: then there is no single text to compare.
        WorkbenchError: the run had another target or number format, the run's prompt is not recorded, or the prompt has
            images and `images` is None.
    """
    header = trace.header
    for name, neutral in (("temperature", 0.0), ("repetition_penalty", 1.0)):
        if header.params.get(name, neutral) != neutral:
            raise ParameterError(
                f"The run has {name} {header.params[name]}, with which plain decoding may give a different text.",
                "Examine a greedy run without penalties.",
            )
    dtype = str(models.target.weight_dtype).removeprefix("torch.")
    if (header.target, header.dtype) != (models.target_name, dtype):
        raise WorkbenchError(
            f"The run used {header.target} in {header.dtype}, but {models.target_name} in {dtype} is loaded.",
            "Load the target of the run, in the dtype of the run.",
        )
    if not header.prompt_tokens:
        raise WorkbenchError(
            "The trace does not contain the tokens of its prompt.", "Examine a run recorded with its prompt."
        )
    if getattr(header, "pictures", None) and images is None:
        raise WorkbenchError(
            "The run's prompt has images, which a trace does not store in full.",
            "Run the prompt again on this machine, then examine the new run.",
        )
    tokens = trace.token_ids
    stepwise = _plain_logits(models, header.prompt_tokens, tokens, [(1, 1)] * len(tokens), images)
    differences = [
        _difference(models, trace, position, stepwise[position], images)
        for position, token in enumerate(tokens)
        if int(stepwise[position].argmax()) != token
    ]
    verdict = BUG if any(d.verdict == BUG for d in differences) else NUMERICS if differences else IDENTICAL
    return Diagnosis(verdict, header.method, dtype, len(tokens), tuple(differences))


def _difference(models: Models, trace: Trace, at: int, stepwise: Tensor, images: Any) -> Difference:
    prompt, tokens = trace.header.prompt_tokens, trace.token_ids
    run, plain = tokens[at], int(stepwise.argmax())
    ends = list(accumulate(len(r.emitted) for r in trace.rounds))
    rounds = [(len(r.nodes) + 1, len(r.emitted)) for r in trace.rounds]
    index = bisect_right(ends, at)
    ways = {
        STEPWISE: stepwise,
        AT_ONCE: _plain_logits(models, prompt, tokens, [(at + 1, at + 1)], images)[at],
        AS_ROUNDS: _plain_logits(models, prompt, tokens, rounds[: index + 1], images)[at],
    }
    readings = tuple(
        Recomputation(how, int(x.argmax()), float(x.max() - x[run]), float(x[plain] - x[run]))
        for how, x in ways.items()
    )
    leads = [r.lead for r in readings]
    step = torch.finfo(models.target.dtype).eps * 2.0 ** math.floor(math.log2(max(float(stepwise.max().abs()), 1e-30)))
    rounding = max(max(leads) - min(leads), step)
    explained = any(r.token == run for r in readings) or readings[0].lead <= rounding
    decode = models.tokenizer.decode
    return Difference(
        at, index, run, decode([run]), plain, decode([plain]), readings, rounding, NUMERICS if explained else BUG
    )


@torch.inference_mode()
def _plain_logits(
    models: Models, prompt: Sequence[int], tokens: Sequence[int], forwards: Sequence[tuple[int, int]], images: Any
) -> list[Float[Tensor, " V"]]:
    """Return the logits from which plain decoding would choose each of `tokens`, in forward passes of the given sizes.

    Args:
        models: the target is used; no drafter is involved.
        prompt: token ids of the prompt.
        tokens: tokens of the text, used as inputs.
        forwards: for each forward pass (number of tokens, number of these tokens that belong to the text); the further
            tokens are padding, to which earlier tokens do not attend.
        images: the processor's output, or None.
    """
    target = models.target
    slot = target.open()
    logits_so_far: list[Tensor] = []
    try:
        if images is not None:
            prefill_images(target, slot, images)
        else:
            target.prefill(slot, prompt[:-1])
        inputs = [prompt[-1], *tokens]
        for size, n_text in forwards:
            chunk = inputs[len(logits_so_far) : len(logits_so_far) + n_text]
            if not chunk:
                break
            ids = torch.tensor(chunk + chunk[-1:] * (size - len(chunk)), device=target.device)
            logits = target.forward([Segment(slot, ids)]).logits[0, : len(chunk)]
            logits_so_far += [position_logits.float().clone() for position_logits in logits]
            target.commit(slot, range(len(chunk)))
        return logits_so_far
    finally:
        target.close(slot)
