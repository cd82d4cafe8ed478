"""The suite for minutes with a GPU: all blocks with a tiny model on a CPU, kernels in Triton's interpreter."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("triton")

from workbench.bench import gpu_kernel_blocks, gpu_kernels_suite, gpu_pass_blocks
from workbench.bench.damped_targets import SHAPES
from workbench.bench.gpu_kernels_suite import NOT_BUILT, TOY, blocks, page, run_suite
from workbench.bench.timed_blocks import (
    Block,
    BlockRun,
    SkippedBlockError,
    TimeUpError,
    quartiles,
    run_blocks,
    time_calls,
)

CPU = torch.device("cpu")


def statuses(report: dict[str, Any]) -> dict[str, str]:
    return {entry["block"]: entry["status"] for entry in report["blocks"]}


def reasons(report: dict[str, Any]) -> dict[str, str]:
    return {entry["block"]: entry["why"] for entry in report["skipped"]}


@pytest.mark.unchecked
@pytest.mark.skipif(torch.cuda.is_available(), reason="the kernels run in the interpreter only without a GPU")
def test_every_block_of_the_toy_run_is_in_the_file_or_says_why_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_kernel_blocks, "TOKENS", (1, 5, 17))
    path = tmp_path / "gpu.json"
    report = run_suite(CPU, toy=True, path=path)
    assert json.loads(path.read_text()) == report
    assert report["complete"] is True
    found = statuses(report)
    assert list(found) == [block.name for block in blocks(toy=True)]
    assert {name for name, status in found.items() if status != "done"} == {"launches"}
    assert set(reasons(report)) == {*NOT_BUILT, "launches", "passes toy: replayed"}
    assert report["machine"]["interpreted"]
    assert all(report["rates"].values())
    assert report["compile"]["compiled"] == report["compile"]["kernels"] > 5

    assert {entry["tokens"] for entry in report["exact"]} == {1, 5, 17}
    assert len({entry["kernel"] for entry in report["exact"]}) == 6
    for entry in report["exact"]:
        assert 0 < entry["rel_err"] < 1e-2, entry
        assert (entry["has_nan"], entry["bits_equal"], entry["same_again"]) == (False, True, True), entry

    assert {entry["tile"]["splits"] for entry in report["gemv"]} > {1}, "some kernels are split"
    assert {entry["kernel"] for entry in report["gemv"]} == {"QKV", "O", "gate+up", "down", "LM head"}
    passes = {(entry["layers"], entry["batch"]): entry for entry in report["passes"]}
    assert len(passes) == 4
    for (layers, _), entry in passes.items():
        assert entry["ms_q25"] <= entry["ms"] <= entry["ms_q75"]
        assert (entry["logits_error"] == 0) == (layers == gpu_pass_blocks.OWN)
        assert entry["logits_error"] < 1e-4
    assert passes[gpu_pass_blocks.TRITON, 2]["bytes"] - passes[gpu_pass_blocks.TRITON, 1]["bytes"] == (
        (2 * (20 + 3) - (20 + 1)) * 2 * 2 * 32 * 4
    ), "keys and values of two layers with one head of 32 numbers in float32"

    rounds = {(e["method"], e["temperature"], e["batch"], e["context"]): e for e in report["rounds"]}
    chain = rounds["draft-model", 0.0, 1, 12]
    assert chain["tau"] > 3, "the target's other layer adds nothing"
    assert chain["closed_form"] == pytest.approx(1 / (1 + 5 * chain["c"]), abs=1e-4)
    assert chain["of_closed_form"] == pytest.approx(chain["s_over_tau"] / chain["closed_form"], rel=1e-2)
    plain = rounds["autoregressive", 0.0, 1, 12]
    assert chain["speedup"] == pytest.approx(chain["tokens_per_s"] / plain["tokens_per_s"], rel=1e-3)
    assert plain["tau"] == 1.0
    assert {"draft-tree", "draft-tree-sampled"} <= {key[0] for key in rounds}
    assert rounds["autoregressive", 0.0, 2, 8]["of_batch_1"] > 0
    assert "| draft-tree-sampled |" in page(report)


@pytest.mark.unchecked
def test_without_the_interpreter_kernels_are_skipped_and_the_rest_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    report = run_suite(CPU, toy=True)
    found, why = statuses(report), reasons(report)
    assert not report["machine"]["interpreted"]
    for name in ("compilation", "exactness", "weight kernels"):
        assert found[name] == "skipped"
        assert "TRITON_INTERPRET=1" in why[name]
    assert "TRITON_INTERPRET=1" in why[f"passes toy: {gpu_pass_blocks.TRITON}"]
    assert {entry["layers"] for entry in report["passes"]} == {gpu_pass_blocks.OWN}
    assert found["rounds toy"] == found["batches toy"] == "done"


def test_a_block_that_fails_or_is_too_slow_leaves_the_others_intact(tmp_path: Path) -> None:
    path, seen = tmp_path / "report.json", list[dict[str, Any]]()

    def slow(run: BlockRun) -> None:
        for i in range(1000):
            run.ends_at -= 0.1  # as if each entry took that long
            run.add("numbers", {"i": i})

    def fail(run: BlockRun) -> None:
        run.add("others", {"i": 0})
        raise ZeroDivisionError("in a kernel\nsecond line")

    def last(run: BlockRun) -> None:
        seen.append(json.loads(path.read_text()))
        run.report["end"] = 1

    def late(run: BlockRun) -> None:
        raise AssertionError("never called")

    listed = [Block("slow", 30, slow), Block("failing", 30, fail), Block("last", 30, last)]
    report = run_blocks(listed, BlockRun(CPU), 100, path)
    assert statuses(report) == {"slow": "cut", "failing": "failed", "last": "done"}
    assert 1 < len(report["numbers"]) < 400
    assert report["others"] == [{"block": "failing", "i": 0}]
    assert report["end"] == 1
    assert reasons(report)["failing"] == "ZeroDivisionError: in a kernel"
    assert statuses(seen[0]) == {"slow": "cut", "failing": "failed"}, "the file is written after each block"
    assert seen[0]["complete"] is False
    over = run_blocks([Block("late", 30, late)], BlockRun(CPU), 0.0)
    assert statuses(over) == {"late": "skipped"}
    assert "time limit" in reasons(over)["late"]


@pytest.mark.processes
def test_kernels_are_compiled_in_processes_until_the_time_box_ends() -> None:
    jobs, run = gpu_kernel_blocks.compilation_jobs([TOY], CPU)[:2], BlockRun(CPU)
    seconds = list[float]()
    gpu_kernel_blocks.compile_in_processes(jobs, 1, torch.float32, run, seconds)
    assert len(seconds) == 2
    run.ends_at = 0.0
    with pytest.raises(TimeUpError):
        gpu_kernel_blocks.compile_in_processes(jobs, 1, torch.float32, run, seconds)
    assert len(seconds) == 2


def test_a_second_run_repeats_only_what_did_not_reach_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = list[str]()

    def good(run: BlockRun) -> None:
        calls.append("good")
        run.add("numbers", {"i": 0})
        run.skip("good: replayed", "no GPU")

    def bad(run: BlockRun) -> None:
        calls.append("bad")
        run.add("numbers", {"i": len(calls)})
        if len(calls) == 2:
            raise RuntimeError("once")

    monkeypatch.setattr(gpu_kernels_suite, "blocks", lambda toy: [Block("good", 9, good), Block("bad", 9, bad)])
    first = run_suite(CPU, toy=True, path=tmp_path / "gpu.json")
    assert statuses(first) == {"good": "done", "bad": "failed"}
    second = run_suite(CPU, toy=True, earlier=json.loads((tmp_path / "gpu.json").read_text()))
    assert calls == ["good", "bad", "bad"]
    assert statuses(second) == {"good": "done", "bad": "done"}
    assert second["numbers"] == [{"block": "good", "i": 0}, {"block": "bad", "i": 3}]
    assert set(reasons(second)) == {*NOT_BUILT, "good: replayed"}
    run_suite(CPU, toy=True, earlier=second | {"settings": {}})
    assert calls[3:] == ["good", "bad"], "another device or version: everything is measured again"


def test_a_part_that_fails_leaves_the_other_parts_and_marks_the_block_as_failed() -> None:
    def measure(run: BlockRun) -> None:
        for i in range(3):
            with run.part(f"part {i}"):
                run.add("numbers", {"i": 1 / (i - 1)})

    def skip(run: BlockRun) -> None:
        with run.part("first"):
            raise SkippedBlockError("needs a GPU")

    def good(run: BlockRun) -> None:
        with run.part("all"):
            run.report["end"] = 1

    report = run_blocks([Block("a", 9, measure), Block("b", 9, skip), Block("c", 9, good)], BlockRun(CPU), 100)
    assert [entry["i"] for entry in report["numbers"]] == [-1.0, 1.0]
    assert statuses(report) == {"a": "failed", "b": "skipped", "c": "done"}
    assert reasons(report) == {"a: part 1": "ZeroDivisionError: division by zero", "b": "needs a GPU"}


def test_a_stopped_run_keeps_its_entries(tmp_path: Path) -> None:
    def stop(run: BlockRun) -> None:
        run.add("numbers", {"i": 0})
        raise KeyboardInterrupt

    path = tmp_path / "report.json"
    with pytest.raises(KeyboardInterrupt):
        run_blocks([Block("stopped", 30, stop)], BlockRun(CPU), 100, path)
    report = json.loads(path.read_text())
    assert (report["numbers"], report["complete"]) == ([{"block": "stopped", "i": 0}], False)


def test_outputs_that_nobody_writes_and_bits_that_depend_on_other_tokens_are_noticed() -> None:
    run, dtype = BlockRun(CPU), torch.float32
    truth = torch.arange(1.0, 65.0)[:, None].expand(64, 3)
    gpu_kernel_blocks._compare(run, "unwritten", dtype, lambda n: torch.empty(n, 3), lambda n: truth[:n].double())
    gpu_kernel_blocks._compare(
        run, "unequal", dtype, lambda n: truth[:n] * (1 + n * 1e-6), lambda n: truth[:n].double()
    )
    found = {(entry["kernel"], entry["tokens"]): entry for entry in run.report["exact"]}
    assert all(found["unwritten", n]["has_nan"] and found["unwritten", n]["rel_err"] is None for n in (1, 16, 64))
    assert not found["unequal", 1]["has_nan"]
    assert found["unequal", 1]["bits_equal"]
    assert not found["unequal", 2]["bits_equal"]
    assert found["unequal", 64]["rel_err"] == pytest.approx(64e-6, rel=0.1)
    assert not torch.are_deterministic_algorithms_enabled()


def test_boxes_of_all_blocks_fit_the_time_limit_and_name_both_models() -> None:
    listed = blocks(toy=False)
    assert sum(block.seconds for block in listed) <= gpu_kernels_suite.TIME_LIMIT_S
    names = [block.name for block in listed]
    assert all(f"{kind} {shape.name}" in names for kind in ("passes", "rounds") for shape in SHAPES)
    assert names.index("rounds 1B") < names.index("batches 1B") < names.index("passes 8B")
    assert [block.name for block in blocks(toy=True)] == [*names[:5], "passes toy", "rounds toy", "batches toy"]


def test_weight_kernels_read_the_bytes_of_a_layer_and_the_lm_head() -> None:
    for shape, layer, head in zip(SHAPES, (122e6, 436e6), (525e6, 1051e6), strict=True):
        *kernels, last = gpu_kernel_blocks.weight_kernels(shape)
        assert 2 * sum(kernel.rows * kernel.inputs for kernel in kernels) == pytest.approx(layer, rel=0.01)
        assert 2 * last.rows * last.inputs == pytest.approx(head, rel=0.01)


def test_medians_with_quartiles_and_their_number() -> None:
    assert quartiles([4.0, 1.0, 2.0, 3.0, 5.0], "ms") == {"ms": 3.0, "ms_q25": 2.0, "ms_q75": 4.0, "n": 5}
    assert quartiles([0.5], "us") == {"us": 0.5, "us_q25": 0.5, "us_q75": 0.5, "n": 1}
    calls = list[int]()
    seconds, host = time_calls(lambda: calls.append(0), BlockRun(CPU), 3, warm_up=2)
    assert (len(calls), len(seconds), len(host)) == (5, 3, 3)


def test_sequences_get_tokens_for_the_steps_before_the_last_of_them_starts() -> None:
    run = BlockRun(CPU)
    gpu_pass_blocks.measure_batches(TOY, torch.float32, (1, 6), (300,), 24, run)
    batches = [(row["batch"], row["loop"]) for row in run.report["rounds"]]
    assert batches == [(1, "host"), (1, "device"), (6, "host"), (6, "device")]
    batch = run.report["rounds"][2]
    assert batch["n"] >= 8
    assert batch["tau"] == 1.0
