"""Entropy Adaptive Decoding: the small model writes until it is unsure of itself, then the target does."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from workbench.core.late import Late, some
from workbench.core.params import param
from workbench.core.places import later, rows
from workbench.core.rejection import Ruling
from workbench.core.rules import ALL, Rule
from workbench.core.sampling import nats
from workbench.core.transfer import listed
from workbench.engine.declared import WRONG_SCALE, Claim
from workbench.engine.models import Models
from workbench.engine.parts import Verifier
from workbench.engine.request import Row
from workbench.engine.told import Outcome, Verification
from workbench.methods.verifiers.answers import at_matched_accuracy
from workbench.methods.verifiers.handing_over import exact_ruling, handed_over, may_hand_over, unforbidden
from workbench.methods.verifiers.sums import excess, make_ready

WRITTEN = Rule(
    "small-model-writes",
    "The small model writes",
    "w = 1",
    {"w": "small_writes"},
    "The small model has the pen: the mean entropy of the last laws was low enough when it took it, and it keeps it "
    "for some tokens at least. What it writes is kept, whatever the target says of it.",
    leaves=ALL,
    source="Simonds 2025, Entropy adaptive decoding, arXiv:2502.06833",
)

SURE_AND_WRONG = (
    f"{WRONG_SCALE}: the 0.7M draft model has none of the 88 answers right by itself and writes 60 % "
    "of the tokens, surely."
)
SURE_OFTEN = (
    f"{WRONG_SCALE}: the draft model has 8M parameters and writes 35 % of the tokens; the paper's "
    "small models have billions."
)


@dataclass(frozen=True, slots=True)
class Pen:
    """Who writes the next token of a row.

    Attributes:
        small: the small model, not the target.
        since: tokens written since the pen last changed hands.
        entropies: of the last laws that tokens were drawn from, in bits, the newest last.
    """

    small: bool
    since: int
    entropies: tuple[float, ...] = ()

    @property
    def mean(self) -> float:
        """H̄ in bits; 0 where nothing was written yet."""
        return math.fsum(self.entropies) / max(1, len(self.entropies))

    def wrote(self, entropy: float, rule: EntropyAdaptive) -> Pen:
        """Behind one more token of its holder, drawn from a law of that entropy: it may change hands."""
        last = (*self.entropies, entropy)[-rule.entropy_window :]
        held = Pen(self.small, self.since + 1, last)
        small = held.mean < rule.mean_entropy
        return Pen(small, 0, last) if small is not self.small and held.since >= rule.least_run else held


@dataclass(slots=True)
class Writing:
    """What the verifier remembers of a row.

    Attributes:
        pen: behind the last committed token.
        then: of the draft that was ruled on last, the pen behind the root and behind each node.
        target: entropy in bits of the target's law at the same places.
    """

    pen: Pen
    then: Sequence[Pen] = ()
    target: Sequence[float] = ()


@dataclass(frozen=True)
class EntropyAdaptive(Verifier):
    """Keep what the drafter writes while the mean entropy H̄ of the last w laws stays below a threshold.

    The entropies are those of whoever writes: the small model's laws for its tokens, the target's for its own. Where
    H̄ ≥ τ the target takes the pen, where H̄ < τ the small model does, but not before d tokens since the last change.
    While the target has it drafts are judged exactly, so that its stretches have its own law and still cost less than
    a pass a token. τ = 0 is exact: the target begins, and never hands over. What a round pays is, summed over the
    tokens that the small model wrote, the total variation between its law and the target's (at temperature 0: how many
    of them are not the target's).

    Chains that carry their drafter's laws alone are handed over; trees, and drafts without laws, are judged exactly.
    The rule is followed on the host, which costs a second synchronisation a round on a GPU.

    Source: Simonds 2025, arXiv:2502.06833. There no token of the target's stretches is drafted, and the target reads
    what it missed when it takes over: here it reads every round's draft, and its own token ends each round.
    """

    name: ClassVar[str] = "entropy-adaptive"
    claims: ClassVar[tuple[Claim, ...]] = (
        at_matched_accuracy(
            "entropy-adaptive", ({"mean_entropy": 0.1}, {"mean_entropy": 0.5}, {}),
            "Llama and Qwen pairs, MATH: the small model writes a third to a half, 92.9 and 96.7 % of the accuracy",
            "Simonds 2025, arXiv:2502.06833, results (recalled; direction)", temperature=0.0,
        ),
    )  # fmt: skip
    reads_laws: ClassVar[bool] = True
    keeps_greedy: ClassVar[bool] = False
    mean_entropy: float = param(
        1.5,
        ge=0.0,
        le=16.0,
        doc="τ, in bits: mean entropy below which the small model writes; 0 is exact",
    )
    entropy_window: int = param(5, ge=1, le=32, doc="w, laws that the mean entropy is taken over, in tokens")
    least_run: int = param(5, ge=1, le=64, doc="d, least tokens between two changes of the writer")

    def prime(self, row: Row, models: Models) -> Writing:
        """The target has read the text, and begins; it may hand over behind its first token."""
        make_ready(models.target.device)
        return Writing(Pen(small=False, since=self.least_run))

    def rule(self, v: Verification) -> Ruling:
        """The exact rule, but for the nodes that the small model writes."""
        tree, state, exact = v.tree, v.state, exact_ruling(v)
        state.target = listed(v.entropies() / math.log(2))
        state.then = (state.pen,)
        if not may_hand_over(tree, exact):
            state.then = [state.pen] * (len(tree) + 1)
            return exact.for_nothing
        assert tree.q is not None
        q = tree.q.to(v.p.dtype)
        own = later(len(tree), lambda node: bits(rows(q, node)), q, late=True)
        own = own if isinstance(own, Late) else listed(own)
        small, pens = list[bool](), [state.pen]
        for node in range(len(tree)):
            pen = pens[-1]
            if pen.small:  # it keeps it for the rest of its run at least, whose laws are looked at together
                some(own, range(node, min(len(tree), node + max(1, self.least_run - pen.since))))
            small.append(pen.small)
            pens.append(pen.wrote(own[node] if pen.small else state.target[node], self))
        state.then = pens
        writes = torch.tensor(small, device=v.p.device)
        writes &= unforbidden(v)

        def apart(node: Int[Tensor, " k"]) -> Float[Tensor, " k"]:
            over = excess(rows(q, node), rows(v.p, node), q.new_ones(len(node), 1)).squeeze(1)
            return torch.where(writes[node], over, 0.0)

        greedy = v.u_stop is None
        paid = torch.where(writes, 1 - exact.accept, 0.0) if greedy else later(len(tree), apart, v.p, v.late)
        return handed_over(exact, writes, WRITTEN, {"small_writes": writes.to(v.p.dtype)}, paid)

    def observe(self, row: Row, outcome: Outcome) -> None:
        """The pen behind what was kept, and behind the token with which the target ends the round."""
        state: Writing = row.verifier_state
        path = outcome.verdict.path
        at = path[-1] + 1 if path else 0
        pen = state.then[at]
        own = sum(state.then[node].small for node in path)
        state.pen = pen if pen.small else pen.wrote(state.target[at], self)
        row.signals["tokens of the small model's own"] = own
        row.signals["mean entropy (bits)"] = state.pen.mean


def bits(p: Float[Tensor, "n V"]) -> Float[Tensor, " n"]:
    """Entropy of each law in bits.

    Example:
        >>> bits(torch.tensor([[0.5, 0.3, 0.15, 0.05], [0.25, 0.25, 0.25, 0.25]]))
        tensor([1.6477, 2.0000])
    """
    return nats(p) / math.log(2)
