"""SpecDec++: a trained head predicts each draft's acceptance, and drafting stops when a rejection is likely."""

from __future__ import annotations

from collections import abc
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from workbench.core.errors import ModelError
from workbench.core.params import param
from workbench.decoders.declarations import WRONG_SCALE, Claim, Head
from workbench.decoders.draft_verify.parts import Plan, Policy, RoundFeedback
from workbench.decoders.draft_verify.tree_building import Step
from workbench.engine.request import Sequence
from workbench.methods.common.trained_net import TrainedNet, load_trained
from workbench.methods.policies.fixed import BEST_OF
from workbench.models.loading import Models

TRAIN_ADVICE = "Train an acceptance head for this draft model: workbench train acceptance."


class AcceptanceHead(TrainedNet):
    """Acceptance head: D residual blocks x + SiLU(W x + b) on the draft model's last hidden state, then one output.

    The paper's code ends with two outputs and a softmax, which equals one output and a sigmoid. It also applies one
    block D times; here each of the D blocks has its own weights unless `tied`.

    Args:
        width: the draft model's hidden size.
        blocks: number of blocks D.
        tied: whether all D blocks share their weights.
        context: unused; all nets have this argument.

    Source: Huang et al. 2025, SpecDec++, arXiv:2405.19715, §3.2.
    """

    kind: ClassVar[str] = "acceptance"

    def __init__(self, width: int, blocks: int = 3, tied: bool = False, context: int = 1024) -> None:
        super().__init__()
        self.width, self.n_blocks, self.tied = width, blocks, tied
        self.blocks = nn.ModuleList(nn.Linear(width, width) for _ in range(1 if tied else blocks))
        self.last = nn.Linear(width, 1)

    def forward(self, x: Float[Tensor, "*b D"]) -> Float[Tensor, "*b"]:
        """Return the log-odds that a draft token is accepted, given that all earlier draft tokens were accepted.

        Args:
            x: the draft model's last hidden states at the draft tokens.
        """
        for i in range(self.n_blocks):
            x = x + nn.functional.silu(self.blocks[0 if self.tied else i](x))
        return self.last(x).squeeze(-1)

    @property
    def sizes(self) -> dict[str, Any]:
        """Return the constructor arguments that rebuild the acceptance head."""
        return {"width": self.width, "blocks": self.n_blocks, "tied": self.tied}


LITTLE = (
    f"{WRONG_SCALE}: the acceptance head used predicts little (accuracy {{}} %; a constant answer reaches {{}} %) and "
    "runs after every draft token."
)


@dataclass(frozen=True)
class SpecDecPlusPlus(Policy):
    """Stop drafting once 1 − ∏ p̂ᵢ > h, the predicted probability of a rejection.

    p̂ᵢ is a trained head's probability that drafted token i is accepted if all earlier ones are.

    In the paper's cost model the optimal rule has this form. The head reads the draft model's hidden state at the
    newest drafted token. So each token is scored before the next one is drafted; the paper's code scores it one step
    later. Tokens that were drafted are never dropped, so the stop does not bias the output, and sampling stays exact.
    In a tree, the highest p̂ of each level is used. On a GPU each test costs a synchronisation.

    Source: Huang et al. 2025, SpecDec++, arXiv:2405.19715, §3.1 (rule), §3.2 (head).
    """

    name: ClassVar[str] = "specdec++"
    needs: ClassVar[tuple[str, ...]] = (AcceptanceHead.kind,)
    head: ClassVar[Head | None] = Head(
        AcceptanceHead,
        "SpecDec++'s acceptance head (Huang et al. 2025, arXiv 2405.19715): {blocks} residual blocks on the draft "
        "model's last hidden state.",
        recipe="acceptance",
    )
    risk: float = param(
        0.7, ge=0.05, le=1.0, doc="h, stop drafting when the predicted probability of a rejection is above this"
    )
    shortest: int = param(2, ge=1, le=8, doc="minimum number of draft tokens per round")
    longest: int = param(16, ge=1, le=20, doc="maximum number of draft tokens per round")
    claims: ClassVar[tuple[Claim, ...]] = (
        Claim(
            "tokens per second relative to the best fixed draft length, temperature 1",
            "LLaMA-2-chat 7B → 70B, Alpaca", 1.072,
            1.072, "Huang et al. 2025, arXiv:2405.19715, abstract: 7.2 % faster (GSM8K 9.4 %, HumanEval 11.1 %)",
            lambda lab: lab.speed_over({"policy": "specdec++"}, BEST_OF, temperature=1.0),
            key="specdec++", timed=True, tolerance=0.05, method="draft-model",
            explanation=("2026-11-24 17:44 UTC", LITTLE.format("86.7", "83.1")),
            explanation_by_column={"smollm2": ("2026-11-26 16:53 UTC", LITTLE.format("71.3", "70.1"))},
        ),
    )  # fmt: skip

    def init_state(self) -> list[Tensor | None]:
        """Return the policy's state: a list with the probability that all drafted tokens of the round are accepted.

        The probability is None before the first drafted token.
        """
        return [None]

    def plan(self, sequence: Sequence, state: list[Tensor | None], batch: abc.Sequence[Sequence] = ()) -> Plan:
        """Return a plan with `longest` draft levels and early stopping."""
        state[0] = None
        return Plan(self.longest, can_stop_early=True)

    def should_continue(self, sequence: Sequence, state: list[Tensor | None], step: Step) -> Bool[Tensor, ""]:
        """Return whether drafting should continue: a rejection is unlikely, or the draft is shorter than `shortest`.

        Raises:
            ModelError: the drafter provides no hidden states, or the head was trained for another hidden size.
        """
        accept_prob = acceptance_probs(sequence.models, step.hidden).amax()
        state[0] = accept_prob if state[0] is None else state[0] * accept_prob
        if step.level < self.shortest:
            return torch.ones((), dtype=torch.bool, device=accept_prob.device)
        return 1 - state[0] <= self.risk

    def observe(self, sequence: Sequence, state: list[Tensor | None], feedback: RoundFeedback) -> None:
        """Record in the trace the predicted probability that at least one of the round's drafts is rejected."""
        if state[0] is not None:
            sequence.report.signals["probability of a rejection (1 − ∏ p̂)"] = 1 - float(state[0])


def acceptance_probs(models: Models, hidden: Float[Tensor, "w D"] | None) -> Float[Tensor, " w"]:
    """Return the acceptance head's probability that each of w drafted tokens is accepted, float32.

    Args:
        models: models that include an acceptance head.
        hidden: the draft model's last hidden states at the drafts.

    Raises:
        ModelError: the drafter provides no hidden states, or the head was trained for another hidden size.
    """
    net = load_trained(AcceptanceHead, models, "acceptance head", TRAIN_ADVICE)
    if hidden is None or hidden.shape[1] != net.width:
        width = "no" if hidden is None else f"{hidden.shape[1]}"
        raise ModelError(
            f"This acceptance head reads hidden states of width {net.width}; the drafter provides {width}.",
            TRAIN_ADVICE,
        )
    return net(hidden.to(net.last.weight.dtype)).float().sigmoid()
