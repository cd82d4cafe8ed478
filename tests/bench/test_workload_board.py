"""The workload board: measuring, saving, resuming, figures computed from runs, and the page."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import model_helpers
import pytest

from workbench.bench import board, workload_board
from workbench.bench.contenders import EngineContender
from workbench.bench.prompts import BenchPrompt
from workbench.bench.sample import Sample
from workbench.bench.workloads import KINDS
from workbench.core.errors import PromptError
from workbench.engine import Models
from workbench.methods import method_info, registry
from workbench.models.machine import machine_facts

NAMES = ["suffix", "prompt-lookup"]
SUITE = {kind: [BenchPrompt(f"{kind}-{i}", "abc"[: i + 1], kind) for i in range(3)] for kind in ("chat", "copy-edit")}
SECONDS = {"autoregressive": 1.0, "suffix": 0.5, "prompt-lookup": 2.0}


@pytest.fixture(scope="module")
def models() -> Models:
    return model_helpers.make_small_models(noise=None)


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """Return the runs as (method, tokens); every run of a method takes the same time."""
    found = list[tuple[str, int]]()

    def write(self: EngineContender, ids: Any, prompt: int = 0, repeat: int = 0) -> Sample:
        found.append((self.name, self.max_new_tokens))
        n = self.max_new_tokens
        seconds = SECONDS[self.name] * (1 + prompt)
        return Sample(self.name, prompt, repeat, [5] * n, seconds, seconds, n if self.name != "suffix" else n // 2)

    monkeypatch.setattr(EngineContender, "run", write)
    return found


def measure(models: Models, **more: Any) -> tuple[dict[str, Any], bool]:
    return workload_board.measure(models, [registry.get(name).with_params() for name in NAMES], SUITE, 8, **more)


def test_training_free_methods_follow_from_their_declarations() -> None:
    names = workload_board.training_free()
    assert {"prompt-lookup", "suffix", "lookahead", "rest", "swift", "early-exit", "unified-skip"} <= set(names)
    assert not {"autoregressive", "oracle", "draft-model", "rasd", "medusa", "kangaroo", "vlm-draft"} & set(names)
    assert names == [m.name for m in method_info.methods() if m.name in names], "in the order of the catalogue"


def test_methods_are_measured_in_turn_and_each_kind_is_saved_when_complete(
    models: Models, ran: list[tuple[str, int]]
) -> None:
    kept = dict[str, Any]()
    found, complete = measure(models, save_row=lambda key, row: kept.__setitem__(key, row))
    assert complete
    assert kept == found
    assert list(found) == ["chat on tiny-llama", "copy-edit on tiny-llama"]
    assert len(ran) == 3 + 2 * 3 * 3, "one warm-up each, then three prompts of each kind"
    assert {name for name, _ in ran[3:6]} == set(SECONDS), "all methods run on a prompt before the next prompt"
    assert [name for name, _ in ran[3:6]] != [name for name, _ in ran[6:9]], "in changing order"
    assert found["chat on tiny-llama"]["methods"]["suffix"]["runs"] == [[8, 4, 0.5], [8, 4, 1.0], [8, 4, 1.5]]


def test_a_stop_keeps_complete_kinds_and_the_rest_is_measured_on_resume(
    models: Models, ran: list[tuple[str, int]]
) -> None:
    def stop(kinds_done: int, total: int, what: str) -> None:
        if len(ran) == 15:
            raise KeyboardInterrupt

    found, complete = measure(models, progress=stop)
    assert not complete
    assert list(found) == ["chat on tiny-llama"]
    ran.clear()
    rest, complete = measure(models, finished_rows=found)
    assert complete
    assert len(ran) == 3 + 9, "saved kinds are not measured again"
    assert list(rest) == ["chat on tiny-llama", "copy-edit on tiny-llama"]


def test_only_rows_with_the_same_settings_are_reused(models: Models, ran: list[tuple[str, int]]) -> None:
    found, _ = measure(models)
    prompts = {kind: [p.name for p in each] for kind, each in SUITE.items()}
    asked: dict[str, Any] = {"target": "tiny-llama", "dtype": "float64", "names": NAMES, "prompts": prompts}
    asked["tokens"] = 8
    assert workload_board.reusable_rows(found, **asked) == found
    for name, other in {"target": "x", "dtype": "x", "names": ["suffix"], "tokens": 9, "prompts": {}}.items():
        assert not workload_board.reusable_rows(found, **asked | {name: other}), name
    more = prompts | {"chat": [*prompts["chat"], "chat-9"]}
    assert list(workload_board.reusable_rows(found, **asked | {"prompts": more})) == ["copy-edit on tiny-llama"]
    for changed in ({"commit": "abc"}, {"machine": machine_facts() | {"cpu": "another"}}):
        assert not workload_board.reusable_rows({key: row | changed for key, row in found.items()}, **asked)


def test_a_kind_whose_prompts_exceed_the_context_is_refused(models: Models) -> None:
    with pytest.raises(PromptError, match="No prompt of the workload chat leaves room"):
        workload_board.measure(models, [], SUITE, models.target.context)


def row(kind: str, **runs: list[list[float]]) -> dict[str, Any]:
    methods = {name.replace("_", "-"): {"params": {}, "runs": each} for name, each in runs.items()}
    return {
        "kind": kind, "target": "t", "dtype": "float32", "tokens": 8, "left_out": 0, "prompts": ["a", "b", "c"],
        "methods": methods, "date": "2026-11-24 10:00 UTC", "commit": "abc", "machine": machine_facts(),
    }  # fmt: skip


PLAIN = [[8, 8, 1.0], [8, 8, 2.0], [6, 6, 3.0]]


def test_figures_are_paired_by_prompt_and_the_best_of_each_kind_is_named() -> None:
    twice = [[8, 4, 0.5], [8, 2, 1.0], [6, 6, 1.5]]
    slow = [[8, 8, 2.0], [8, 8, 4.0], [6, 6, 6.0]]
    saved = {
        "b": row("chat", autoregressive=PLAIN, suffix=slow, prompt_lookup=slow),
        "a": row("copy-edit", autoregressive=PLAIN, suffix=slow, prompt_lookup=twice),
    }
    (found,) = workload_board.targets(saved)
    assert list(found["kinds"]) == ["copy-edit", "chat"], "in the order of the kinds"
    assert found["best"] == {"copy-edit": "prompt-lookup", "chat": None}, (
        "a method slower than plain decoding is never the best"
    )
    first, second = found["methods"]
    assert (first["method"], second["method"]) == ("prompt-lookup", "suffix")
    assert first["cells"]["copy-edit"]["speedup"]["value"] == pytest.approx(2.0)
    assert first["cells"]["copy-edit"]["tau"]["value"] == pytest.approx(22 / 12)
    assert first["all"]["speedup"]["value"] == pytest.approx(1.0)
    assert first["all"]["speedup"]["prompts"] == 6, "prompts of different kinds are distinct"
    text = workload_board.markdown([found])
    assert "| **2.00 [2.00–2.00] ✓** τ 1.83 |" in text
    assert text.count("**") == 2


def test_the_saved_board_has_every_kind_and_method_on_both_targets() -> None:
    found = {each["target"]: each for each in workload_board.targets()}
    assert {"text-target", "smollm2"} <= set(found)
    for each in found.values():
        assert set(each["kinds"]) == set(KINDS)
        for method in each["methods"]:
            assert set(method["cells"]) == set(KINDS), method["method"]
    assert (board.folder() / "work.md").read_text() == workload_board.markdown(workload_board.targets())


def test_a_method_added_after_the_board_does_not_break_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORKBENCH_BOARDS", str(tmp_path))
    assert workload_board.targets() == []
    workload_board.save("a", row("chat", autoregressive=PLAIN, suffix=PLAIN))
    workload_board.save("b", row("maths", autoregressive=PLAIN, suffix=PLAIN, rest=PLAIN))
    (found,) = workload_board.targets()
    assert {m["method"]: list(m["cells"]) for m in found["methods"]} == {"suffix": ["chat", "maths"], "rest": ["maths"]}
    assert "| – |" in (tmp_path / "work.md").read_text()
