"""Work of a target pass counted by hand, which passes count, and the limit that follows from measured rates."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import pytest
import torch

from workbench.bench import roofline
from workbench.bench.roofline import ARITHMETIC, MEMORY, MachineRates, PassWork, TargetSize, target_passes, target_size
from workbench.core.errors import WorkbenchError
from workbench.kernels import bandwidth
from workbench.kernels.bandwidth import bytes_read
from workbench.trace.events import Header, Round, Trace
from workbench.trace.nodes import ACCEPTED, DISCARDED, Nodes, Probe
from workbench.trace.tokens import CORRECTED, EmittedToken
from workbench.views import recorded_runs

SIZE = TargetSize(weights=1000, item_bytes=2, layers=3, heads=4, kv_heads=2, head_dim=5)
RATES = MachineRates("cpu", "float32", bytes_per_second=1e10, flops_per_second=8e10)


def chain(accepted: int, drafted: int, **more: object) -> Round:
    """Return a round that emits `accepted` + 1 tokens."""
    n, status = drafted, [ACCEPTED] * accepted + [DISCARDED] * (drafted - accepted)
    nodes = Nodes([1] * n, list(range(-1, n - 1)), list(range(1, n + 1)), [0] * n, [""] * n, [0.5] * n, [0.5] * n,
                  [None] * n, [None] * n, status, ["d"] * n)  # fmt: skip
    emitted = [EmittedToken(1, "", 0, 0, CORRECTED, None, 0, 0.5)] * (accepted + 1)
    one = Round(0, "draft-model", {}, nodes, list(range(accepted)), 1, CORRECTED, emitted, seconds=0.02, verify_s=0.01)
    for name, value in more.items():
        setattr(one, name, value)
    return one


def run(*rounds: Round) -> Trace:
    header = Header("t", "draft-model", {}, "exact", 0, "ab", [1, 2], ["a", "b"], 64, "float32", "cpu")
    for index, one in enumerate(rounds):
        one.index, one.started_s = index, 0.02 * index
    return Trace(header, list(rounds))


def test_flops_and_bytes_of_a_pass() -> None:
    # 7 tokens after 10 positions: 2 · 1000 per token; 4 · 3 layers · 4 heads · 5 for each of 7 · 17 pairs
    assert SIZE.flops(7, 10) == 2 * 1000 * 7 + 240 * 7 * 17
    # 1000 weights, and keys and values of 3 layers · 2 heads · 5 numbers at 17 positions, 2 bytes each
    assert SIZE.n_bytes(7, 10) == 2 * (1000 + 2 * 3 * 2 * 5 * 17)


@pytest.mark.parametrize("name", ["text-target", "text-drafter"])
def test_the_weights_of_a_model_are_those_that_its_forward_reads(name: str) -> None:
    from workbench.models.loading import load_models

    model = load_models(name, None, dtype="float32").target.model
    size, config = target_size(name, "float32"), model.config
    assert size.weights * size.item_bytes == bytes_read(model)
    assert (size.layers, size.heads, size.kv_heads, size.head_dim) == (
        config.num_hidden_layers, config.num_attention_heads, config.num_key_value_heads, config.head_dim,
    )  # fmt: skip


def test_models_without_known_sizes_are_refused() -> None:
    for name, dtype, reason in (
        ("nowhere/model", "float32", "not on this machine"),
        ("vision-target", "float32", "not a dense text decoder"),
        ("text-target", "int8", "mixes number formats"),
    ):
        with pytest.raises(WorkbenchError, match=reason):
            target_size(name, dtype)


def test_damaged_files_are_refused(tmp_path: Path) -> None:
    sizes = {"num_hidden_layers": 1, "num_attention_heads": 1, "hidden_size": 4, "vocab_size": 3}
    (tmp_path / "config.json").write_text(json.dumps(sizes))
    (tmp_path / "model.safetensors").write_bytes(b"not a tensor")
    with pytest.raises(WorkbenchError, match="cannot be read"):
        target_size(str(tmp_path), "float32")
    (tmp_path / "config.json").write_text(json.dumps(sizes | {"num_attention_heads": 0}))
    with pytest.raises(WorkbenchError, match="not a dense text decoder"):
        target_size(str(tmp_path), "float32")


def test_passes_are_grouped_by_tokens_with_their_mean_context_and_median_time() -> None:
    # prompt of 2 tokens: the passes begin after 1, 6, 8 and 9 positions
    trace = run(chain(4, 4), chain(1, 4), chain(0, 0), chain(3, 4))
    for r, seconds in zip(trace.rounds, (0.01, 0.03, 0.005, 0.011), strict=True):
        r.verify_s = seconds
    trace.rounds[3].probes = [Probe(1, "a", 3, 0, "reflective")]
    found = target_passes(trace, SIZE)
    assert [(one.tokens, one.rounds, one.context, one.seconds) for one in found] == [
        (1, 1, 8, 0.005), (5, 2, round((1 + 6) / 2), pytest.approx(0.02)), (6, 1, 9, 0.011),
    ]  # fmt: skip
    assert found[1].flops == SIZE.flops(5, found[1].context)
    assert found[1].n_bytes == SIZE.n_bytes(5, found[1].context)


@pytest.mark.parametrize(
    "change",
    [{"shared": {"rows": 2}}, {"target_forwards": 2}, {"verify_s": 0.0}, {"revoked": [3]}, {"method": "beam-search"}],
)
def test_rounds_that_are_no_single_pass_do_not_count(change: dict[str, object]) -> None:
    trace = run(chain(1, 4), chain(1, 4, **change))
    assert [one.rounds for one in target_passes(trace, SIZE)] == [1]


def test_the_limit_is_memory_below_the_ridge() -> None:
    works = [PassWork(1, 1, 0, flops, 100, 2e-8) for flops in (799, 800)]
    assert RATES.ridge == 8.0
    assert [work.limit(RATES) for work in works] == [MEMORY, ARITHMETIC]
    found = works[0].to_wire(RATES, True)
    assert (found["intensity"], found["roof"]) == (7.99, pytest.approx(7.99e10))
    assert found["reached"] == pytest.approx(799 / 2e-8)
    assert works[0].to_wire(RATES, False)["reached"] is None, "times of another machine do not count"
    assert PassWork(1, 1, 0, 1600, 100, None).to_wire(RATES, True)["roof"] == 8e10


def test_a_plain_pass_is_measured_if_possible_and_computed_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(roofline, "machine_rates", lambda *_: RATES)
    trace, plain = (copy.deepcopy(recorded_runs.trace(name)) for name in ("draft-tree-sampled", "autoregressive"))
    trace.rounds = [r for r in trace.rounds if len(r.nodes)]
    computed = roofline.roofline(trace)["plain"]
    assert (computed["tokens"], computed["rounds"], computed["seconds"]) == (1, 0, None)
    measured = roofline.roofline(trace, plain)["plain"]
    assert (measured["tokens"], measured["rounds"]) == (1, len(roofline.exclude_stalled(plain.rounds)))
    assert measured["seconds"] > 0
    plain.header.dtype = "bfloat16"
    assert roofline.roofline(trace, plain)["plain"]["rounds"] == 0, "a baseline in another format does not count"
    with pytest.raises(WorkbenchError, match="no forward pass of the target that can be analysed"):
        roofline.roofline(recorded_runs.trace("beam-search"))


def test_a_product_grows_until_it_takes_long_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    sides: list[int] = []

    def seconds_of(work: object, device: torch.device) -> float:
        side = len(work())  # type: ignore[operator]
        sides.append(side)
        return side**3 * 1e-9 * (1 + len(sides) % 2)  # every other product takes twice as long

    monkeypatch.setattr(bandwidth, "seconds_of", seconds_of)
    assert bandwidth.matmul_rate("cpu", torch.float32) == pytest.approx(2e9), "the fastest product counts"
    assert sides == [side for side in (128, 256) for _ in range(bandwidth.PRODUCTS + 1)]


def test_rates_are_measured_once_and_refused_without_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    monkeypatch.setattr(roofline, "matmul_rate", lambda *_: calls.append("product") or 8e10)
    monkeypatch.setattr(roofline, "copy_bandwidth", lambda *_, **__: calls.append("copy") or 1e10)
    roofline.machine_rates.cache_clear()
    roofline._copy_rate.cache_clear()
    assert roofline.machine_rates("cpu", "float32") == RATES
    assert roofline.machine_rates("cpu", "float32") == RATES
    assert calls == ["copy", "product"]

    def refuse(*_: object, **__: object) -> float:
        raise RuntimeError("no such device")

    monkeypatch.setattr(roofline, "copy_bandwidth", refuse)
    with pytest.raises(WorkbenchError, match="rates of the device meta cannot be measured"):
        roofline.machine_rates("meta", "float32")
    with pytest.raises(WorkbenchError, match="cuda cannot be measured here"):
        roofline.machine_rates("cuda", "float32")
    roofline.machine_rates.cache_clear()
    roofline._copy_rate.cache_clear()
