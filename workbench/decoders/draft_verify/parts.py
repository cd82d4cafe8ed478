"""Base classes of a method's parts, and the data that they exchange with the decoder.

Parts hold frozen parameters; their state for a sequence is an argument.
"""

from __future__ import annotations

from collections import abc
from collections.abc import Callable, Collection, Hashable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from jaxtyping import Bool, Float, Int
from torch import Tensor

from workbench.core.errors import WorkbenchError
from workbench.core.probes import ProbeOutput, Probes
from workbench.core.rejection import AcceptanceDecision, VerificationResult, greedy_match, walk
from workbench.core.sampling import SamplingParams, apply_logits_processors, entropy_of, largest, likeliest, to_probs
from workbench.core.tree import DraftTree, Sampling
from workbench.decoders.draft_verify.tree_building import PartialTree, Step
from workbench.kernels.rejection import recursive_rejection
from workbench.kernels.segment import CaptureSelection

if TYPE_CHECKING:
    from workbench.decoders.declarations import Claim, Head
    from workbench.engine.request import Request, Sequence
    from workbench.models.loading import Models
    from workbench.trace.tokens import EmittedToken


@dataclass(frozen=True, slots=True)
class Plan:
    """Draft budget of a round.

    Attributes:
        depth: maximum depth of the tree; 0: draft nothing.
        can_stop_early: whether the policy decides after each level if drafting continues (`Policy.should_continue`),
            which costs a synchronisation.
        tree_builder: tree builder, for drafters that use one; None: the one in the method's settings.
        nodes: maximum number of nodes, for drafters with a tree builder; None: the tree builder's own limit.
    """

    depth: int
    _: KW_ONLY
    can_stop_early: bool = False
    tree_builder: TreeBuilder | None = None
    nodes: int | None = None

    def limit_nodes(self, nodes: int) -> int:
        """Return `nodes`, a number of nodes or of levels of a chain, limited to the draft budget."""
        return nodes if self.nodes is None else min(nodes, self.nodes)


@dataclass(frozen=True, slots=True)
class Verification:
    """Inputs of an acceptance rule: the draft, the target's results, and the verifier's state for the sequence.

    Index 0 of every tensor belongs to the last committed token, index i + 1 to node i.

    Attributes:
        tree: draft tree.
        processed_logits: target logits after penalties and processors, or a function that returns them: see `logits`.
        probs: distributions that tokens are drawn from, or a function that returns them; when greedy, the plain
            softmax, for reading only. See `p`.
        sampling: sampling parameters of this sequence.
        u_bonus: uniform random numbers for the emitted token; None when greedy.
        hidden: the LM head's input.
        layer_states: layer index → hidden states after this layer, for the layers that the method requested.
        committed: tokens of the sequence, prompt included; the tree's root is the last one. This is the sequence's own
            list, which grows.
        state: result of the verifier's `init_state` for this sequence.
        probe_output: results at the verifier's own probe positions (`Part.probes`); None without any.
        raw_logits: the model's unprocessed logits; None: equal to `logits`.
        histories: tokens up to and including each position, if penalties or processors need them.
        entropy: entropy of p at each position, in nats, if known: see `entropies`.
        lazy: whether the decision's `bonus` and `distribution_error` may be lazy (`LazySequence`). A rule that reads
            them from another rule's decision calls that rule with `replace(v, lazy=False)`.
        best: the target's most probable token at each position, if known: see `likeliest`.
    """

    tree: DraftTree
    processed_logits: Float[Tensor, "N_plus_1 V"] | Callable[[], Tensor]
    probs: Float[Tensor, "N_plus_1 V"] | Callable[[], Tensor]
    sampling: SamplingParams
    u_bonus: Float[Tensor, " N_plus_1"] | None
    hidden: Float[Tensor, "N_plus_1 D"] | None = None
    layer_states: Mapping[int, Float[Tensor, "N_plus_1 D"]] = field(default_factory=dict)
    committed: abc.Sequence[int] = ()
    state: Any = None
    probe_output: ProbeOutput | None = None
    raw_logits: Float[Tensor, "N_plus_1 V"] | None = None
    histories: abc.Sequence[Tensor] = ()
    entropy: Float[Tensor, " N_plus_1"] | None = None
    lazy: bool = False
    best: Int[Tensor, " N_plus_1"] | None = None

    @property
    def logits(self) -> Float[Tensor, "N_plus_1 V"]:
        """Return the target's logits after penalties and processors."""
        return self.processed_logits if isinstance(self.processed_logits, Tensor) else self.processed_logits()

    @property
    def p(self) -> Float[Tensor, "N_plus_1 V"]:
        """Return the distributions from which tokens are drawn, computed at first access."""
        return self.probs if isinstance(self.probs, Tensor) else self.probs()

    def likeliest(self) -> Int[Tensor, " N_plus_1"]:
        """Return the target's most probable token at each position, usually already computed for the trace."""
        return likeliest(self.logits) if self.best is None else self.best

    def entropies(self) -> Float[Tensor, " N_plus_1"]:
        """Return the entropy of p at each position, in nats, usually already computed for the trace."""
        if self.entropy is not None:
            return self.entropy
        p_best, best = largest(self.p, 1)
        return entropy_of(self.logits, self.p, best, p_best.squeeze(1), self.sampling)

    def probs_of(self, logits: Float[Tensor, "N_plus_1 V"]) -> Float[Tensor, "N_plus_1 V"]:
        """Return the distributions [N+1, V] that other logits at these positions give with the sequence's sampling."""
        return to_probs(apply_logits_processors(logits, self.sampling, self.histories), self.sampling)


def verify_lossless(v: Verification) -> AcceptanceDecision:
    """Verify any draft exactly: by greedy match at temperature 0, else by recursive rejection."""
    if v.u_bonus is None:
        return greedy_match(v.tree, v.likeliest())
    return recursive_rejection(v.tree, v.p, v.u_bonus, v.lazy)


@dataclass(frozen=True, slots=True)
class RoundFeedback:
    """Feedback after a round, for drafters, tree builders, verifiers and policies.

    Attributes:
        tokens: drafted tokens, one per node.
        parents: parents of the nodes (−1: the last committed token).
        result: accepted path and bonus token.
        emitted: committed tokens of this round, cut at the end of the text.
        root: last committed token before the round, the root of the tree.
        top_tokens: the target's top tokens at the root (entry 0) and after each node, accepted or not.
        plan: draft budget of the round.
        hidden: the LM head's input at the root (index 0) and at each node, accepted or not.
        layer_states: layer index → hidden states after this layer at the same positions, for the layers that the method
            requested (`Part.captured_layers`).
        probe_output: results at the drafter's own probe positions (`Part.probes`); None without any.
        top_probs: the target's probabilities of `top_tokens`, as sampled; when greedy, the plain softmax.
    """

    tokens: list[int]
    parents: list[int]
    result: VerificationResult
    emitted: list[int]
    root: int
    top_tokens: list[list[int]]
    plan: Plan
    hidden: Float[Tensor, "N_plus_1 D"] | None = None
    layer_states: Mapping[int, Float[Tensor, "N_plus_1 D"]] = field(default_factory=dict)
    probe_output: ProbeOutput | None = None
    top_probs: list[list[float]] = field(default_factory=list[list[float]])

    @property
    def path_indices(self) -> list[int]:
        """Return the indices of the root and the accepted nodes in `hidden` and `layer_states`."""
        return [0, *(node + 1 for node in self.result.path)][: len(self.emitted)]


@dataclass(frozen=True, slots=True)
class EarlyExitStates:
    """Hidden states after the target's first layers.

    Attributes:
        layer: number of these first layers.
        states: residual stream after these layers, index 0 at the last committed token, index i + 1 at node i.
        layer_states: layer index → hidden states after this layer at the same positions, for some of these first
            layers. After an early exit, parts receive no other captured states (`RoundFeedback.layer_states`).
    """

    layer: int
    states: Float[Tensor, "N_plus_1 D"]
    layer_states: Mapping[int, Float[Tensor, "N_plus_1 D"]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TentativeDecision:
    """A verifier's decision on the tentative tokens, oldest first. See `Verifier.decide_tentative`.

    Attributes:
        n_final: number of oldest tokens that become final.
        n_revoked: number of newest tokens that are taken back.
    """

    n_final: int = 0
    n_revoked: int = 0


class Part:
    """Common base of the parts of a method: drafters, tree builders, verifiers and policies."""

    name: ClassVar[str] = ""
    """Kebab-case name by which one of several alternatives is chosen."""
    needs: ClassVar[tuple[str, ...]] = ()
    """Requirements besides the target: "drafter"; "any-drafter" (a draft model with any vocabulary); "sight" (the draft
    model reads images); "pictures" (the target reads images); the kind of a trained head ("medusa"); or "trees" (the
    target verifies trees, not only chains)."""

    head: ClassVar[Head | None] = None
    """Trained head that the part needs, if it is not the head of the method's drafter (`Method.head`)."""
    claims: ClassVar[tuple[Claim, ...]] = ()
    """Claims of the part's paper. Each names the method with which it is measured; that method also lists it."""

    def make_ready(self, models: Models) -> None:
        """Do slow one-time preparation for these models. Called before a run is queued or changed, in any thread."""

    def captured_layers(self, models: Models) -> Collection[int]:
        """Return the indices of target layers whose hidden states the part needs from a verification; default: none."""
        return ()

    def probes(self, sequence: Sequence, tree: DraftTree) -> Probes | None:
        """Return probe positions: tokens processed after a draft in the same forward pass, never accepted; None: none.

        Called for a method's drafter and verifier before each verification; must not synchronise. Results are in
        `Verification.probe_output` for the verifier and `RoundFeedback.probe_output` for the drafter. They are None if
        the KV cache had no room.
        """
        return None


class Drafter(Part):
    """Base class of drafters, which propose a tree after the committed tokens. Subclasses are frozen dataclasses.

    `init_state` builds the state for one sequence from its committed tokens alone, at the start and after every change
    of drafter during a run. The result is `sequence.state.drafter` until `release`.
    """

    ignores_images: ClassVar[bool] = False
    """Whether the drafter ignores images. A draft model trained without images is then the better choice."""
    reads_target: ClassVar[bool] = False
    """Whether the drafter reads the target's hidden states, and so has the same image information as the target."""
    is_empty: ClassVar[bool] = False
    """Whether the drafter never drafts: plain decoding."""
    reuses_logits: ClassVar[bool] = False
    """Whether the drafts are the target's own predictions from earlier forward passes (Jacobi, Lookahead)."""

    def siblings(self) -> frozenset[Sampling]:
        """Return how siblings in the drafter's trees may be drawn when decoding is not greedy; by default, in any way.

        These ways determine which verifiers preserve the target's distribution (`Method.unsound_reason`). A tree whose
        siblings were drawn in another way is refused, except if it is empty or decoding is greedy.
        """
        return frozenset(Sampling)

    def notice(self) -> str:
        """Return information that the user of a run with these parameters needs before it starts; "" if none."""
        return ""

    def captures(self, models: Models) -> CaptureSelection:
        """Return the hidden states to capture in prefill, which `init_state` gets from `states_of`; default: none."""
        return CaptureSelection()

    def init_state(self, sequence: Sequence, models: Models) -> Any:
        """Return the state for one sequence; None if it needs none."""
        return None

    @classmethod
    def batches(cls) -> bool:
        """Return whether `propose` handles several sequences per call; otherwise it is called for each sequence."""
        return cls.propose is not Drafter.propose

    def max_levels(self, sequence: Sequence) -> int | None:
        """Return how many levels fit into the draft model's context; None if that is not shorter than the target's.

        If the result is below 1, the engine requests no more drafts and reports the reason.
        """
        return None

    def propose(self, sequences: abc.Sequence[Sequence]) -> list[DraftTree]:
        """Return one tree per sequence; by default call `propose_one` for one sequence after the other.

        The sequences' drafters are of this class, but may differ in parameters: read `sequence.drafter`.
        """
        return [sequence.drafter.propose_one(sequence, sequence.state.plan) for sequence in sequences]

    def propose_one(self, sequence: Sequence, plan: Plan) -> DraftTree:
        """Return a tree for one sequence, of at most `plan.depth` levels."""
        raise NotImplementedError

    def exit_states(self, sequence: Sequence, tree: DraftTree) -> EarlyExitStates | None:
        """Return the target's hidden states at the root and the draft's nodes, if drafting computed them; else None.

        If states are returned, the KV cache holds the entries of the layers that have run, after its committed part,
        and verification continues with the next layer.
        """
        return None

    def observe(self, sequence: Sequence, feedback: RoundFeedback) -> None:
        """Learn from a round's feedback. `sequence.committed` already contains the emitted tokens."""

    def explain(
        self,
        models: Models,
        request: Request,
        tokens: abc.Sequence[int],
        on_progress: Callable[[float], None] = lambda _: None,
    ) -> dict[str, Any] | None:
        """Return the attribution of each emitted token to the drafter's vision tokens, after a run.

        Args:
            models: models of the run.
            request: request of the run, with its images and their changes.
            tokens: all emitted tokens.
            on_progress: progress callback, called with the completed share.

        Returns:
            `{"attention": maps, "gradient": maps}` (see `Trace.attribution`), or None if the drafter reads no images
            itself.
        """
        return None

    def state_key(self) -> Hashable | None:
        """Return the key of a state that is learned from the text and the target's outputs; None: no such state.

        A drafter with a key keeps receiving feedback (`observe`) while another one drafts. A new drafter with the same
        key takes over the state, even with other parameters (see `drafter_lifetime.py`). So the key must contain all
        parameters that the state depends on. Without a key, a change of drafter creates a new state.
        """
        return None

    def release(self, sequence: Sequence, models: Models) -> None:
        """Release the resources that `init_state` allocated, such as a slot of the draft model's KV cache."""


class TreeBuilder(Part):
    """Base class of tree builders, for drafters that give distributions. Subclasses are frozen dataclasses."""

    siblings: ClassVar[Sampling]
    """How siblings in the builder's trees are drawn. In greedy decoding they may be chosen in any way."""
    superposes: ClassVar[bool] = False
    """Whether the tree builder gives the drafter the mean embedding of several tokens as one input, as `superposes`
    allows."""

    def init_state(self, drafter: Drafter, models: Models) -> Any:
        """Create the tree builder's state, at the start and after a change of drafter; None if it has none."""
        return None

    def build(self, tree: PartialTree, plan: Plan) -> DraftTree:
        """Build a tree of at most `plan.depth` ≥ 1 levels and `plan.nodes` nodes, and call `tree.close`."""
        raise NotImplementedError

    def observe(self, sequence: Sequence, feedback: RoundFeedback) -> None:
        """Update `sequence.state.tree_builder` after a round; `sequence.committed` contains the emitted tokens."""


def siblings_of(drafter: Drafter, tree_builder: TreeBuilder | type[TreeBuilder] | None) -> frozenset[Sampling]:
    """Return how siblings in a drafter's trees may be drawn: as the tree builder does, if the drafter supports that."""
    supported = drafter.siblings()
    return supported if tree_builder is None else supported & {tree_builder.siblings} or supported


class DistributionDrafter(Drafter):
    """Base class of drafters that give a distribution after any node; the plan's tree builder decides the shape.

    Siblings in its trees may be drawn in any way; the tree builder's declaration decides: see `siblings_of`.
    """

    superposes: ClassVar[bool] = False
    """Whether the drafter can process the mean embedding of several tokens as one input: see
    `PartialTree.superpose`."""
    default_tree_builder: ClassVar[TreeBuilder | None] = None
    """Tree builder if neither plan nor method names one."""

    def begin(self, sequence: Sequence) -> PartialTree | None:
        """Return a tree without nodes; None if nothing can be drafted yet."""
        raise NotImplementedError

    def propose_one(self, sequence: Sequence, plan: Plan) -> DraftTree:
        """Return the tree that the plan's tree builder builds from this drafter's distributions.

        Raises:
            WorkbenchError: neither the plan nor the method names a tree builder, and there is no default.
        """
        builder = plan.tree_builder or self.default_tree_builder
        if builder is None:
            raise WorkbenchError(
                f"The drafter {type(self).__name__} yields distributions, but its method names no tree builder.",
                "Name tree builders in the method (`tree_builders`): see workbench/methods/tree_builders.",
            )
        if (tree := self.begin(sequence)) is None:
            return DraftTree.empty(device=sequence.models.target.device)
        return builder.build(tree, plan)


class Verifier(Part):
    """Base class of verifiers, which decide the accepted tokens. `workbench.core.rejection` defines the form of rules.

    A verifier that learns has a state for each sequence: `init_state` creates it from the committed tokens, at the
    start and after every change of verifier during a run; `observe` may update it; a rule reads it as
    `Verification.state`.
    """

    exact_for: ClassVar[frozenset[Sampling]] = frozenset()
    """Ways of drawing siblings for which the output follows the target's distribution; empty: the verifier is
    approximate."""
    keeps_greedy: ClassVar[bool] = True
    """Whether output at temperature 0 equals the target's own, for any draft."""
    reads_draft_probs: ClassVar[bool] = False
    """Whether the verifier reads the draft distributions of chains at temperature 0, too; providing them takes time."""

    def reads_draft_states(self, models: Models) -> bool:
        """Return whether the verifier reads the draft model's hidden state after each draft token of a chain.

        These are `DraftTree.states`. The state after the last token costs one more draft model forward pass per round.
        """
        return False

    def init_state(self, sequence: Sequence, models: Models) -> Any:
        """Return the state for one sequence; None if it needs none."""
        return None

    def rule(self, v: Verification) -> AcceptanceDecision:
        """Return the decision for all positions of the tree at once; must not synchronise."""
        raise NotImplementedError

    def walk(
        self,
        parents: abc.Sequence[int],
        accept: abc.Sequence[float],
        bonus: abc.Sequence[int],
        uniform: abc.Sequence[float] | None,
        score: abc.Sequence[float] | None = None,
    ) -> VerificationResult:
        """Find the accepted path on the host. `score`: `AcceptanceDecision.score`, for choosing among paths."""
        return walk(parents, accept, bonus, uniform)

    def needs_uniform(self, sampling: SamplingParams) -> bool:
        """Return whether acceptance needs uniform random numbers."""
        return not sampling.greedy

    def observe(self, sequence: Sequence, feedback: RoundFeedback) -> None:
        """Update `sequence.state.verifier` after a round. `sequence.committed` already contains the emitted tokens."""

    def max_tentative(self) -> int:
        """Return the maximum number of tentative tokens, which the verifier may take back; 0: all tokens are final.

        Tentative tokens are emitted and streamed only when `decide_tentative` or this limit makes them final.
        """
        return 0

    def decide_tentative(
        self, sequence: Sequence, tentative: abc.Sequence[EmittedToken], ends: bool
    ) -> TentativeDecision:
        """Decide which tentative tokens become final; called after each round's `observe` if `max_tentative` is not 0.

        Args:
            sequence: sequence; its `committed` tokens end with the tentative ones, including tentative tokens of this
                round.
            tentative: tentative tokens, oldest first, with the target's probability of each; they have no text yet.
            ends: whether the text ends with the last tentative token; tokens that are not taken back are then final.
        """
        raise NotImplementedError


class Policy(Part):
    """Base class of policies, which decide how much to draft. Subclasses are frozen dataclasses of parameters."""

    simulates: ClassVar[bool] = False
    """Whether the policy uses information that is unavailable in practice; the run is then a simulation."""
    timed: ClassVar[bool] = False
    """Whether the policy depends on measured times; two runs of one request may then draft differently."""
    tree_builder: ClassVar[type[TreeBuilder] | None] = None
    """Tree builder that the policy's plans name, in place of the method's; None: the plans name none."""

    def init_state(self) -> Any:
        """Return the policy's state for one sequence."""
        return None

    def plan(self, sequence: Sequence, state: Any, batch: abc.Sequence[Sequence] = ()) -> Plan:
        """Return the draft budget of the next round. The engine limits it to the tokens that remain.

        Args:
            sequence: sequence whose next round is planned.
            state: result of `init_state`.
            batch: all sequences of the coming verification, this one included; the cost of a draft depends on their
                number.
        """
        raise NotImplementedError

    def should_continue(self, sequence: Sequence, state: Any, step: Step) -> Bool[Tensor, ""] | bool:
        """Return whether to draft another level; called if `Plan.can_stop_early` is set.

        It must not depend on the tokens drawn last: `step` only has the distributions before the draw, so that stopping
        does not bias the accepted tokens. The engine synchronises to read a result on the device; a policy that has
        synchronised already returns a bool.
        """
        raise NotImplementedError

    def observe(self, sequence: Sequence, state: Any, feedback: RoundFeedback) -> None:
        """Learn from a round's feedback."""
