"""Cost of verification: each verifier's rule on drafts of 64 nodes, by vocabulary, and SmolLM2's forward passes.

Distributions are random and drafts are sampled from them, so that no model is needed; the token embeddings that a rule
prepares in advance are random, too. The timed work is `Verifier.rule`, the single copy of its decision to the host, and
the values that a round reads from the decision. Computing the distribution, and the values for every round's trace, is
the same work for all rules and has separate rows.
"""

from __future__ import annotations

import statistics
from collections import abc
from collections.abc import Callable
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any, cast

import torch
from torch import Tensor

from workbench.bench.markdown import format_value, markdown_table
from workbench.bench.study import Run, Study, in_turn, interleaved_runs
from workbench.core.lazy import take, to_host_lazily
from workbench.core.random_stream import Purpose, RandomStream
from workbench.core.sampling import SamplingParams, to_probs
from workbench.core.transfer import on_host
from workbench.core.tree import DraftTree, Sampling
from workbench.decoders.draft_verify.parts import Verification, Verifier
from workbench.engine.request import Sequence
from workbench.kernels.bandwidth import seconds_of
from workbench.kernels.distributions import top_and_entropy
from workbench.models.loading import Models
from workbench.models.machine import describe, machine_facts
from workbench.models.runner import Runner

VOCABULARIES = (512, 4096, 49152, 151936)
"""Vocabulary sizes of the bundled models (rounded up), of a small tokenizer, of SmolLM2 and of Qwen."""
NODES, SIBLINGS = 64, 4
WIDTH = 576
"""Width of the random token embeddings in the verifier benchmark, equal to SmolLM2's."""
DISTRIBUTION = "target's distribution (common to all verifiers)"
TRACE_VALUES = "most likely tokens and entropies (common to all verifiers)"
MAX_SHARE = 0.05
"""Largest acceptable time of a verifier's rule, as a share of a target's forward pass."""
BOARD = "verifiers.json"
KINDS = {
    Sampling.CHAIN: "a chain",
    Sampling.SAMPLED: f"{SIBLINGS} independent siblings",
    Sampling.FIXED_NUMBER: f"{SIBLINGS} siblings without replacement",
    Sampling.HEAD_AND_ONE: f"{SIBLINGS - 1} fixed siblings and one sampled sibling",
}
EARLIER_LABELS = {
    "the law itself, for all": DISTRIBUTION,
    "likeliest tokens and entropies, for all": TRACE_VALUES,
    "distribution, for all rules": DISTRIBUTION,
    "likeliest tokens and entropies, for all rules": TRACE_VALUES,
    "4 independent siblings a place": KINDS[Sampling.SAMPLED],
    "3 fixed and one drawn a place": KINDS[Sampling.HEAD_AND_ONE],
    "3 fixed siblings and one drawn": KINDS[Sampling.HEAD_AND_ONE],
}
"""Labels in verifier reports saved by earlier versions, with their replacements."""
TEMPERATURE_ONE = SamplingParams(temperature=1.0)
LOGIT_STD = 2.5
"""Standard deviation of the random logits in the verifier benchmark.

The most probable of 49,152 tokens then has a probability of a few percent.
"""


@dataclass(frozen=True, slots=True)
class Case:
    """Timed case of the verifier benchmark: a verifier, and the kind of draft that it verifies."""

    verifier: Verifier
    kind: Sampling


def cases(verifiers: abc.Sequence[Verifier]) -> tuple[list[Case], list[str]]:
    """Return the cases to time (a verifier with a kind of draft that it supports), and the verifiers left out.

    Verifiers that need a model are left out.
    """
    runnable, left_out = [], []
    for verifier in verifiers:
        if verifier.needs:
            left_out.append(verifier.name)
            continue
        made_for = getattr(verifier, "useful_for", None) or {Sampling.CHAIN, Sampling.FIXED_NUMBER}
        runnable += [Case(verifier, kind) for kind in KINDS if kind in made_for]
    return runnable, left_out


def verifiers() -> list[Verifier]:
    """Return every verifier that some method offers, each once and with default parameters."""
    from workbench.methods import registry

    by_name = {v.name: v for method in registry.methods() for v in method.verifiers}
    return [type(v)() for v in by_name.values()]


def states_of(timed: abc.Sequence[Case], vocabulary: int, device: torch.device) -> dict[Case, Any]:
    """Return each timed verifier's state for a sequence, with a stub target of random token embeddings."""
    weight = torch.randn(vocabulary, WIDTH, generator=torch.Generator().manual_seed(vocabulary), dtype=torch.bfloat16)
    embed = torch.nn.Embedding.from_pretrained(weight.to(device))
    models, sequence = object.__new__(Models), object.__new__(Sequence)  # only the attributes set below are read
    models.target = cast(Runner, SimpleNamespace(device=device, vocab_size=vocabulary, embed=embed))
    models.shared = {}
    return {case: case.verifier.init_state(sequence, models) for case in timed}


def sample_draft(kind: Sampling, q: Tensor, n: int = NODES, seed: int = 0, siblings: int = SIBLINGS) -> DraftTree:
    """Return a draft of n nodes sampled from distributions `q` [positions, V].

    It is a chain, or groups of siblings; each group's parent is the first node of the previous group.
    """
    width = 1 if kind is Sampling.CHAIN else siblings
    n_positions, generator, device = n // width, torch.Generator().manual_seed(seed), q.device
    probs = q[:n_positions].cpu()
    if kind is Sampling.HEAD_AND_ONE:
        fixed = probs.topk(width - 1, dim=1).indices
        tokens = torch.cat([fixed, probs.scatter(1, fixed, 0.0).multinomial(1, generator=generator)], 1)
    else:
        tokens = probs.multinomial(width, replacement=kind is Sampling.SAMPLED, generator=generator)
    parents = [-1 if i < width else (i // width - 1) * width for i in range(n_positions * width)]
    tree = DraftTree.from_parents(tokens.flatten().tolist(), parents)
    positions = torch.arange(n_positions).repeat_interleave(width)
    q_of = torch.full((len(tree) + 1,), -1)
    q_of[torch.tensor(parents[::width]) + 1] = torch.arange(n_positions)
    logq = probs[positions, tree.tokens].log()
    tree = replace(tree, tokens=tree.tokens.to(device), parents=tree.parents.to(device), logq=logq.to(device))
    tree = replace(tree, sampling=kind, q=q[:n_positions], child_q_rows=q_of.to(device))
    if kind is Sampling.HEAD_AND_ONE:
        is_sampled = torch.arange(len(tree)) % width == width - 1
        probs_of = torch.where(is_sampled, positions, -1)
        tree = replace(
            tree, child_q_rows=None, node_q_rows=probs_of.to(device), without_replacement=is_sampled.to(device)
        )
    return tree


def measure(
    timed: abc.Sequence[Case], vocabulary: int, device: torch.device, repeats: int, nodes: int = NODES
) -> tuple[dict[Case, float], dict[str, float]]:
    """Return the seconds of each case (verifier and draft) and of the shared work, which every case needs.

    Every repeat runs all cases, in changing order. A verifier computes everything that its round reads: the path, the
    token emitted at its end, and the distribution error of tested nodes. The slower of two rounds counts: one that
    accepts as much as possible, one that accepts nothing.
    """
    generator = torch.Generator().manual_seed(vocabulary)
    logits, draft_logits = (LOGIT_STD * torch.randn(2, nodes + 1, vocabulary, generator=generator)).to(device)
    u = torch.from_numpy(RandomStream(vocabulary).uniform(0, Purpose.BONUS, nodes + 1)).to(device)
    p, q = to_probs(logits, TEMPERATURE_ONE), to_probs(draft_logits, TEMPERATURE_ONE)
    entropy = top_and_entropy(logits, p, TEMPERATURE_ONE)[2]
    trees = {kind: sample_draft(kind, q, nodes) for kind in {case.kind for case in timed}}
    states = states_of(timed, vocabulary, device)

    def judge(case: Case, uniform: float) -> None:
        tree, verifier = trees[case.kind], case.verifier
        v = Verification(tree, logits, p, TEMPERATURE_ONE, u, state=states[case], entropy=entropy, lazy=on_host(device))
        decision = verifier.rule(v)
        score, cost = (
            p.new_zeros(0) if column is None else column for column in (decision.score, decision.distribution_error)
        )
        # The only synchronisation of a round.
        parents, accept, stop, scores, costs = to_host_lazily(
            [tree.parents, decision.accept, decision.bonus, score, cost]
        )
        result = verifier.walk(parents, accept, stop, [uniform] * nodes, *([scores] if scores else []))
        if costs:
            take(costs, [node for node, _ in result.tested])

    work: dict[tuple[Case | str, float], Callable[[], Any]] = {
        (case, uniform): (lambda case=case, uniform=uniform: judge(case, uniform))
        for case in timed
        for uniform in (0.0, 1.0)
    }
    work |= {
        (DISTRIBUTION, 0.0): lambda: to_probs(logits, TEMPERATURE_ONE),
        (TRACE_VALUES, 0.0): lambda: top_and_entropy(logits, p, TEMPERATURE_ONE),
    }
    runs = interleaved_runs(list(work), 1, repeats, warm_up=1)
    study = Study[Run, float](runs, in_turn(lambda run: seconds_of(work[run.contender], device)))
    with torch.inference_mode():
        for _ in study.run():
            pass
    timings = {key: [study.results[run] for run in runs if run.contender == key and not run.is_warm_up] for key in work}
    medians = {key: statistics.median(times) for key, times in timings.items()}
    return (
        {case: max(medians[case, 0.0], medians[case, 1.0]) for case in timed},
        {name: medians[name, 0.0] for name in (DISTRIBUTION, TRACE_VALUES)},
    )


def run_suite(
    device: torch.device,
    repeats: int = 7,
    vocabularies: abc.Sequence[int] = VOCABULARIES,
    forwards: abc.Sequence[Callable[[], tuple[str, int, float]]] = (),
    progress: Callable[[str], None] = lambda words: None,
) -> dict[str, Any]:
    """Measure the time of all verifiers' rules at all vocabulary sizes.

    Args:
        device: device of distributions and drafts.
        repeats: timed passes over all cases; the median counts.
        vocabularies: sizes of the vocabularies to measure.
        forwards: functions; each measures a target and returns its name, its vocabulary and the seconds of its forward
            pass over `NODES` tokens.
        progress: function that is called with the name of the current measurement.

    Returns:
        `rows` (verifier, drafts, and seconds by vocabulary), `shared` (work for all rules: seconds by vocabulary, by
        name), `forwards` (target, vocabulary, seconds), `left_out` (verifiers that need a model), `nodes`, `repeats`,
        `machine`.
    """
    timed, left_out = cases(verifiers())
    facts, seconds, shared = machine_facts(), {case: {} for case in timed}, {DISTRIBUTION: {}, TRACE_VALUES: {}}
    for vocabulary in vocabularies:
        progress(f"timing {len(timed)} verifiers with a vocabulary of {vocabulary:,} tokens")
        case_seconds, shared_seconds = measure(timed, vocabulary, device, repeats)
        for case, s in case_seconds.items():
            seconds[case][str(vocabulary)] = s
        for name, s in shared_seconds.items():
            shared[name][str(vocabulary)] = s
    forward_rows = list[dict[str, Any]]()
    for forward in forwards:
        progress(f"timing a forward pass over {NODES} tokens")
        name, vocabulary, s = forward()
        forward_rows.append({"target": name, "vocabulary": vocabulary, "seconds": s})
    return {
        "rows": [
            {"verifier": case.verifier.name, "drafts": KINDS[case.kind], "seconds": s} for case, s in seconds.items()
        ],
        "shared": shared,
        "forwards": forward_rows,
        "left_out": left_out,
        "nodes": NODES,
        "repeats": repeats,
        "device": str(device),
        "machine": facts,
    }  # fmt: skip


def share(row: dict[str, Any], forward: dict[str, Any]) -> float | None:
    """Return a verifier's time / a target's forward pass time; None if this vocabulary size was not measured."""
    s = row["seconds"].get(str(forward["vocabulary"]))
    return None if s is None else s / forward["seconds"]


def _label(label: str) -> str:
    return EARLIER_LABELS.get(label, label)


def table(report: dict[str, Any]) -> str:
    """Return the verifier benchmark's report as a Markdown table, with a row per verifier.

    Columns: the verifier's milliseconds for each vocabulary size, and the time as a share of each target's forward
    pass.
    """
    shared = {_label(name): s for name, s in report["shared"].items()}
    sizes = list(shared[DISTRIBUTION])
    rows = sorted(report["rows"], key=lambda row: row["seconds"][sizes[-1]])
    rows = [*({"verifier": name, "drafts": "–", "seconds": s} for name, s in shared.items()), *rows]

    def milliseconds(size: str) -> Callable[[dict[str, Any]], str]:
        return lambda row: format_value(1e3 * row["seconds"][size], ".2f")

    columns: dict[str, Callable[[dict[str, Any]], Any]] = {
        "verifier": lambda row: row["verifier"] if row["drafts"] == "–" else f"`{row['verifier']}`",
        "drafts": lambda row: _label(row["drafts"]),
    } | {f"vocabulary of {int(size):,}, ms": milliseconds(size) for size in sizes}

    def part(beside: dict[str, Any]) -> Callable[[dict[str, Any]], str]:
        return lambda row: format_value(share(row, beside), ".1%")

    columns |= {f"of {forward['target']}": part(forward) for forward in report["forwards"]}
    return markdown_table(columns, rows, ("drafts",))


def page(report: dict[str, Any]) -> str:
    """Return the board of verification costs as Markdown: table, machine, and rules slower than `MAX_SHARE` allows."""
    lines = [
        "# Cost of verifiers",
        "",
        f"Milliseconds that each verifier takes for a draft of {report['nodes']} nodes, including the values "
        f"that a round records, on random distributions. One timed round accepts as many tokens as possible, "
        f"another accepts none; the table has the slower of the two rounds, as the median of "
        f"{report['repeats']} repeats. Made by `workbench bench --suite verifiers --out "
        "assets/boards/verifiers.json`; `workbench docs` writes this page.",
        "",
        f"Measured on {describe(report['machine'])}; device {report['device']}.",
    ]
    for forward in report["forwards"]:
        parts = {i: part for i, row in enumerate(report["rows"]) if (part := share(row, forward)) is not None}
        slow = [report["rows"][i] for i, part in parts.items() if part > MAX_SHARE]
        labels = ", ".join(f"`{row['verifier']}` ({_label(row['drafts'])}, {share(row, forward):.1%})" for row in slow)
        lines.append(
            f"A forward pass of {forward['target']} ({forward['vocabulary']:,} tokens) over {report['nodes']} tokens "
            f"takes {1e3 * forward['seconds']:.1f} ms here. "
            + (
                f"Verifiers that take more than {MAX_SHARE:.0%} of the time of this forward pass: {labels}."
                if slow
                else f"No verifier takes more than {MAX_SHARE:.0%} of the time of this forward pass."
                if parts
                else "No verifier was measured with the vocabulary size of this model."
            )
        )
    if report["left_out"]:
        names = ", ".join(f"`{name}`" for name in report["left_out"])
        lines.append(f"Verifiers not measured, because they need a model: {names}.")
    return "\n".join([*lines, "", table(report), ""])
