"""The verdict on a claim follows from the figures alone, in every direction; every method has a claim."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import model_helpers
import numpy as np
import pytest

from workbench.bench import claims, claimsboard, text_lab
from workbench.bench.claims import (
    ANSWERS_LOST,
    BUNDLED,
    BY_CONSTRUCTION,
    COLUMNS,
    CONTRADICTED,
    IN_DIRECTION,
    IN_SIZE,
    INCONCLUSIVE,
    NOT_MEASURABLE,
    NOT_MEASURED,
    Claim,
    Measurement,
    compute_verdict,
)
from workbench.bench.statistics import mean
from workbench.bench.text_lab import TextLab
from workbench.core.errors import UnknownNameError
from workbench.core.promise import Promise
from workbench.core.sampling import SamplingParams
from workbench.decoders.declarations import KINDS, MAX_REASON_CHARS
from workbench.engine import Engine, Request
from workbench.methods import registry
from workbench.trace.events import EmittedToken, Nodes, Round


def claim(low: float | None = 2.0, high: float | None = 3.0, **more: object) -> Claim:
    return dataclasses.replace(Claim("speed-up", "s", low, high, "p", lambda lab: measured(1), method="m"), **more)


def measured(value: float, low: float | None = None, high: float | None = None) -> Measurement:
    return Measurement(value, value if low is None else low, value if high is None else high, 5, "here")


@pytest.mark.parametrize(
    ("what", "found", "verdict"),
    [
        (claim(), measured(2.5), IN_SIZE),
        (claim(), measured(1.6, 1.2, 2.0), IN_SIZE),  # a quarter below 2 is still the same size
        (claim(), measured(1.4, 1.1, 1.8), IN_DIRECTION),
        (claim(), measured(4.0, 3.5, 4.5), IN_DIRECTION),
        (claim(), measured(1.4, 0.9, 1.8), INCONCLUSIVE),  # the interval contains 1
        (claim(), measured(2.5, 1.0, 4.0), INCONCLUSIVE),  # an interval that begins at 1 contains it, too
        (claim(), measured(0.8, 0.7, 0.9), CONTRADICTED),
        (claim(), None, NOT_MEASURED),
        (claim(lacks="a head"), measured(2.5), NOT_MEASURABLE),
        (claim(measure=None), None, NOT_MEASURABLE),
        (claim(None, None), measured(1.05, 1.01, 1.1), IN_DIRECTION),
        (claim(None, None), measured(1.05, 0.99, 1.1), INCONCLUSIVE),
        (claim(None, None), measured(0.95, 0.9, 0.99), CONTRADICTED),
        (claim(None, None, neutral=0.0), measured(-0.2, -0.3, -0.1), CONTRADICTED),
        (claim(0.5, 0.5), measured(0.6, 0.5, 0.7), IN_SIZE),  # a claim may point downward
        (claim(0.5, 0.5), measured(0.9, 0.8, 0.95), IN_DIRECTION),
        (claim(0.5, 0.5), measured(0.9, 0.8, 1.05), INCONCLUSIVE),
        (claim(0.5, 0.5), measured(1.2, 1.1, 1.3), CONTRADICTED),
        (claim(1.0, 1.0, tolerance=0.05), measured(1.01, 0.96, 1.04), IN_SIZE),  # no change is claimed
        (claim(1.0, 1.0, tolerance=0.05), measured(1.04, 1.02, 1.06), INCONCLUSIVE),
        (claim(1.0, 1.0, tolerance=0.05), measured(0.8, 0.5, 1.06), INCONCLUSIVE),  # few prompts give no evidence
        (claim(1.0, 1.0, tolerance=0.05), measured(1.08, 1.06, 1.1), CONTRADICTED),
        (claim(1.0, 1.0, by_construction="s"), measured(1.0), BY_CONSTRUCTION),
        (claim(None, None, by_construction="s"), measured(1.2, 1.1, 1.3), BY_CONSTRUCTION),
        (claim(1.0, 1.0, by_construction="s"), measured(2.0), CONTRADICTED),  # something is broken
    ],
)
def test_the_verdict_follows_from_the_figures(what: Claim, found: Measurement | None, verdict: str) -> None:
    assert compute_verdict(what, found) == verdict


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [(0.96, 1.0, IN_SIZE), (0.9, 1.0, INCONCLUSIVE), (0.3, 0.94, ANSWERS_LOST), (None, None, NOT_MEASURED)],
)
def test_the_gain_of_an_approximate_rule_is_judged_only_if_answers_stay_right(
    low: float | None, high: float | None, verdict: str
) -> None:
    answers = None if low is None or high is None else {"value": low, "low": low, "high": high}
    found = dataclasses.replace(measured(2.5), answers=answers)
    assert compute_verdict(claim(matched=True), found) == verdict
    assert compute_verdict(claim(), found) == IN_SIZE


def test_every_saved_figure_belongs_to_a_claim() -> None:
    """The board shows figures of declared claims only; others would be saved for ever, and never measured again."""
    known = {claim.row(column) for claim in claims.claims() for column in COLUMNS}
    assert not claimsboard.board.read(claimsboard.BOARD).keys() - known


def test_every_claim_about_an_approximate_rule_is_judged_at_matched_accuracy() -> None:
    rules = {type(v) for m in registry.methods() for v in (m.verifier, *m.other_verifiers) if not v.exact_for}
    declared = [c for rule in rules for c in rule.claims]
    loose = [c for m in registry.methods() if m.promise is Promise.APPROXIMATE for c in m.claims]
    assert len(declared) >= 9
    assert loose
    for each in (*declared, *loose):
        assert each.matched, each.name


def test_the_most_lenient_setting_that_keeps_the_answers_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the last of three settings loses answers, the second counts. A single setting that loses them is shown."""
    kept = {"a": (0.98, 1.0), "b": (0.96, 1.0), "c": (0.5, 0.7), "d": (0.97, 1.0)}
    asked: list[str] = []

    def with_answers(lab: Any, mine: dict[str, str], *_: Any) -> Measurement:
        asked.append(mine["x"])
        low, high = kept[mine["x"]]
        return dataclasses.replace(measured(len(asked)), answers={"value": high, "low": low, "high": high})

    monkeypatch.setattr(TextLab, "_with_answers", with_answers)
    lab = TextLab("draft-model", claims.scale_of("text-target"))
    assert lab.at_matched_accuracy([{"x": x} for x in "abcd"], {}).value == 2
    assert asked == ["a", "b", "c"], "settings after one that loses answers are not tried"
    assert lab.at_matched_accuracy([{"x": "c"}, {"x": "d"}], {}).answers == {"value": 0.7, "low": 0.5, "high": 0.7}


def test_a_claim_that_tau_is_above_1_is_not_counted() -> None:
    """No measurement can contradict it: τ is at least 1, and above 1 as soon as one draft is accepted."""
    alone = [c for c in claims.claims() if c.low is None and c.quantity.startswith(("tokens per target pass", "τ of"))]
    assert len(alone) >= 3
    for each in alone:
        assert "relative" in each.quantity or each.by_construction, each.name


def test_answers_and_gain_come_from_the_same_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """By hand: two prompts, τ of 4 and 1 against 2 and 1; one of the exact rule's two right answers is kept."""
    prompts = [SimpleNamespace(is_right=lambda text: text == "yes"), SimpleNamespace(is_right=lambda text: "e" in text)]
    taus = {"mine": ("yes", 4.0, "no", 1.0), "exact": ("yes", 2.0, "eh", 1.0)}

    def draws(lab: Any, method: str, params: dict[str, str], temperature: float) -> list[Any]:
        first, tau, second, other = taus[params["rule"]]
        return [[[(first, tau)]], [[(second, other)]]]

    monkeypatch.setattr(TextLab, "_draws", draws)
    monkeypatch.setattr(TextLab, "_select_prompts", lambda lab: prompts)
    monkeypatch.setattr(TextLab, "_text", lambda lab, rounds: rounds[0][0])
    monkeypatch.setattr(TextLab, "setting", property(lambda lab: "here"))
    monkeypatch.setattr(text_lab.metrics, "tau", lambda rounds: rounds[0][1])
    lab = TextLab("draft-model", claims.scale_of("text-target"))
    found = lab.at_matched_accuracy([{"rule": "mine"}], {"rule": "exact"})
    assert found.value == pytest.approx(2**0.5)
    assert found.answers is not None
    assert found.answers["value"] == 0.5
    assert "1 of 2 answers correct, 2 with the exact verifier" in found.setting


def test_a_claim_that_lacks_something_is_not_measurable_until_it_was_measured() -> None:
    assert compute_verdict(claim(), None, "no heads yet") == NOT_MEASURABLE
    assert compute_verdict(claim(), measured(2.5), "no heads yet") == IN_SIZE


def test_every_method_has_its_claim_and_every_claim_a_command() -> None:
    found = claims.claims()
    assert {c.method for c in found} == set(registry.names())
    assert {c.method for c in found if c.key == "main"} == set(registry.names())
    assert len({c.row(column) for c in found for column in claims.COLUMNS}) == 2 * len(found)
    for c in found:
        assert c.source
        assert c.setting
        assert (c.measure is None) <= bool(c.lacks), f"{c.name}: nothing measures it, and no reason is given"
        assert c.command().startswith(f"workbench claims --method {c.method}")
        assert c.command("smollm2") == f"{c.command()} --target smollm2"
        assert (c.low is None) == (c.high is None)


def test_missing_requirements_of_a_column_follow_from_files_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORKBENCH_MODELS", str(tmp_path))
    known = {c.name: c for c in claims.claims()}
    assert known["prompt-lookup/main"].missing_requirement("smollm2") == ""
    assert known["msd/main"].missing_requirement("smollm2") == "a method for images"
    assert known["draft-tree/main"].missing_requirement("smollm2") == "there is no draft model for smollm2 yet"
    assert known["medusa/main"].missing_requirement("smollm2") == "there are no medusa heads for smollm2 yet"
    assert known["medusa/main"].missing_requirement() == "there are no medusa heads for text-target yet"
    (tmp_path / "heads").mkdir()
    heads = {"workbench_head": "medusa", "target": "smollm2"}
    (tmp_path / "heads" / "config.json").write_text(json.dumps(heads))
    assert known["medusa/main"].missing_requirement("smollm2") == ""
    assert known["medusa/main"].missing_requirement() == "there are no medusa heads for text-target yet"


def test_each_target_has_a_column_and_the_board_explains_contradicted_rows() -> None:
    machine = {"cpu": "C", "cores": 2, "torch": "2", "transformers": "5", "date": "d", "load": 0.5}
    other = machine | {"cpu": "D", "load": 0.1}

    def saved(value: float, on: dict[str, Any], date: str = "2026") -> dict[str, Any]:
        return {"measured": dataclasses.asdict(measured(value)), "date": date, "commit": "abc", "machine": on}

    (claim,) = claims.claims_of("eagle-3")
    looked_into, why = claim.explanation

    kept = {"eagle-3/main": saved(0.9, machine, looked_into), "eagle-3/main@smollm2": saved(1.4, other)}
    rows = {row["name"]: row for row in claimsboard.rows(kept)}
    row = rows["eagle-3/main"]
    (there,) = row["elsewhere"]
    assert (row["verdict"], there["verdict"]) == (CONTRADICTED, IN_SIZE)
    assert row["why"] == why
    assert there["why"] == ""
    assert rows["draft-model/main"]["elsewhere"][0]["verdict"] in (NOT_MEASURED, NOT_MEASURABLE)
    text = claimsboard.markdown(list(rows.values()))
    line = next(x for x in text.splitlines() if x.startswith("| `eagle-3`"))
    *_, here, elsewhere = line.removesuffix(" |").split(" | ")
    assert here == f"**contradicted**<br>0.9 (0.9–0.9, n = 5)<br>*Why:* {why}"
    assert elsewhere == "**reproduced in size**<br>1.4 (1.4–1.4, n = 5)"
    of_figures = [x for x in text.splitlines() if x.startswith("| `eagle-3/main`")]
    assert [x.split(" | ")[2:5] for x in of_figures] == [
        ["here", f"{looked_into}, abc", "C, 2 cores; torch 2, transformers 5"],
        ["here", "2026, abc", "D, 2 cores; torch 2, transformers 5"],
    ]
    timed = claimsboard.markdown(claimsboard.rows({"prompt-lookup/main": saved(2.5, machine)}))
    assert "C, 2 cores; torch 2, transformers 5, load 0.5" in timed, "the load counts for a speed"
    for since in (saved(1.4, machine, looked_into), saved(0.8, machine)):  # it holds; it was measured since
        again = claimsboard.rows({"eagle-3/main": since})
        assert next(row for row in again if row["name"] == "eagle-3/main")["why"] == ""


def test_a_figure_on_another_target_has_its_own_reason() -> None:
    (claim,) = claims.claims_of("prompt-lookup")
    both = dataclasses.replace(
        claim, explanation=("today", "here"), explanation_by_column={"smollm2": ("2026", "there")}
    )

    def why(column: str, value: float, date: str) -> str:
        return claimsboard.claim_entry(both, measured(value), column, {"date": date, "machine": {}})["why"]

    assert (why(BUNDLED, 0.9, "today"), why("smollm2", 0.9, "2026")) == ("here", "there")
    assert (why("smollm2", 0.9, "today"), why("smollm2", 2.5, "2026"), why("other", 0.9, "2026")) == ("", "", "")
    assert claimsboard.claim_entry(claim, measured(0.9), "smollm2", {"date": claim.explanation[0]})["why"] == ""
    assert not {"why", "why_on"} & set(both.to_wire())


def test_every_reason_has_a_known_kind_and_belongs_to_a_figure() -> None:
    known = claims.claims()
    assert {column for claim in known for column in claim.explanation_by_column} <= set(COLUMNS) - {BUNDLED}
    reasons = [why for claim in known for why in (claim.explanation, *claim.explanation_by_column.values()) if any(why)]
    assert len(reasons) > 3
    assert all(date.endswith(" UTC") and why.startswith(KINDS) for date, why in reasons)


def test_the_board_opens_with_the_count_of_each_verdict_on_each_target() -> None:
    machine = {"cpu": "C", "cores": 2, "torch": "2", "transformers": "5", "date": "d", "load": 0.5}

    def saved(value: float, low: float, high: float) -> dict[str, Any]:
        figure = dataclasses.asdict(measured(value, low, high))
        return {"measured": figure, "date": "2026", "commit": "abc", "machine": machine}

    rows = claimsboard.rows(
        {
            "draft-model/main": saved(2.5, 2.4, 2.6),
            "eagle/main": saved(1.1, 1.05, 1.2),
            "medusa/main": saved(1.1, 0.9, 1.2),
            "hydra/main": saved(0.8, 0.7, 0.9),
            "autoregressive/main": saved(1.0, 1.0, 1.0),
            "hydra/main@smollm2": saved(1.2, 1.1, 1.3),
        }
    )
    here, there = claimsboard.counts(rows).values()
    assert [here[verdict] for verdict in claims.MEASURED_VERDICTS] == [1, 1, 1, 1]
    assert here[BY_CONSTRUCTION] > 1, "claims that hold by construction get no verdict, measured or not"
    assert sum(here.values()) == sum(there.values()) == len(rows)
    assert (there[IN_DIRECTION], there[CONTRADICTED]) == (1, 0)
    lines = claimsboard.markdown(rows).splitlines()
    assert lines[2].split(" | ")[1:5] == list(claims.MEASURED_VERDICTS), "the counts come first on the board"
    assert lines[4].startswith("| bundled pair | 1 | 1 | 1 | 1 |")


def test_the_prose_of_every_row_fits_a_cell() -> None:
    for row in claimsboard.rows():
        for text in (row["quantity"], row["setting"], row["source"], row["lacks"], row["by_construction"]):
            assert len(text) <= MAX_REASON_CHARS, row["name"]
        for column in (row, *row["elsewhere"]):
            assert len(column["why"]) <= MAX_REASON_CHARS, row["name"]
            assert len(claimsboard._cell(row, column)) <= 300, row["name"]


def test_a_claim_on_few_kinds_has_as_many_prompts_as_one_on_all() -> None:
    lab = TextLab("eagle", claims.SCALES["text-target"])
    assert Counter(p.group for p in lab._select_prompts()) == dict.fromkeys(text_lab.ALL, 16)
    assert len({p.prompt for p in lab._select_prompts()}) == 112
    assert len(lab.on_groups("copy")._select_prompts()) == 65
    few = TextLab("eagle", dataclasses.replace(lab.scale, per_group=1))
    assert (
        len(few._select_prompts()),
        len(few.on_groups("maths")._select_prompts()),
        len(few.on_groups("maths", "json")._select_prompts()),
    ) == (7, 7, 6)
    assert len(lab._for_timing()._select_prompts()) == 28
    of_problems = lab.with_trajectories(8)
    assert (len(of_problems._select_prompts()), of_problems.scale.draws) == (14, 8), (
        "as many runs, eight of each problem"
    )


def test_copied_share_counts_words_of_the_answer() -> None:
    text = list(range(20))
    assert text_lab.copied_share(text, text[5:12]) == 1.0
    assert text_lab.copied_share(text, [99, *text[:4]]) == 0.5
    assert text_lab.copied_share(text, [3, 2, 1, 0]) == 0.0
    assert text_lab.copied_share(text, text[:3]) == 0.0, "the answer is too short"


COPYING = ("prompt-lookup", "aggressive", "lookahead-trie", "suffix")
"""Methods whose papers claim a speed-up on texts that repeat their prompt."""


def test_claims_about_copied_text_use_prompts_that_the_target_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_lab, "_copied_shares", lambda scale, prompts: [0.9 - i % 2 for i in range(len(prompts))])
    timed: list[TextLab] = []
    monkeypatch.setattr(TextLab, "speed", lambda lab: timed.append(lab) or measured(1))
    for name in COPYING:
        (claim,) = claims.claims_of(name, "main")
        assert claim.measure is not None
        claim.measure(TextLab(name, claims.SCALES["text-target"]))
        assert len(timed[-1]._select_prompts()) == 33, "every second of 65"
        assert len(timed[-1]._for_timing()._select_prompts()) == 28


@pytest.mark.slow
def test_the_bundled_target_copies_in_at_least_25_prompts() -> None:
    lab = TextLab("prompt-lookup", claims.SCALES["text-target"]).on_copied_answers()
    assert len(lab._for_timing()._select_prompts()) >= 25


def test_tokens_per_layer_counts_every_layer_that_ran() -> None:
    def round_(emitted: int, drafts: int, signals: dict[str, float] | None = None, **params: int) -> Round:
        written = [EmittedToken(1, "", 0, 0, "plain", None, 0, 1.0)] * emitted
        return Round(0, "del", params, Nodes(), [], 1, "plain", written, draft_forwards=drafts, signals=signals or {})

    dynamic = [round_(3, 2, signals={"exit layer": 4}), round_(1, 0)]
    assert text_lab.tokens_per_layer(dynamic, 12, head=1.0) == pytest.approx(4 / (13 + 2 * 5 + 13))
    fixed = [round_(2, 4, exit_layer=3)]
    assert text_lab.tokens_per_layer(fixed, 12, head=0.5) == pytest.approx(2 / (12.5 + 4 * 3.5))


def compared(found: Claim) -> tuple[str, tuple[Any, ...], dict[str, Any]]:
    """Return the measurement that a claim asks a lab for: its name and arguments."""
    calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []

    class Lab:
        models = SimpleNamespace(target=SimpleNamespace(n_layers=12))

        def __getattr__(self, name: str) -> Any:
            return lambda *args, **more: calls.append((name, args, more))

    assert found.measure is not None
    found.measure(Lab())
    return calls[0]


SAME_SIZE = ("dyspec-16", "dyspec-32", "dyspec-64", "sequoia", "sequoia-16", "sequoia-32", "sequoia-64")


@pytest.mark.parametrize("key", SAME_SIZE)
def test_tree_builders_are_compared_at_equal_size(key: str) -> None:
    """Sequoia counts the time of passes by default, and its tree of "at most 64 nodes" then holds about 8."""
    (found,) = claims.claims_of("draft-tree-sampled", key)
    name, (other, own, theirs), more = compared(found)
    assert name == "tau_over"
    models = model_helpers.make_models("llama", noise=0.15)
    sizes = []
    for method, params in ((found.method, own), (other, theirs)):
        request = Request(
            model_helpers.random_prompt(9), registry.get(method).with_params(**params),
            SamplingParams(more["temperature"]), max_new_tokens=24, stop_at_eos=False,
        )  # fmt: skip
        sizes.append(max(len(r.nodes) for r in Engine(models).generate(request).rounds))
    assert sizes[0] == sizes[1]
    assert sizes[0] == int((found.key.partition("-")[2]) or 21)


def test_claims_compare_the_quantity_that_the_paper_optimises() -> None:
    """DEL: tokens per computed layer. Superposed decoding: with the paper's n-grams, beside a chain of equal passes."""
    (exits,) = claims.claims_of("del", "fixed-exit")
    assert compared(exits)[:2] == ("tokens_per_layer_over", ("early-exit", {}, {"exit_layer": 3, "depth": 4}))
    (superposed,) = claims.claims_of("draft-tree", "superposed")
    _, (other, own, theirs, temperature), _ = compared(superposed)
    assert (other, own["ngrams"], temperature) == ("draft-tree", 0.54, 0.0)
    assert theirs == {"grower": "chain", "depth": own["depth"]}


def test_every_sampled_run_of_a_claim_has_its_own_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    """With one seed for all, every prompt would be sampled with the same random numbers."""
    seeds: list[int] = []

    class Recorder:
        def __init__(self, *_: Any, **__: Any) -> None:
            pass

        def generate_all(self, requests: Iterable[Request]) -> list[Any]:
            seeds.extend(request.seed for request in requests)
            return [SimpleNamespace(rounds=[]) for _ in seeds]

    monkeypatch.setattr(text_lab, "Engine", Recorder)
    monkeypatch.setattr(TextLab, "models", property(lambda lab: None))
    monkeypatch.setattr(TextLab, "prompts", lambda lab: [[1], [2], [3]])
    lab = TextLab("draft-tree-sampled", dataclasses.replace(claims.scale_of("text-target"), draws=2))
    assert [len(draws) for draws in text_lab._run(lab, lab.method, (), 1.0)] == [2, 2, 2]
    assert len(set(seeds)) == len(seeds) == 6


def test_unknown_claims_name_the_known_ones() -> None:
    with pytest.raises(UnknownNameError, match="draft-model/main"):
        claims.claims_of("draft-model", "nobody")


def test_the_bootstrap_interval_covers_as_often_as_stated() -> None:
    rng = np.random.default_rng(1)
    covered = 0
    for _ in range(60):
        found = Measurement.of(mean(rng.normal(2.0, 1.0, 25).tolist()), "here")
        assert found.low <= found.value <= found.high
        covered += found.low <= 2.0 <= found.high
    assert 48 <= covered <= 60  # 95 % of 60 is 57; below 48 with probability 1e-4
    assert Measurement.of(mean([1.0, 3.0]), "here") == Measurement(2.0, 1.0, 3.0, 2, "here")
    assert Measurement.of(mean([2.0] * 5), "here") == Measurement(2.0, 2.0, 2.0, 5, "here")
