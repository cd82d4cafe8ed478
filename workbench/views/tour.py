"""Guided tour: eight steps on the Learn page, which show recorded runs, and seven short steps on the Live page.

All numbers in the texts of the Learn page's steps are computed from the recordings. Steps on both pages use the same
titles (`TITLES`) and sentences (the constants after it).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from workbench.trace import metrics
from workbench.trace.events import Round, Trace
from workbench.trace.nodes import ACCEPTED, DISCARDED, REJECTED

NodePosition = tuple[int, int]
"""Index of a round in the trace, and index of a node in its draft tree."""


TITLES = {
    "round": "Read a round",
    "same-text": "The same text with fewer forward passes",
    "keep-or-refuse": "Accept or reject",
    "accepted-of-what": "Acceptance rate and draft utilisation",
    "copying": "Copying is the cheapest draft",
    "trees": "Several drafts for one position",
    "switch": "Change the drafter during a run",
    "what-it-buys": "From acceptance to speed-up",
    "share": "Share this view",
}
"""Titles of the steps of the guided tours on the Learn page and the Live page, by the name of the step."""
OUTCOMES = (
    "Solid blue tokens were drafted and accepted. The last token of a group is the target's own: corrected (double "
    "line) after a rejection, bonus (dashed) when every draft was accepted."
)
NEVER_QUALITY = "Every token is verified. A bad draft costs time, never quality"
SIBLINGS = (
    "If the first draft for a position is rejected, the next one is tested, and the round continues if it is accepted."
)
GREEDY = "at temperature 0 a draft is accepted only if it is the target's most likely token"
SAMPLED = "accepted if a uniform number u is below min(1, p/q)"
RATIO = "acceptance rate always means accepted / tested"
DEPENDS = "Which drafter is best depends on the text, and the kind of text changes within a run."


@dataclass(frozen=True, slots=True)
class Step:
    """Step of the guided tour on the Learn page.

    Attributes:
        title: subject of the step.
        see: description of the displayed views.
        do: task for the reader; it is done when the reader selects one of `places` or one of `rounds`, or sets the
            adjustable values accordingly.
        question: question to answer before the explanation is shown.
        choices: possible answers.
        right: index of the right answer.
        why: explanation, shown with the answer.
        cards: views of the Live page that are open, by name.
        places: nodes, one of which the reader must select.
        rounds: rounds, one of which the reader must select.
        dials: whether the step has adjustable values instead of views of a recorded run (only the last step).
    """

    title: str
    see: str
    do: str
    question: str
    choices: tuple[str, ...]
    right: int
    why: str
    cards: tuple[str, ...] = ("ribbon", "tree")
    places: tuple[NodePosition, ...] = ()
    rounds: tuple[int, ...] = ()
    dials: bool = False


def read_a_round(trace: Trace) -> Step:
    """Return step 1 of the guided tour: drafted, accepted and bonus tokens of a round with a draft model."""
    depth = int(trace.header.params["depth"])
    full = [r for r in trace.rounds if len(r.path) == depth and len(r.emitted) == depth + 1]
    return Step(
        title=TITLES["round"],
        see=f"Each group of tokens is one round: a draft of up to {depth} tokens, verified in one forward pass of the "
        f"target. {OUTCOMES} Below are the drafts that were not accepted: struck through if rejected, dotted if never "
        "tested.",
        do="Click a rejected draft, in the text or in the tree.",
        question=f"All {depth} drafted tokens of a round are accepted. How many tokens does the text gain?",
        choices=(f"{depth}", f"{depth + 1}", f"{2 * depth}"),
        right=1,
        why="The same forward pass also gives the target's own token after the last draft: the bonus. In "
        f"this recording that happened in {_count(len(full), 'round')} of {len(trace.rounds)}.",
        places=_where(trace, lambda r, i: r.nodes.status[i] == REJECTED),
    )


def same_text(trace: Trace, plain: Trace) -> Step:
    """Return step 2 of the guided tour: a greedy run, compared with plain decoding of the same prompt."""
    slowest = max(trace.rounds, key=lambda r: r.seconds).index
    return Step(
        title=TITLES["same-text"],
        see=f"Plain decoding of this prompt took {len(plain.rounds)} forward passes of the target for "
        f"{len(plain.token_ids)} tokens. With drafts, {len(trace.rounds)} forward passes were enough: τ, the number of "
        f"tokens per verification, is {_tau(trace)}. The text is the same, token for token: {GREEDY}.",
        do="In the wall clock, click the round that took longest.",
        question="The drafter gets worse and worse. What happens to the text?",
        choices=("It gets worse too", "It stays the same and takes more forward passes", "It gets shorter"),
        right=1,
        why=f"{NEVER_QUALITY}; if no draft is accepted, a forward pass gives one token, as in plain decoding.",
        cards=("figures", "ribbon", "lane"),
        rounds=(slowest,),
    )


def keep_or_refuse(trace: Trace) -> Step:
    """Return step 3 of the guided tour: sampled drafts are accepted or rejected by the probabilities p and q."""
    accepted_nodes = _where(trace, lambda r, i: r.nodes.status[i] == ACCEPTED and (r.nodes.accept[i] or 1.0) < 1.0)
    n_rejected = len(_where(trace, lambda r, i: r.nodes.status[i] == REJECTED))
    n_accepted = len(_where(trace, lambda r, i: r.nodes.status[i] == ACCEPTED))
    return Step(
        title=TITLES["keep-or-refuse"],
        see=f"Here tokens are sampled at temperature {trace.header.params['temperature']:g}. A drafted token x has the "
        f"probability q(x) under the drafter and p(x) under the target. It is {SAMPLED}; after a rejection the token "
        f"is sampled from the residual distribution. {n_accepted} drafts were accepted and {n_rejected} rejected here, "
        "and the text follows the target's own distribution.",
        do="Find a draft that was accepted although its p is smaller than its q: its card shows u below p/q.",
        question="p(x) = 0.3 and q(x) = 0.6. How often is x accepted?",
        choices=("3 times in 10", "half of the time", "always"),
        right=1,
        why="min(1, 0.3 / 0.6) = 0.5. The other way round, with p above q, x is always accepted: the drafter proposed "
        "it too rarely, and the residual distribution adds the missing probability.",
        cards=("ribbon", "tree", "card"),
        places=accepted_nodes,
    )


def two_denominators(trace: Trace) -> Step:
    """Return step 4 of the guided tour: acceptance rate and draft utilisation, on trees with many untested nodes."""
    rounds = trace.rounds
    n_accepted, n_tested, n_drafted = (
        metrics.count_accepted(rounds),
        metrics.count_tested(rounds),
        metrics.count_drafted(rounds),
    )
    return Step(
        title=TITLES["accepted-of-what"],
        see=f"{n_accepted} drafts were accepted: {_percent(n_accepted, n_tested)} of the {n_tested} tested drafts, and "
        f"{_percent(n_accepted, n_drafted)} of all {n_drafted} drafts. Both ratios are called acceptance in the "
        f"literature. Here {RATIO}; accepted / drafted is draft utilisation.",
        do="Click a draft that was never tested: dotted, off the path.",
        question="Which of the two ratios can be larger?",
        choices=("accepted / tested", "accepted / drafted", "either one, depending on the text"),
        right=0,
        why="Every tested token was drafted, so tested never exceeds drafted. The two are equal when every draft is "
        f"tested; here {n_drafted - n_tested} drafts were never tested, because the path had ended or took another "
        "branch.",
        cards=("figures", "ribbon", "tree"),
        places=_where(trace, lambda r, i: r.nodes.status[i] == DISCARDED),
    )


def copying(trace: Trace) -> Step:
    """Return step 5 of the guided tour: prompt lookup on a text that repeats itself."""
    longest = max(len(r.path) for r in trace.rounds)
    return Step(
        title=TITLES["copying"],
        see="No second model runs here. The newest tokens are looked up in the text so far, and what followed them "
        f"there is the draft. The prompt asks for repetition: {metrics.count_accepted(trace.rounds)} of "
        f"{metrics.count_tested(trace.rounds)} tested drafts were accepted, and τ is {_tau(trace)}.",
        do="Click a round with the most accepted drafts.",
        question="What would τ be in a text without repetition?",
        choices=("0", "1", "as here"),
        right=1,
        why="Without a match the draft is empty and the round is plain decoding: one token per forward pass. A "
        "look-up costs almost nothing, so little is lost if there is nothing to copy.",
        rounds=tuple(r.index for r in trace.rounds if len(r.path) == longest),
    )


def trees(trace: Trace) -> Step:
    """Return step 6 of the guided tour: draft trees in which a later sibling was accepted."""
    depth, nodes = int(trace.header.params["depth"]), int(trace.header.params["nodes"])

    def second(r: Round, i: int) -> bool:
        rejected_siblings = [
            j for j in range(i) if r.nodes.parents[j] == r.nodes.parents[i] and r.nodes.status[j] == REJECTED
        ]
        return r.nodes.status[i] == ACCEPTED and bool(rejected_siblings)

    sibling_nodes = _where(trace, second)
    return Step(
        title=TITLES["trees"],
        see=f"The draft is a tree of up to {nodes} nodes: several continuations are verified in the same forward pass. "
        f"{SIBLINGS} That happened {_count(len(sibling_nodes), 'time')} here.",
        do="Find such a round, and click the accepted token that was not the first draft.",
        question=(
            f"A tree of {nodes} nodes is {depth} levels deep. What is the largest number of tokens that one round can "
            "give?"
        ),
        choices=(f"{depth} tokens", f"{depth + 1} tokens", f"{nodes} tokens"),
        right=1,
        why=f"Only one path can be accepted: {depth} tokens, and the target's own after them. A wider tree makes a "
        "long accepted path more likely, but does not raise the maximum.",
        places=sibling_nodes,
    )


def switch(trace: Trace) -> Step:
    """Return step 7 of the guided tour: a change of the method during a run."""
    at = next(r.index for r in trace.rounds if any(c.name == "method" for c in r.changes))
    before, after = trace.rounds[:at], trace.rounds[at:]
    names = before[-1].method, after[0].method
    rates = metrics.acceptance_rate(before) or 0.0, metrics.acceptance_rate(after) or 0.0
    return Step(
        title=TITLES["switch"],
        see=f"The committed tokens and the target's KV cache stay; only the drafter changes from round {at + 1} "
        f"on: {names[0]} before, {names[1]} after. The generated text repeats the prompt.",
        do="Go to the round in which the change took effect: it is marked on the curve.",
        question="What did the change do to the acceptance rate on this text?",
        choices=("It rose", "It fell", "It stayed the same"),
        right=0 if rates[1] > rates[0] else 1 if rates[1] < rates[0] else 2,
        why=f"{rates[0]:.0%} of the tested drafts were accepted before, {rates[1]:.0%} after. {DEPENDS}",
        cards=("ribbon", "curve"),
        rounds=(at,),
    )


def acceptance_to_speedup(trace: Trace) -> Step:
    """Return step 8 of the guided tour: adjustable formulas of τ and speed-up, and a run of the oracle drafter."""
    a, depth = float(trace.header.params["acceptance"]), int(trace.header.params["depth"])
    tau_text = f"{expected_tau(a, depth):.2f}"
    return Step(
        title=TITLES["what-it-buys"],
        see="If every draft is accepted with probability a, a round of K drafts gives τ = (1 − aᴷ⁺¹) / (1 − a) tokens "
        "on average. It costs one verification and K draft steps. With c the cost of a draft step in verifications, "
        "the speed-up over plain decoding is τ / (1 + K·c).",
        do="Find a setting with an acceptance rate of at least 0.8 that is slower than plain decoding.",
        question=f"a = {a:g} and K = {depth}. What is τ?",
        choices=(f"{a * depth:.2f}", tau_text, f"{depth + 1:.2f}"),
        right=1,
        why=f"(1 − {a:g}^{depth + 1}) / (1 − {a:g}) = {tau_text}. The oracle with acceptance rate {a:g} reached "
        f"τ = {_tau(trace)} in {len(trace.rounds)} rounds; τ varies between short runs. A high acceptance rate is not "
        "enough: the drafter must also be cheap.",
        cards=(),
        dials=True,
    )


STEPS: dict[str, tuple[Callable[..., Step], tuple[str, ...]]] = {
    "round": (read_a_round, ("draft-model",)),
    "same-text": (same_text, ("draft-model", "autoregressive")),
    "keep-or-refuse": (keep_or_refuse, ("early-exit",)),
    "accepted-of-what": (two_denominators, ("draft-tree",)),
    "copying": (copying, ("prompt-lookup",)),
    "trees": (trees, ("draft-tree",)),
    "switch": (switch, ("switch",)),
    "what-it-buys": (acceptance_to_speedup, ("oracle",)),
}
"""Steps of the Learn page's tour with the names of their recorded runs, the first of which is displayed."""


@dataclass(frozen=True, slots=True)
class LiveStep:
    """Step of the short guided tour on the Live page.

    Attributes:
        name: key of the step in `TITLES`, and in `STEPS` if the Learn page has a longer step on the subject.
        part: name of the part of the Live page that is highlighted.
        text: one or two sentences without numbers, because the page may show any run.
        shows: kind of round to select: "rejected" (with a rejected draft), "sibling" (a later sibling was accepted),
            "" (any).
    """

    name: str
    part: str
    text: str
    shows: str = ""


LIVE_STEPS = (
    LiveStep("same-text", "race", f"Plain and speculative decoding of the same prompt, on one clock. {NEVER_QUALITY}."),
    LiveStep("round", "text", OUTCOMES, "rejected"),
    LiveStep("trees", "tree", f"Several continuations are verified in the same forward pass. {SIBLINGS}", "sibling"),
    LiveStep("keep-or-refuse", "card", f"{GREEDY.capitalize()}; a sampled draft is {SAMPLED}.", "rejected"),
    LiveStep("accepted-of-what", "curves", f"The first curve shows the acceptance rate over the run; {RATIO}."),
    LiveStep("switch", "picker", f"Choose a method here, also during a run. {DEPENDS}"),
    LiveStep("share", "share", "Copy a link to these settings and this selection, or save the run with Export."),
)
"""Steps of the Live page's tour, in the order in which it shows them."""


def live_steps() -> list[dict[str, Any]]:
    """Return the steps of the Live page's tour as JSON data.

    Key `learn` says whether the Learn page has a step on the subject.
    """
    return [
        {"name": step.name, "title": TITLES[step.name], "part": step.part, "text": step.text, "shows": step.shows}
        | {"learn": step.name in STEPS}
        for step in LIVE_STEPS
    ]


def expected_tau(acceptance: float, depth: int) -> float:
    """Return τ, the expected number of tokens per round, if every drafted token is accepted with equal probability.

    Source: Leviathan et al. 2023 (arXiv 2211.17192), eq. 1.

    Args:
        acceptance: acceptance probability of a drafted token, 0 to 1.
        depth: number of drafted tokens per round.
    """
    return depth + 1.0 if acceptance == 1 else (1 - acceptance ** (depth + 1)) / (1 - acceptance)


def can_be_done(step: Step) -> bool:
    """Return whether a recorded run contains the nodes or rounds that the task of a tour step asks for."""
    return step.dials or bool(step.places or step.rounds)


def to_wire(name: str, step: Step) -> dict[str, Any]:
    """Return a step of the guided tour as JSON data, with the name of its recorded run."""
    fields = {field: getattr(step, field) for field in step.__dataclass_fields__}
    return {"name": name, "recording": STEPS[name][1][0], **fields}


def _where(trace: Trace, wanted: Callable[[Round, int], bool]) -> tuple[NodePosition, ...]:
    return tuple((r.index, i) for r in trace.rounds for i in range(len(r.nodes)) if wanted(r, i))


def _tau(trace: Trace) -> str:
    return f"{metrics.tau(trace.rounds) or 0:.2f}"


def _percent(part: int, whole: int) -> str:
    return f"{part / whole:.0%}" if whole else "–"


def _count(n: int, noun: str) -> str:
    return f"{n or 'no'} {noun}{'' if n == 1 else 's'}"
