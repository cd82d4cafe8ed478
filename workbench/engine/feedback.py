"""What parts are told of a verification and of a round, and what some of them say to it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from jaxtyping import Float, Int
from torch import Tensor

from workbench.core.probes import Probed
from workbench.core.rejection import Verdict
from workbench.core.sampling import SamplingParams, entropy_of, largest, law, likeliest, with_history
from workbench.core.tree import DraftTree
from workbench.engine.draft_plan import Plan


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a round taught, for drafters and policies that learn from it.

    Attributes:
        tokens: drafted tokens, node by node.
        parents: their parents (−1: the last committed token).
        verdict: what was kept.
        emitted: committed tokens of this round, cut at the end of the text.
        root: the token the tree hung on.
        top: the target's likeliest next tokens at the root (entry 0) and after each node, accepted or not.
        planned: the plan that was drafted to.
        hidden: what the target's LM head read at the root (row 0) and at each node, accepted or not.
        taps: index of a layer → the target's residual stream behind it at the same places, for the layers that the
            method asked for (`Part.taps`).
        probed: what came of the drafter's own probes (`Part.probes`); None where it asked for none.
        chances: the target's probabilities of `top`, as text is drawn; when greedy, the plain softmax.
    """

    tokens: list[int]
    parents: list[int]
    verdict: Verdict
    emitted: list[int]
    root: int
    top: list[list[int]]
    planned: Plan
    hidden: Float[Tensor, "N_plus_1 D"] | None = None
    taps: Mapping[int, Float[Tensor, "N_plus_1 D"]] = field(default_factory=dict)
    probed: Probed | None = None
    chances: list[list[float]] = field(default_factory=list[list[float]])

    @property
    def places(self) -> list[int]:
        """Rows of `hidden` and `taps` at which the emitted tokens were decided: the root, then the accepted nodes."""
        return [0, *(node + 1 for node in self.verdict.path)][: len(self.emitted)]


@dataclass(frozen=True, slots=True)
class Verification:
    """What a rule may read: the draft, what the target said of it, and what the verifier remembers of the row.

    Row 0 of every tensor belongs to the last committed token, row i + 1 to node i.

    Attributes:
        tree: the draft.
        said: the target's logits, after penalties and processors, or what makes them: `logits`.
        law: the law tokens are drawn from; when greedy, the plain softmax, for reading only; or what makes it: `p`.
        sampling: in force for this row.
        u_stop: uniforms for the emitted token; None when greedy.
        hidden: what the target's LM head read.
        taps: index of a layer → the target's residual stream behind it, for the layers that the method asked for.
        committed: the row's tokens, prompt included; the tree hangs on the last one. The row's own list, which grows.
        state: what the verifier's `prime` returned for this row.
        probed: what came of the verifier's own probes (`Part.probes`); None where it asked for none.
        raw: the target's logits as the model gave them; None: `logits` are.
        histories: tokens up to and including each place, where penalties or processors read them.
        entropy: of p at each place, in nats, where it is known: see `entropies`.
        late: whether the ruling's `stop` and `paid` may be `Late`. A rule that reads them of another rule's ruling
            calls it with `replace(v, late=False)`.
        best: the target's likeliest token at each place, where it is known: see `likeliest`.
    """

    tree: DraftTree
    said: Float[Tensor, "N_plus_1 V"] | Callable[[], Tensor]
    law: Float[Tensor, "N_plus_1 V"] | Callable[[], Tensor]
    sampling: SamplingParams
    u_stop: Float[Tensor, " N_plus_1"] | None
    hidden: Float[Tensor, "N_plus_1 D"] | None = None
    taps: Mapping[int, Float[Tensor, "N_plus_1 D"]] = field(default_factory=dict)
    committed: Sequence[int] = ()
    state: Any = None
    probed: Probed | None = None
    raw: Float[Tensor, "N_plus_1 V"] | None = None
    histories: Sequence[Tensor] = ()
    entropy: Float[Tensor, " N_plus_1"] | None = None
    late: bool = False
    best: Int[Tensor, " N_plus_1"] | None = None

    @property
    def logits(self) -> Float[Tensor, "N_plus_1 V"]:
        """The target's, after penalties and processors."""
        return self.said if isinstance(self.said, Tensor) else self.said()

    @property
    def p(self) -> Float[Tensor, "N_plus_1 V"]:
        """The law tokens are drawn from. Made when it is first asked for: a rule that can do without does not ask."""
        return self.law if isinstance(self.law, Tensor) else self.law()

    def likeliest(self) -> Int[Tensor, " N_plus_1"]:
        """The target's likeliest token at each place. A round has it for its trace, whatever the rule."""
        return likeliest(self.logits) if self.best is None else self.best

    def entropies(self) -> Float[Tensor, " N_plus_1"]:
        """The entropy of p at each place, in nats. A round has it for its trace, whatever the rule."""
        if self.entropy is not None:
            return self.entropy
        p_best, best = largest(self.p, 1)
        return entropy_of(self.logits, self.p, best, p_best.squeeze(1), self.sampling)

    def law_of(self, logits: Float[Tensor, "N_plus_1 V"]) -> Float[Tensor, "N_plus_1 V"]:
        """The law that other logits of the model give at the same places, under the row's own sampling."""
        return law(with_history(logits, self.sampling, self.histories), self.sampling)


@dataclass(frozen=True, slots=True)
class Exits:
    """States behind the target's first layers.

    Attributes:
        layer: how many layers.
        states: the residual stream behind them, row 0 at the last committed token, row i + 1 at node i.
        taps: index of a layer → the stream behind it at the same places, for layers among the first ones; of those
            alone may parts that read taps be told (`Outcome.taps`).
    """

    layer: int
    states: Float[Tensor, "N_plus_1 D"]
    taps: Mapping[int, Float[Tensor, "N_plus_1 D"]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Settled:
    """What a verifier says of the tokens that it holds, oldest first. See `Verifier.settle`.

    Attributes:
        final: so many of the oldest are text from now on.
        back: so many of the newest are taken back.
    """

    final: int = 0
    back: int = 0
