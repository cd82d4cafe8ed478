"""Verifier bench for a notebook: target and draft probabilities of one position as movable bars.

It shows the acceptance by every verifier.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import traitlets

from workbench.core.errors import ParameterError
from workbench.trace import theory
from workbench.widgets import snapshot
from workbench.widgets.sources import get_sources
from workbench.widgets.view import Widget

GOLDEN = ((0.5, 0.3, 0.15, 0.05), (0.1, 0.4, 0.3, 0.2))
WORDS = ("school", "market", "farm", "park", "zoo", "lake")
WAYS = ("independent", "without", "head", "fixed")
RULES = ("recursive", "independent", "k-seq", "optimal-two", "greedy-draft", "deterministic")
TOKENS = (2, 6)
DRAFTS = 8
SHOWN = 4
"""Maximum number of drafted tokens in the table of the snapshot (static HTML) of this widget."""


class Bench(Widget):
    """Widget that compares verifiers at one position of a text. Its `state` can be changed in Python or in the browser.

    Attributes:
        state: dict with `words` (tokens), `p` and `q` (probabilities of target and drafter at temperature 1, in the
            order of words), `tp` and `tq` (their temperatures), `k` (number of drafted tokens), `way` (how the drafts
            are sampled), `rule` (verifier), `seed`, and `rounds` (number of rounds sampled so far).
    """

    state = traitlets.Dict().tag(sync=True)

    def __init__(self, state: dict[str, Any]) -> None:
        super().__init__(kind="bench", _sources=get_sources(), state=state)

    @traitlets.validate("state")
    def _checked(self, proposal: Any) -> dict[str, Any]:
        return check_state({**self.state, **proposal["value"]})

    def snapshot(self) -> str:
        words, p, q = self.state["words"], self.state["p"], self.state["q"]
        distributions = "".join(
            f"<tr><th>{snapshot.escape_visible(word)}</th><td>{a:.3f}</td><td>{b:.3f}</td></tr>"
            for word, a, b in zip(words, p, q, strict=True)
        )
        n_columns = min(SHOWN, sum(x > 0 for x in q))
        tables = [theory.acceptance_table(p, q, n) for n in range(1, n_columns + 1)]
        head = "".join(f"<th>k = {n}</th>" for n in range(1, n_columns + 1))
        rows = "".join(
            f"<tr><th>{snapshot.escape(name)}</th>"
            + "".join(f"<td>{table[name]:.3f}</td>" for table in tables)
            + "</tr>"
            for name in tables[0]
        )
        return snapshot.wrap(
            f"<table><tr><th></th><th>p</th><th>q</th></tr>{distributions}</table>"
            f"<table><tr><th>acceptance rate of k drafts</th>{head}</tr>{rows}</table>"
        )


def check_state(state: dict[str, Any]) -> dict[str, Any]:
    """Check a state of the verifier comparison, and return it with both distributions normalised.

    Raises:
        ParameterError: a distribution is invalid, or a name, number of drafts or temperature is out of range.
    """
    p, q = _distribution("p", state["p"]), _distribution("q", state["q"])
    if len(p) != len(q):
        raise ParameterError(f"p has {len(p)} numbers and q {len(q)}.", "Give one number per token in both p and q.")
    words = [str(word) for word in state["words"]]
    if len(words) != len(p):
        raise ParameterError(f"There are {len(words)} words for {len(p)} tokens.", "Give one word per token, or none.")
    for name, options in (("way", WAYS), ("rule", RULES)):
        if state[name] not in options:
            raise ParameterError(f"{name}={state[name]!r} is unknown.", f"Use {', '.join(options)}.")
    for name, low, high in (("k", 1, DRAFTS), ("seed", 0, 2**31), ("rounds", 0, 10**6)):
        value = state[name]
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            raise ParameterError(f"{name}={value!r} is invalid.", f"Give a whole number from {low} to {high}.")
    for name in ("tp", "tq"):
        if not 0.1 <= state[name] <= 3:
            raise ParameterError(f"{name}={state[name]!r} is out of range.", "Give a temperature from 0.1 to 3.")
    return {**state, "p": p, "q": q, "words": words}


def _distribution(name: str, values: Sequence[float]) -> list[float]:
    probs = [float(x) for x in values]
    low, high = TOKENS
    if (
        not low <= len(probs) <= high
        or not all(0 <= x < float("inf") for x in probs)
        or not 0 < sum(probs) < float("inf")
    ):
        raise ParameterError(
            f"{name} is not a distribution: {probs!r}.",
            f"Give {low} to {high} non-negative numbers, at least one above 0.",
        )
    total = sum(probs)
    return probs if abs(total - 1) < 1e-9 else [x / total for x in probs]  # return the page's values unchanged


def bench(
    p: Sequence[float] = GOLDEN[0],
    q: Sequence[float] = GOLDEN[1],
    words: Sequence[str] | None = None,
    *,
    k: int = 3,
    way: str = "without",
    rule: str = "recursive",
    seed: int = 1,
) -> Bench:
    """Return a widget that compares verifiers at one position, given the distributions of target and drafter.

    Args:
        p: the target's distribution [V] over V = 2 to 6 tokens; the values are normalised.
        q: the drafter's distribution [V]; the values are normalised.
        words: the tokens; None: example words.
        k: number of drafted tokens, 1 to 8.
        way: sampling of the drafts: "independent", "without" (replacement), "head" (the most likely k − 1, and one
            sampled), or "fixed" (the most likely k).
        rule: "recursive", "independent", "k-seq", "optimal-two", "greedy-draft" or "deterministic".
        seed: seed of the rounds that are sampled in the browser.

    Raises:
        ParameterError: an argument is invalid.
    """
    tokens = list(words) if words is not None else [*WORDS[: len(p)]]
    state = {"p": list(p), "q": list(q), "words": tokens, "k": k, "way": way, "rule": rule, "seed": seed}
    return Bench(check_state(state | {"tp": 1.0, "tq": 1.0, "rounds": 0}))
