"""Base classes of drafters, tree builders, verifiers and policies, and the data that they exchange with the decoder.

These components of a method (parts) have only frozen parameters; their state for a sequence is passed as an argument.
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
    from workbench.decoders.draft_verify.device_rounds.device_sequence import DeviceSequence
    from workbench.engine.request import Request, Sequence
    from workbench.kernels.device_walk import DevicePath
    from workbench.kernels.segment import Slot
    from workbench.models.loading import Models
    from workbench.trace.tokens import EmittedToken


@dataclass(frozen=True, slots=True)
class Plan:
    """Draft budget of a round, which a policy sets.

    Attributes:
        depth: maximum depth of the tree; 0: draft nothing.
        can_stop_early: whether the policy decides after each level if drafting continues (`Policy.should_continue`),
            which costs a synchronisation.
        tree_builder: tree builder, for drafters that use one; None: the tree builder in the method's settings.
        nodes: maximum number of nodes, for drafters with a tree builder; None: the limit of the tree builder.
    """

    depth: int
    _: KW_ONLY
    can_stop_early: bool = False
    tree_builder: TreeBuilder | None = None
    nodes: int | None = None

    def limit_nodes(self, nodes: int) -> int:
        """Return a number of nodes (or of levels of a chain), limited to the number that the draft budget allows."""
        return nodes if self.nodes is None else min(nodes, self.nodes)


@dataclass(frozen=True, slots=True)
class Verification:
    """Inputs of an acceptance rule: the draft, the target's results, and the verifier's state for the sequence.

    Index 0 of every tensor belongs to the last committed token, index i + 1 to node i.

    Attributes:
        tree: draft tree.
        processed_logits: target logits after penalties and logits processors, or a function that returns them; read
            them by `logits`.
        probs: distributions from which tokens are drawn, or a function that returns them; when greedy, the plain
            softmax. Read them by `p`, and do not change them.
        sampling: sampling parameters of this sequence.
        u_bonus: uniform random numbers for the emitted token; None when greedy.
        hidden: the LM head's input.
        layer_states: hidden states after the layers that the method requested, by layer index.
        committed: tokens of the sequence, prompt included; the last one is the root of the tree. This is the list of
            the sequence itself, to which later rounds append.
        state: the verifier's state for this sequence, from its `init_state`.
        probe_output: results at the probe positions (never accepted) that the verifier requested (`Part.probes`); None
            if it requested none.
        raw_logits: the model's unprocessed logits; None: equal to `logits`.
        histories: tokens up to and including each position, if penalties or logits processors need them.
        entropy: entropy of p at each position, in nats, if known; read it by `entropies`.
        lazy: whether `bonus` and `distribution_error` of the decision may be lazy (`LazySequence`). A rule that reads
            them from the decision of another rule calls that rule with `replace(v, lazy=False)`.
        best: the target's most probable token at each position, if known; read it by `likeliest`.
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
        """Return the target's logits after penalties and logits processors."""
        return self.processed_logits if isinstance(self.processed_logits, Tensor) else self.processed_logits()

    @property
    def p(self) -> Float[Tensor, "N_plus_1 V"]:
        """Return the target's distributions from which tokens are drawn, computed at first access."""
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
        """Convert logits at the tree's positions to distributions [N+1, V], with the sequence's sampling parameters."""
        return to_probs(apply_logits_processors(logits, self.sampling, self.histories), self.sampling)


def verify_lossless(v: Verification) -> AcceptanceDecision:
    """Verify a draft tree losslessly: by greedy match at temperature 0, else by recursive rejection."""
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
        top_tokens: the target's most likely tokens at the root (entry 0) and after each node, accepted or not.
        plan: draft budget of the round.
        hidden: the LM head's input at the root (index 0) and at each node, accepted or not.
        layer_states: hidden states at the same positions after the layers that the method requested
            (`Part.captured_layers`), by layer index.
        probe_output: results at the probe positions (never accepted) that the drafter requested (`Part.probes`); None
            if it requested none.
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
        """Return the indices of the root and of the accepted nodes in `hidden` and `layer_states`."""
        return [0, *(node + 1 for node in self.result.path)][: len(self.emitted)]


@dataclass(frozen=True, slots=True)
class EarlyExitStates:
    """Hidden states after the target's first layers, which drafting has computed for the nodes of a draft.

    Attributes:
        layer: number of these first layers.
        states: residual stream after these layers: index 0 is the last committed token, index i + 1 is node i.
        layer_states: hidden states at the same positions after some of these first layers, by layer index. After an
            early exit, drafter and verifier receive no other captured states (`RoundFeedback.layer_states`).
    """

    layer: int
    states: Float[Tensor, "N_plus_1 D"]
    layer_states: Mapping[int, Float[Tensor, "N_plus_1 D"]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TentativeDecision:
    """Decision of a verifier on the tentative tokens of a sequence (`Verifier.decide_tentative`).

    Attributes:
        n_final: number of oldest tokens that become final.
        n_revoked: number of newest tokens that are revoked.
    """

    n_final: int = 0
    n_revoked: int = 0


class Part:
    """Base class of the components (parts) of a method: drafters, tree builders, verifiers and policies."""

    name: ClassVar[str] = ""
    """Kebab-case name by which a user chooses this drafter, tree builder, verifier or policy."""
    needs: ClassVar[tuple[str, ...]] = ()
    """Requirements besides the target, of a drafter, tree builder, verifier or policy.

    Values: "drafter"; "any-drafter" (a draft model with any vocabulary); "sight" (the draft model reads images);
    "pictures" (the target reads images); the kind of a trained head ("medusa"); or "trees" (the target verifies trees,
    not only chains).
    """

    head: ClassVar[Head | None] = None
    """Trained head that a verifier or policy needs, if it is not the head of the method's drafter (`Method.head`)."""
    claims: ClassVar[tuple[Claim, ...]] = ()
    """Claims of the paper on this tree builder, verifier or policy.

    Each claim names the method with which it is measured; that method also lists the claim.
    """

    def make_ready(self, models: Models) -> None:
        """Do this component's slow preparation for given models, once, before a run is queued or changed.

        Any thread may call this.
        """

    def captured_layers(self, models: Models) -> Collection[int]:
        """Return the indices of the target layers whose hidden states are needed from a verification.

        By default no hidden states are needed.
        """
        return ()

    def probes(self, sequence: Sequence, tree: DraftTree) -> Probes | None:
        """Return probe positions: tokens that the target processes after a draft in the same forward pass.

        They are never accepted. None: no probe positions.

        This method of drafter and verifier is called before each verification; it must not synchronise the device. The
        results are in `Verification.probe_output` for the verifier, and in `RoundFeedback.probe_output` for the
        drafter. They are None if the KV cache had no room.
        """
        return None


class Drafter(Part):
    """Base class of drafters, which propose a tree after the committed tokens. Subclasses are frozen dataclasses.

    `init_state` builds the drafter's state for one sequence from the committed tokens alone, at the start and after
    every change of drafter during a run. The state is `sequence.state.drafter` until `release`.
    """

    ignores_images: ClassVar[bool] = False
    """Whether the drafter ignores images. A draft model that was trained without images is then the better choice."""
    reads_target: ClassVar[bool] = False
    """Whether the drafter reads the target's hidden states, and so has the same image information as the target."""
    is_empty: ClassVar[bool] = False
    """Whether the drafter never drafts, so that the method is plain decoding."""
    reuses_logits: ClassVar[bool] = False
    """Whether the drafts are the target's own predictions from earlier forward passes (Jacobi, Lookahead)."""

    def siblings(self) -> frozenset[Sampling]:
        """Return how siblings in the drafter's trees may be drawn when decoding is not greedy; by default, in any way.

        These ways determine which verifiers preserve the target's distribution (`Method.unsound_reason`). A tree whose
        siblings were drawn in another way is refused, except if it is empty or decoding is greedy.
        """
        return frozenset(Sampling)

    def notice(self) -> str:
        """Return a notice about the drafter that the user needs before a run starts; "" if there is none."""
        return ""

    def captures(self, models: Models) -> CaptureSelection:
        """Return which hidden states of the target to capture in prefill for the drafter; by default none.

        `init_state` gets them from `states_of`.
        """
        return CaptureSelection()

    def init_state(self, sequence: Sequence, models: Models) -> Any:
        """Create the drafter's state for one sequence; return None if the drafter has no state."""
        return None

    @classmethod
    def batches(cls) -> bool:
        """Return whether `propose` drafts for several sequences in one call; otherwise it is called per sequence."""
        return cls.propose is not Drafter.propose

    def max_levels(self, sequence: Sequence) -> int | None:
        """Return how many levels of a draft fit into the draft model's context.

        None if this context is not shorter than the target's.

        If the result is below 1, the engine requests no more drafts and reports the reason.
        """
        return None

    def propose(self, sequences: abc.Sequence[Sequence]) -> list[DraftTree]:
        """Return a draft tree for each sequence; by default, call `propose_one` for each of them.

        The drafters of the sequences have the same class, but may differ in parameters: read `sequence.drafter`.
        """
        return [sequence.drafter.propose_one(sequence, sequence.state.plan) for sequence in sequences]

    def propose_one(self, sequence: Sequence, plan: Plan) -> DraftTree:
        """Return a draft tree for one sequence, of at most `plan.depth` levels."""
        raise NotImplementedError

    def runs_on_device(self, sequence: Sequence) -> bool:
        """Return whether the drafter can draft now although the host does not know the last tokens; default: no.

        The sequence is then a `DeviceSequence` in `propose`: it has `uniforms` and `uncached_tokens`, but not
        `committed`. The drafter must not synchronise, must draft trees of one shape, and must not need `observe`.
        """
        return False

    def begin_on_device(self, sequence: DeviceSequence, bound: int) -> Slot | None:
        """Prepare the drafter's state for a round on the device. Return its slot of the draft model's KV cache, if any.

        Args:
            sequence: view of the sequence with the data that are on the device.
            bound: number that the length of the target's KV cache does not exceed.
        """
        return None

    def commit_on_device(self, sequence: DeviceSequence, path: DevicePath) -> None:
        """Keep the state that belongs to accepted nodes, before the KV cache lengths on the device grow.

        Args:
            sequence: view of the sequence with the data that are on the device.
            path: accepted path of the last draft.
        """

    def end_on_device(self, sequence: Sequence) -> None:
        """Update the drafter's state after the last queued round on the device; the host now knows all tokens."""

    def exit_states(self, sequence: Sequence, tree: DraftTree) -> EarlyExitStates | None:
        """Return the target's hidden states at the root and the draft's nodes, if drafting computed them; else None.

        If states are returned, the KV cache contains the draft's entries of the layers that have run, after its
        committed entries. Verification then continues with the next layer.
        """
        return None

    def observe(self, sequence: Sequence, feedback: RoundFeedback) -> None:
        """Update the drafter's state from the feedback of a round.

        `sequence.committed` already contains the emitted tokens.
        """

    def explain(
        self,
        models: Models,
        request: Request,
        tokens: abc.Sequence[int],
        on_progress: Callable[[float], None] = lambda _: None,
    ) -> dict[str, Any] | None:
        """Return, after a run, the attribution of each emitted token to the drafter's vision tokens.

        Args:
            models: models of the run.
            request: request of the run, with its images and their changes.
            tokens: all emitted tokens.
            on_progress: progress callback, called with the completed fraction, 0 to 1.

        Returns:
            `{"attention": maps, "gradient": maps}` (see `Trace.attribution`), or None if the drafter reads no images
            itself.
        """
        return None

    def state_key(self) -> Hashable | None:
        """Return the key of the drafter's state if it is learned from the text and the target's outputs; else None.

        A drafter with a key still receives feedback (`observe`) while another drafter drafts. A new drafter with the
        same key takes over the state, even if other parameters differ (see `drafter_lifetime.py`). So the key must
        contain all parameters on which the state depends. Without a key, a change of drafter creates a new state.
        """
        return None

    def release(self, sequence: Sequence, models: Models) -> None:
        """Release the resources that `init_state` allocated, such as a slot of the draft model's KV cache."""


class TreeBuilder(Part):
    """Base class of tree builders, for drafters that give distributions. Subclasses are frozen dataclasses."""

    siblings: ClassVar[Sampling]
    """How siblings in the tree builder's trees are drawn when decoding is not greedy, such as without replacement."""
    has_fixed_shape: ClassVar[bool] = False
    """Whether all trees of one draft budget have the same shape, whatever the distributions, and are built without
    synchronisation."""
    superposes: ClassVar[bool] = False
    """Whether the tree builder gives the drafter the mean embedding of several tokens as one input.

    The drafter must support this (`DistributionDrafter.superposes`).
    """

    def init_state(self, drafter: Drafter, models: Models) -> Any:
        """Create the tree builder's state, at the start and after a change of drafter; None if it has none."""
        return None

    def build(self, tree: PartialTree, plan: Plan) -> DraftTree:
        """Build a draft tree of at most `plan.depth` ≥ 1 levels and `plan.nodes` nodes, and call `tree.close`."""
        raise NotImplementedError

    def observe(self, sequence: Sequence, feedback: RoundFeedback) -> None:
        """Update the tree builder's state (`sequence.state.tree_builder`) from the feedback of a round.

        `sequence.committed` already contains the emitted tokens.
        """


def siblings_of(drafter: Drafter, tree_builder: TreeBuilder | type[TreeBuilder] | None) -> frozenset[Sampling]:
    """Return the ways in which siblings in a drafter's trees may be drawn if a tree builder chooses the shape.

    The tree builder decides this if the drafter supports its way of drawing.
    """
    supported = drafter.siblings()
    return supported if tree_builder is None else supported & {tree_builder.siblings} or supported


class DistributionDrafter(Drafter):
    """Base class of drafters that give a distribution after any node of a draft tree.

    The tree builder in the round's draft budget decides the shape of the tree.

    The tree builder also decides how siblings are drawn (`siblings_of`).
    """

    superposes: ClassVar[bool] = False
    """Whether the drafter can process the mean embedding of several tokens as one input (`PartialTree.superpose`)."""
    default_tree_builder: ClassVar[TreeBuilder | None] = None
    """Tree builder for a drafter if neither the draft budget nor the method names a tree builder."""

    def begin(self, sequence: Sequence) -> PartialTree | None:
        """Return a new draft tree without nodes; None if the drafter cannot draft yet."""
        raise NotImplementedError

    def propose_one(self, sequence: Sequence, plan: Plan) -> DraftTree:
        """Return the draft tree that a tree builder builds from this drafter's distributions.

        Raises:
            WorkbenchError: neither the draft budget nor the method names a tree builder, and there is no default.
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
    """Base class of verifiers, which decide which drafted tokens are accepted.

    The form of acceptance rules is defined in `workbench.core.rejection`. A verifier that learns has a state for each
    sequence. `init_state` creates the state from the committed tokens, at the start and after every change of verifier
    during a run; `observe` may update it; a rule reads it as `Verification.state`.
    """

    exact_for: ClassVar[frozenset[Sampling]] = frozenset()
    """Ways of drawing siblings in draft trees for which the verifier's output follows the target's distribution.

    Empty: the verifier is approximate.
    """
    keeps_greedy: ClassVar[bool] = True
    """Whether the verifier's output at temperature 0 equals that of the target alone, for any draft."""
    reads_draft_probs: ClassVar[bool] = False
    """Whether the verifier reads the draft distributions of chains even at temperature 0; providing them takes time."""

    def reads_draft_states(self, models: Models) -> bool:
        """Return whether the verifier reads the draft model's hidden state after each draft token of a chain.

        The hidden states are in `DraftTree.states`. The state after the last token needs one more forward pass of the
        draft model per round.
        """
        return False

    def init_state(self, sequence: Sequence, models: Models) -> Any:
        """Create the verifier's state for one sequence; return None if the verifier has no state."""
        return None

    def rule(self, v: Verification) -> AcceptanceDecision:
        """Return the acceptance decision for all positions of a draft tree at once. Must not synchronise the device."""
        raise NotImplementedError

    def walk(
        self,
        parents: abc.Sequence[int],
        accept: abc.Sequence[float],
        bonus: abc.Sequence[int],
        uniform: abc.Sequence[float] | None,
        score: abc.Sequence[float] | None = None,
    ) -> VerificationResult:
        """Find the accepted path in a draft tree, on the host. `score` (`AcceptanceDecision.score`) ranks paths."""
        return walk(parents, accept, bonus, uniform)

    def needs_uniform(self, sampling: SamplingParams) -> bool:
        """Return whether the acceptance rule needs uniform random numbers."""
        return not sampling.greedy

    def observe(self, sequence: Sequence, feedback: RoundFeedback) -> None:
        """Update the verifier's state (`sequence.state.verifier`) from the feedback of a round.

        `sequence.committed` already contains the emitted tokens.
        """

    def max_tentative(self) -> int:
        """Return the maximum number of tentative tokens, which the verifier may revoke; 0: all tokens are final.

        Tentative tokens are emitted and streamed only when `decide_tentative` or this limit makes them final.
        """
        return 0

    def decide_tentative(
        self, sequence: Sequence, tentative: abc.Sequence[EmittedToken], ends: bool
    ) -> TentativeDecision:
        """Decide which tentative tokens become final; called after each round's `observe` if `max_tentative` is not 0.

        Args:
            sequence: sequence whose `committed` tokens end with the tentative tokens, including those of this round.
            tentative: tentative tokens, oldest first, with the target's probability of each; they have no text yet.
            ends: whether the text ends with the last tentative token; tokens that are not revoked are then final.
        """
        raise NotImplementedError


class Policy(Part):
    """Base class of draft policies, which decide how much to draft. Subclasses are frozen dataclasses of parameters."""

    simulates: ClassVar[bool] = False
    """Whether the policy uses information that is unavailable in practice; the run is then a simulation."""
    is_constant: ClassVar[bool] = False
    """Whether a sequence gets the same draft budget (`Plan`) in every round."""
    timed: ClassVar[bool] = False
    """Whether the policy depends on measured times, so that two runs of the same request may draft differently."""
    tree_builder: ClassVar[type[TreeBuilder] | None] = None
    """Tree builder that the policy's draft budgets name instead of the method's tree builder; None: they name none."""

    def init_state(self) -> Any:
        """Create the policy's state for one sequence."""
        return None

    def plan(self, sequence: Sequence, state: Any, batch: abc.Sequence[Sequence] = ()) -> Plan:
        """Return the draft budget of a sequence's next round. The engine limits it to the remaining number of tokens.

        Args:
            sequence: sequence whose next round is planned.
            state: the policy's state for this sequence, from `init_state`.
            batch: all sequences of the next verification, including this one; the cost of a draft depends on their
                number.
        """
        raise NotImplementedError

    def should_continue(self, sequence: Sequence, state: Any, step: Step) -> Bool[Tensor, ""] | bool:
        """Return whether to draft another level of the draft. It is called only if `Plan.can_stop_early` is set.

        The result must not depend on the tokens drawn last: `step` has only the distributions before the draw, so that
        stopping does not bias the accepted tokens. A result may be a tensor on the device, which the engine
        synchronises to read; a policy that has already synchronised returns a bool.
        """
        raise NotImplementedError

    def observe(self, sequence: Sequence, state: Any, feedback: RoundFeedback) -> None:
        """Update the policy's state from the feedback of a round."""
