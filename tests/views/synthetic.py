"""Synthetic rounds in the trace's JSON format, for tests of the drawings only. No figure here was measured.

Words are drawn from a short list with a seeded generator; probabilities and times are made up. Run this file to
write the fixtures again: `python tests/views/synthetic.py`.
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

from workbench.core.rules import RATIO, RESIDUAL
from workbench.trace.events import Change, Footer, Header, Phase, Round
from workbench.trace.nodes import Nodes, TopTokens
from workbench.trace.tokens import EmittedToken

NOUNS = [" fox", " river", " hill", " mill", " stone"]
WORDS = [
    *NOUNS,
    " the",
    " a",
    " and",
    " ran",
    " slept",
    " under",
    " old",
    " green",
    ".",
    ",",
    " she",
    " he",
    " said",
    " to",
    " saw",
]
PROMPT = ["Synthetic", " prompt", ":", " a", " fox"]
FIXTURES = Path(__file__).parents[1] / "fixtures" / "wire"


def _word(rng: random.Random) -> int:
    return rng.randrange(len(WORDS))


def _top(rng: random.Random, first: int, prob: float) -> TopTokens:
    others = [w for w in range(len(WORDS)) if w != first]
    rng.shuffle(others)
    probs = [prob]
    for _ in range(4):
        probs.append((1 - sum(probs)) * rng.uniform(0.3, 0.6))
    ranked = sorted(zip([first, *others[:4]], probs, strict=True), key=lambda pair: -pair[1])
    return TopTokens([t for t, _ in ranked], [WORDS[t] for t, _ in ranked], [round(p, 4) for _, p in ranked])


class Writer:
    """Generates rounds one after another; `method` and `params` may change between them."""

    def __init__(self, seed: int = 0, max_new_tokens: int = 64) -> None:
        self.rng = random.Random(seed)
        self.left = max_new_tokens
        self.text = ""
        self.clock = 0.0
        self.index = 0
        self.position = len(PROMPT)

    def round(self, method: str, params: dict[str, Any], changes: list[Change] | None = None) -> Round:
        """Return one round: a plain step, a chain or a tree, depending on the parameters."""
        rng, start = self.rng, self.clock
        depth = 0 if method == "autoregressive" else int(params.get("depth", 4))
        nodes, path, rejected = self._draft(depth, int(params.get("width", 1)))
        emitted: list[EmittedToken] = []
        for i in path:
            self._emit(emitted, nodes.tokens[i], "accepted", i, nodes.p[i])
        bonus = kind = None
        if len(emitted) < self.left:
            bonus, kind = _word(rng), "corrected" if rejected else "bonus"
            self._emit(emitted, bonus, kind, None, round(rng.uniform(0.3, 0.9), 4))
        emitted = emitted[: self.left]
        self.text = self.text[: emitted[-1].end] if emitted else self.text
        self.left -= len(emitted)
        self.position += len(emitted)
        draft, verify, host = 0.0006 * depth, 0.008 * rng.uniform(0.95, 1.2), 0.0004
        self.clock += draft + verify + host
        phases = [
            Phase("draft", start, start + draft),
            Phase("verify", start + draft, start + draft + verify),
            Phase("judge", start + draft + verify, self.clock, "host"),
        ]
        tops = [_top(rng, _word(rng), 0.5) for _ in range(len(nodes) + 1)]
        distributions: list[TopTokens | None] = [_top(rng, _word(rng), 0.4) for _ in range(len(nodes) + 1)]
        for i, parent in enumerate(nodes.parents):
            tops[parent + 1] = _top(rng, nodes.tokens[i], nodes.p[i])
            distributions[parent + 1] = _top(rng, nodes.tokens[i], nodes.q[i] or 0.1)
        made = Round(
            self.index, method, dict(params), nodes, path, bonus, kind, emitted, tops, distributions, [],
            phases, start, self.clock - start, draft, verify, host, draft_forwards=depth, changes=changes or [],
        )  # fmt: skip
        self.index += 1
        return made

    def _draft(self, depth: int, width: int) -> tuple[Nodes, list[int], bool]:
        rng, nodes, path, alive, rejected = self.rng, Nodes(), [], True, False
        frontier = [-1]
        for d in range(1, depth + 1):
            new: list[int] = []
            for parent in frontier[: max(1, width)]:
                on_path = alive and parent == (path[-1] if path else -1)
                for sibling in range(width):
                    q = round(max(0.02, rng.uniform(0.35, 0.9) / (1 + 1.4 * sibling)), 4)
                    p = round(min(1.0, q * rng.uniform(0.4, 1.6)), 4)
                    tested = on_path and len(path) < d
                    accept = round(min(1.0, p / q), 4) if tested else None
                    u = round(rng.random(), 4) if tested else None
                    kept = tested and u is not None and accept is not None and u < accept
                    status = "accepted" if kept else "rejected" if tested else "discarded"
                    word = _word(rng)
                    for field, value in (
                        ("tokens", word), ("parents", parent), ("depth", d), ("position", self.position + d - 1),
                        ("text", WORDS[word]), ("p", p), ("q", q), ("accept", accept), ("u", u),
                        ("status", status), ("source", "synthetic"),
                        ("rule", (RESIDUAL if sibling else RATIO).name if tested else None),
                    ):  # fmt: skip
                        getattr(nodes, field).append(value)
                    if width > 1:
                        for field, value in (("residual", p), ("q_left", q)):
                            nodes.inputs.setdefault(field, []).append(value if tested and sibling else None)
                    new.append(len(nodes) - 1)
                    if kept:
                        path.append(len(nodes) - 1)
                    elif tested and sibling == width - 1:
                        alive, rejected = False, True
            frontier = new if not path else sorted(new, key=lambda i: (i != path[-1], i))
        return nodes, path, rejected

    def _emit(self, emitted: list[EmittedToken], token: int, kind: str, node: int | None, p: float) -> None:
        text, start = WORDS[token], len(self.text)
        self.text += text
        emitted.append(EmittedToken(token, text, start, len(self.text), kind, node, self.position + len(emitted), p))


def header(method: str, params: dict[str, Any], max_new_tokens: int = 64) -> Header:
    """Return a header whose fields all say that it is synthetic."""
    return Header(
        "synthetic-target", method, dict(params), "simulation" if method == "oracle" else "exact", 0, "".join(PROMPT),
        list(range(len(PROMPT))), PROMPT, max_new_tokens, "float32", "synthetic", "synthetic-drafter",
        simulation=method == "oracle", rules={rule.name: rule for rule in (RATIO, RESIDUAL)},
    )  # fmt: skip


def trace(
    method: str, params: dict[str, Any], n_rounds: int, switch: tuple[int, dict[str, Any]] | None = None, seed: int = 0
) -> dict[str, Any]:
    """Return a complete synthetic trace as JSON."""
    writer, rounds = Writer(seed, 10_000), []
    for i in range(n_rounds):
        changes = []
        if switch and i == switch[0]:
            changes = [Change(name, params.get(name), value) for name, value in switch[1].items()]
            params = params | switch[1]
        rounds.append(writer.round(method, params, changes).to_wire())
    footer = Footer("length", writer.text, writer.clock, "", ["Synthetic: made for tests."])
    return {"header": header(method, params).to_wire(), "rounds": rounds, "footer": footer.to_wire()}


def main() -> None:
    """Write every fixture."""
    FIXTURES.mkdir(parents=True, exist_ok=True)
    made = {
        "plain": trace("autoregressive", {"temperature": 0.0}, 12),
        "chain": trace("draft-model", {"depth": 4, "temperature": 0.7}, 12, seed=1),
        "switch": trace("draft-model", {"depth": 2, "temperature": 0.7}, 14, (6, {"depth": 5}), seed=2),
        "tree": trace("draft-tree", {"depth": 4, "width": 3, "temperature": 0.7}, 6, seed=3),
    }
    for name, data in made.items():
        (FIXTURES / f"{name}.json").write_text(json.dumps(data, indent=None, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
