"""Judge Decoding: a trained linear classifier accepts correct drafts that the exact rule would reject."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from workbench.core.params import param
from workbench.core.rejection import AcceptanceDecision, RuleExplanation
from workbench.core.rules import GREEDY, POINT, POINT_RESIDUAL, RATIO, RESIDUAL, Rule
from workbench.core.sibling_groups import ranks
from workbench.decoders.declarations import Claim, Head
from workbench.decoders.draft_verify.parts import Verification, Verifier, verify_lossless
from workbench.engine.request import Sequence
from workbench.methods.common.trained_net import TrainedNet, load_trained
from workbench.methods.verifiers.answers import at_matched_accuracy
from workbench.methods.verifiers.siblings import has_target_token_sibling
from workbench.models.loading import Models

SOURCE = "Bachmann et al. 2025, Judge Decoding, arXiv:2501.19309"
LABELS = "Garipov et al. 2025, AutoJudge, arXiv:2504.20039"
_SEEN = {"j": "judged", "δ": "judge_threshold"}
GOOD = Rule(
    "judged-good",
    "Accepted by the judge",
    "j > δ",
    _SEEN,
    "A linear judge reads the hidden states at this draft; its score j is the estimated probability that the draft "
    "does not change the answer. If j is above δ, the draft is accepted, whatever token the target would "
    "choose. The output does not follow the target's distribution.",
    source=SOURCE,
)


def _unjudged_rule(rule: Rule) -> Rule:
    """Return an exact rule's explanation with title and text adapted to drafts that the judge does not accept."""
    return replace(
        rule,
        name=f"unjudged-{rule.name}",
        title=f"Not accepted by the judge: {rule.title[0].lower()}{rule.title[1:]}",
        places={**rule.places, **_SEEN},
        says=f"The judge's score j is not above δ, so the exact rule decides. {rule.says}",
        leviathan=False,  # the sample lacks drafts that the judge accepts
    )


UNJUDGED = {rule.name: _unjudged_rule(rule) for rule in (GREEDY, RATIO, RESIDUAL, POINT, POINT_RESIDUAL)}


class JudgeHead(TrainedNet):
    """Judge head: a linear classifier that predicts from hidden states whether a drafted token changes no answer.

    One linear unit reads the target's hidden state alone. If `draft_width` is given, a second unit reads the hidden
    states of the target and of the draft model.

    Args:
        width: the target's hidden size.
        draft_width: the draft model's hidden size; 0: the judge reads the target's hidden state alone.
        context: unused; the constructors of all nets have this argument.

    Source: Bachmann et al. 2025, Judge Decoding, arXiv:2501.19309, §4 (target alone); Garipov et al. 2025, AutoJudge,
    arXiv:2504.20039 (both models).
    """

    kind: ClassVar[str] = "judge"

    def __init__(self, width: int, draft_width: int = 0, context: int = 1024) -> None:
        super().__init__()
        self.width, self.draft_width = width, draft_width
        self.weight, self.bias = nn.Parameter(torch.zeros(width)), nn.Parameter(torch.zeros(()))
        if draft_width:
            self.both = nn.Parameter(torch.zeros(width + draft_width))
            self.both_bias = nn.Parameter(torch.zeros(()))

    def forward(self, x: Float[Tensor, "*b D"], draft: Float[Tensor, "*b E"] | None = None) -> Float[Tensor, "*b"]:
        """Return the judge's log-odds that the token at each position changes no answer.

        The result is float32 or float64, because half precision is too coarse for the comparison with a threshold.

        Args:
            x: the target's last hidden states, D = `width`.
            draft: the draft model's last hidden states at the same tokens, E = `draft_width`. None: they are not
                available, and the unit for the target alone is used.
        """
        wide = torch.promote_types(x.dtype, torch.float32)
        if draft is None or not self.draft_width:
            return x.to(wide) @ self.weight.to(wide) + self.bias.to(wide)
        return torch.cat([x.to(wide), draft.to(wide)], -1) @ self.both.to(wide) + self.both_bias.to(wide)

    @property
    def sizes(self) -> dict[str, Any]:
        """Return the constructor arguments that rebuild the judge head."""
        return {"width": self.width} | ({"draft_width": self.draft_width} if self.draft_width else {})


@dataclass(frozen=True)
class Judge(Verifier):
    """Accept x if the judge's score σ(w·e + b) > δ, with e the hidden states at x; otherwise the exact rule decides.

    e is the target's last hidden state, which the verifying pass has computed already. If the judge was trained with
    this draft model and the draft is a chain, e also contains the draft model's hidden state. This costs one more pass
    of the draft model per round. The bias of a judge trained here is set so that at δ = 0.5 at most 1 % of the wrong
    tokens in its calibration set pass. After a rejection the next token is drawn from the exact rule's residual. δ = 1
    is the exact rule, greedy and sampled. With a smaller δ greedy text may differ from the target's.

    The deviation of a round is the probability that the exact rule would have rejected the drafts that the judge
    accepted, summed over the tests. This sum is also the expected gain in accepted drafts. At a position with one draft
    the deviation is, on average, the total variation from the target's distribution; with siblings it is an upper
    bound. The judge never accepts a token that a logits processor forbids.

    Source: Bachmann et al. 2025, Judge Decoding, arXiv:2501.19309, for greedy chains; the use of both models' hidden
    states and the labels are those of Garipov et al. 2025, AutoJudge, arXiv:2504.20039. e is taken after the final
    norm, as in AutoJudge's code. Among greedy siblings the target's own token has priority, so that no round is shorter
    than under the exact rule; sampled siblings are tested in their order.
    """

    name: ClassVar[str] = "judge"
    needs: ClassVar[tuple[str, ...]] = (JudgeHead.kind,)
    head: ClassVar[Head | None] = Head(
        JudgeHead,
        "A linear judge (Judge Decoding, Bachmann et al. 2025, arXiv 2501.19309) on the target's last hidden state.",
        recipe="judge",
    )
    keeps_greedy: ClassVar[bool] = False
    claims: ClassVar[tuple[Claim, ...]] = (
        at_matched_accuracy(
            "judge", ({"judge_threshold": 0.9}, {"judge_threshold": 0.7}, {}),
            "Llama 3.1 405B with an 8B drafter: 19.7 tokens accepted per round against 6.3, accuracy nearly the same",
            f"{SOURCE}, tables of results (from memory; counts include the target's own token)",
            2.8, 2.8, temperature=0.0, exact={"policy": "fixed", "depth": 16},
        ),
    )  # fmt: skip
    judge_threshold: float = param(
        0.5, ge=0.0, le=1.0, doc="δ, accept draft tokens if the judge's score is above this; 1 is exact"
    )

    def reads_draft_states(self, models: Models) -> bool:
        """Return whether the judge was trained with the hidden states of the draft model in `models`."""
        info = models.heads.get(JudgeHead.kind)
        if info is None or models.drafter is None:
            return False
        is_same = info.config.get("draft_model") == models.drafter_name
        return is_same and info.config["net"].get("draft_width") == models.drafter.hidden_size

    def init_state(self, sequence: Sequence, models: Models) -> JudgeHead:
        """Return the trained judge head, which is loaded once and shared by all sequences."""
        return load_trained(JudgeHead, models, "judge", "Train the head again for this target: workbench train judge.")

    def rule(self, v: Verification) -> AcceptanceDecision:
        """Accept a draft node with probability 1 if the judge accepts it, otherwise with that of the exact rule."""
        tree = v.tree
        exact = verify_lossless(v)
        if exact.explanation is None or v.hidden is None or not len(tree):
            return exact.without_error
        scores = v.state(v.hidden[1:], tree.states).sigmoid().to(v.p.dtype)
        is_good = scores > self.judge_threshold
        is_good &= ~v.logits[tree.parents + 1, tree.tokens].isneginf()
        if v.u_bonus is None:
            is_good &= ~has_target_token_sibling(tree, exact.accept)
        rules = exact.explanation.rules
        rule_of_node = torch.where(is_good, len(rules), ranks(tree.parents).clamp_max(len(rules) - 1))
        inputs = {**exact.explanation.inputs, "judged": scores}
        return AcceptanceDecision(
            torch.where(is_good, 1.0, exact.accept),
            exact.bonus,
            explanation=RuleExplanation((*(UNJUDGED[rule.name] for rule in rules), GOOD), inputs, rule_of_node),
            distribution_error=torch.where(is_good, 1 - exact.accept, 0.0),
            is_upper_bound=v.u_bonus is not None and tree.fanout > 1,
        )
