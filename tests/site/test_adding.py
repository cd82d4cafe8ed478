"""The page "Adding a drafter, …" is tested: each of its files is loaded, and the added part drafts or is trained."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from methods.test_round_enumeration import EXACTLY, chains, distance, output_distribution, random_tables

from workbench.cli.train import train
from workbench.core.errors import MethodUnavailableError
from workbench.core.sampling import SamplingParams
from workbench.engine import Engine, Models, Request
from workbench.methods import registry
from workbench.models.bundle import bundled_folder
from workbench.models.loading import load_models
from workbench.site import reference
from workbench.site.notebook_pairs import ROOT
from workbench.trace.metrics import DISTRIBUTION_ERROR

PAGE = (ROOT / ".site" / "adding.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
PROMPT = "Mia had a red ball. Tom had a red ball. Mia had a"


@pytest.fixture(autouse=True)
def _restore_registry() -> Iterator[None]:
    """Restore the registry after each test."""
    registry.names()
    state: list[dict[str, Any]] = [registry._methods, registry._places, registry._of_file]
    kept = [dict(held) for held in state]
    yield
    for held, was in zip(state, kept, strict=True):
        held.clear()
        held.update(was)


def load_method_source(tmp_path: Path, *blocks: str) -> None:
    file = tmp_path / "mine.py"
    file.write_text("\n".join(blocks), encoding="utf-8")
    registry.load(file)


def generate(models: Models, method: str, values: dict[str, Any] | None = None, temperature: float = 0.0) -> Any:
    chosen = registry.get(method).with_params(**values or {})
    prompt = models.tokenizer(PROMPT)["input_ids"]
    return Engine(models).generate(Request(prompt, chosen, SamplingParams(temperature=temperature), 20, 5))


@pytest.fixture(scope="module")
def pair() -> Models:
    """The bundled text models."""
    return load_models("text-target", "text-drafter", "cpu", "float32")


def test_the_page_is_part_of_the_reference_and_its_blocks_are_short() -> None:
    assert reference.pages()["reference/adding.md"] == PAGE
    assert {"Adding a part": "reference/adding.md"} in reference.navigation()
    assert len(BLOCKS) == 8
    assert all(len([line for line in block.splitlines() if line.strip()]) <= 40 for block in BLOCKS)


def test_the_drafter_drafts_and_reports_its_state(pair: Models, tmp_path: Path) -> None:
    load_method_source(tmp_path, BLOCKS[0])
    plain, mine = generate(pair, "autoregressive"), generate(pair, "after-pair")
    assert mine.token_ids == plain.token_ids
    assert any(round.nodes.tokens for round in mine.rounds)
    known = [round.signals["pairs known"] for round in mine.rounds if "pairs known" in round.signals]
    assert known[-1] > known[0] > 0


def test_the_exact_verifier_preserves_the_distribution_and_respects_its_limit(
    pair: Models, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load_method_source(tmp_path, BLOCKS[1])
    method = registry.get("draft-model")
    assert method.promises["first-few"].value == "exact"
    w = random_tables("any", 3, 3)
    for most in (1, 2, 3):
        verifier = method.with_params(verifier="first-few", most=most).verifier
        assert distance(output_distribution(w, chains(w), verifier, monkeypatch), w.joint()[()]) < EXACTLY
    values = {"verifier": "first-few", "most": 2, "policy": "fixed", "depth": 5}
    trace = generate(pair, "draft-model", values)
    assert trace.token_ids == generate(pair, "autoregressive").token_ids
    assert max(len(round.path) for round in trace.rounds) == 2
    capped = [round for round in trace.rounds if len(round.path) == 2 and len(round.nodes.tokens) > 2]
    assert capped
    assert {(round.bonus_kind, round.nodes.status[2]) for round in capped} == {("bonus", "discarded")}


def test_the_approximate_verifier_accepts_top_tokens_and_reports_its_error(pair: Models, tmp_path: Path) -> None:
    load_method_source(tmp_path, BLOCKS[2])
    assert registry.get("draft-model").promises["among-top"].value == "approximate"
    rates = []
    for rank in (1, 20):
        trace = generate(pair, "draft-model", {"verifier": "among-top", "rank": rank}, temperature=0.9)
        rates.append(sum(len(r.path) for r in trace.rounds) / len(trace.rounds))
        assert any(r.signals[DISTRIBUTION_ERROR] > 0 for r in trace.rounds if len(r.nodes.tokens)), (
            "the distribution error is missing"
        )
    assert rates[0] < rates[1]


@pytest.mark.parametrize(
    ("block", "values"), [(3, {"grower": "comb", "teeth": 3}), (4, {"policy": "as-last", "most": 6})]
)
def test_the_tree_builder_and_the_policy_do_not_change_the_text(
    pair: Models, tmp_path: Path, block: int, values: dict[str, Any]
) -> None:
    load_method_source(tmp_path, BLOCKS[block])
    trace = generate(pair, "draft-model", values)
    assert trace.token_ids == generate(pair, "autoregressive").token_ids
    drafted = [len(round.nodes.tokens) for round in trace.rounds[:-1]]
    assert all(n % 3 == 0 for n in drafted) if block == 3 else len(set(drafted)) > 1


def test_the_head_is_trained_by_its_own_recipe_and_drafts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    models = tmp_path / "models"
    shutil.copytree(bundled_folder() / "text-target", models / "text-target")
    monkeypatch.setenv("WORKBENCH_MODELS", str(models))
    monkeypatch.setenv("WORKBENCH_METHODS", str(tmp_path / "mine.py"))
    load_method_source(tmp_path, *BLOCKS[5:7])
    with pytest.raises(MethodUnavailableError, match="Train a head: workbench train second-next"):
        generate(load_models("text-target", None, "cpu", "float32"), "second-next")
    train("second-next", ["steps=3", "prompts=1", "tokens=8"])
    card = (models / "text-second-next" / "README.md").read_text(encoding="utf-8")
    assert "One layer of width 288." in card
    assert "`workbench train second-next`" in card
    loaded = load_models("text-target", None, "cpu", "float32")
    trace = generate(loaded, "second-next")
    assert trace.token_ids == generate(loaded, "autoregressive").token_ids
    assert any(round.nodes.tokens for round in trace.rounds)


def test_the_decoder_runs_records_and_is_left_in_mid_run(pair: Models, tmp_path: Path) -> None:
    load_method_source(tmp_path, BLOCKS[7])
    trace = generate(pair, "no-repeat", {"last": 6})
    assert len(trace.rounds) == len(trace.token_ids) == 20
    text = [*trace.header.prompt_tokens, *trace.token_ids]
    assert all(token not in text[i - 6 : i] for i, token in enumerate(text) if i >= len(trace.header.prompt_tokens))
    engine = Engine(pair)
    sequence = engine.submit(Request(text[:12], registry.get("no-repeat"), max_new_tokens=20))
    while sequence.n_new < 5:
        engine.step()
    sequence.change(method=registry.get("draft-model"))
    while not engine.is_idle:
        engine.step()
    assert sequence.trace is not None
    assert {r.method for r in sequence.trace.rounds} == {"no-repeat", "draft-model"}
