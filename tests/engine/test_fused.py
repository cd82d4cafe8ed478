"""Compiled passes equal their models, and a token's result is independent of other tokens in the pass, bit for bit."""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import model_helpers
import pytest
import torch

from workbench.engine import Engine, Models, Request, Runner
from workbench.kernels import compilation, fused
from workbench.kernels.lean import LeanDecoder
from workbench.kernels.segment import Segment
from workbench.kernels.self_test import describe_difference, make_lean_decoder
from workbench.methods import registry
from workbench.methods.tree_builders.shapes import MOST_NODES
from workbench.models import loading as models_module

pytestmark = pytest.mark.skipif(not compilation.may_compile(), reason="passes are compiled on Linux on x86-64")
SIZES: dict[str, Any] = {"hidden_size": 128, "intermediate_size": 96}
KINDS = ("llama", "mistral", "qwen2")


may_use_tiles = compilation.may_use_tiles


def small(kind: str = "llama", **overrides: Any) -> Any:
    return model_helpers.family(kind, **SIZES | overrides).to(torch.bfloat16)


def compiled(model: Any) -> Runner:
    runner = Runner(model)
    assert runner._lean is not None
    assert runner._lean.fused is not None
    return runner


@pytest.fixture(autouse=True)
def _threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


WAYS = pytest.mark.parametrize("way", ["vectors", "tiles"], indirect=True)
"""Ways in which a test's models multiply; other tests use vectors."""


@pytest.fixture(autouse=True)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compile wide passes on every machine; where torch uses tiles (AMX), they would be left to torch."""
    if getattr(request, "param", "vectors") == "vectors":
        monkeypatch.setattr(compilation, "has_tiles", lambda: False)
        monkeypatch.setattr(compilation, "may_use_tiles", lambda: False)
    elif not compilation.may_use_tiles():
        pytest.skip("a processor without AMX")


@WAYS
@pytest.mark.parametrize(
    ("kind", "heads", "groups"),
    [*((kind, 4, 2) for kind in KINDS), ("llama", 4, 4), ("llama", 3, 1), ("mistral", 8, 2), ("llama", 7, 1)],
)
def test_compiled_outputs_are_at_least_as_accurate_as_the_lean_layers(kind: str, heads: int, groups: int) -> None:
    outputs: list[list[torch.Tensor]] = []
    sizes = {"num_attention_heads": heads, "num_key_value_heads": groups, "hidden_size": 32 * heads}
    for way in ("compiled", "lean", "exact"):
        runner = Runner(small(kind, **sizes).float()) if way == "exact" else compiled(small(kind, **sizes))
        if way == "lean":
            runner._lean.fused = None  # type: ignore[union-attr]
        slots = [runner.open(), runner.open()]
        runner.prefill(slots[0], model_helpers.random_prompt(13, seed=1), chunk=6)
        runner.prefill(slots[1], model_helpers.random_prompt(4, seed=2))
        batch = [
            model_helpers.tree_segment(slots[0], 3, model_helpers.random_prompt(4, seed=3), [-1, -1, 0, 2]),
            model_helpers.tree_segment(slots[1], 5, model_helpers.random_prompt(2, seed=4), [-1, 0]),
        ]
        whole = runner.forward(batch, capture_layers={1, 2})
        for slot in slots:
            runner.rewind(slot, slot.length)
        some = runner.forward([Segment(slots[1], torch.tensor([7, 8]))], layers=(0, 2), last_only=True)
        bare = runner.forward([Segment(slots[1], torch.tensor([9]))], head=False)
        runner.rewind(slots[0], slots[0].length)
        thin = runner.forward([Segment(slots[0], torch.tensor([7, 8]))], skipped_halves={2, 5})
        outputs.append(
            [
                whole.logits[0],
                whole.logits[1, :3],
                whole.layer_states[1],
                whole.layer_states[2],
                whole.hidden[0],
                some.logits,
                some.hidden,
                bare.logits,
                bare.hidden.bfloat16(),
                thin.logits,
            ]
        )
    for mine, own, exact in zip(*outputs, strict=True):
        assert mine.shape == own.shape == exact.shape
        assert mine.dtype == own.dtype == torch.bfloat16
        if mine.numel():
            error, usual = ((some - exact).norm() / exact.norm() for some in (mine, own))
            assert error <= 1.2 * usual


def corrupt_decoder(decoder: Any, part: str) -> None:
    if part == "scale":
        decoder._scale *= 1.5
    elif part == "order":
        decoder._weights[[1, 2]] = decoder._weights[[2, 1]]
    elif part == "gate and up":
        decoder._weights[-1, [4, 5]] = decoder._weights[-1, [5, 4]]
    elif part == "keys and values":
        decoder._weights[-1, [1, 2]] = decoder._weights[-1, [2, 1]]
    elif part == "rope":
        decoder._cos, decoder._sin = decoder._cos.copy(), -decoder._sin
    elif part == "bias":
        decoder._biases[-1] = 0
    elif part == "norms":
        decoder._norms[-1] = decoder._norms[-1, ::-1].copy()
    elif part == "last norm":
        decoder._last = decoder._last[::-1].copy()
    elif part == "head":
        decoder._head = decoder._head.roll(1, 0).contiguous()


@WAYS
@pytest.mark.parametrize("part", ["scale", "order", "gate and up", "keys and values", "rope", "bias", "norms",
                                  "last norm", "head"])  # fmt: skip
def test_self_test_detects_wrong_parts(
    part: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    model = small("qwen2")
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "norm" in name:
                weight.mul_(torch.linspace(0.5, 1.5, weight.shape[0]) + 0.1 * ("post" in name))
            if name.endswith("proj.bias"):
                weight.add_(torch.linspace(-1, 1, weight.shape[0]))
    decoder = make_lean_decoder(model, 64)
    assert decoder is not None
    assert decoder.fused is not None
    made = fused.FusedDecoder.from_model

    def make(*given: Any) -> Any:
        wrong = made(*given)
        corrupt_decoder(wrong, part)
        return wrong

    monkeypatch.setattr(fused.FusedDecoder, "from_model", make)
    with caplog.at_level(logging.WARNING):
        assert make_lean_decoder(model, 64).fused is None  # type: ignore[union-attr]
    assert "runs without compiled kernels" in caplog.text


@WAYS
def test_model_with_an_attention_sink_passes_the_self_test() -> None:
    model = small()
    with torch.no_grad():
        model.model.layers[0].mlp.down_proj.weight[3].mul_(3000.0)
        for layer in model.model.layers[1:]:
            layer.mlp.down_proj.weight.mul_(4.0)
            layer.self_attn.v_proj.weight.mul_(4.0)
    decoder = LeanDecoder(model, 64)
    decoder.fused = fused.FusedDecoder.from_model(model, 64)
    assert describe_difference(decoder, model) == ""


@WAYS
@pytest.mark.parametrize("kind", KINDS)
def test_a_tokens_result_does_not_depend_on_chunking(kind: str) -> None:
    runner, text = compiled(small(kind)), model_helpers.random_prompt(40, seed=7)
    alone = model_helpers.chunked_logits(runner, text, [1] * 40)
    for pieces in ([40], [7, 13, 20], [2, 3, 5, 6, 8, 16], [9, 31]):
        assert torch.equal(model_helpers.chunked_logits(runner, text, pieces), alone)


def test_with_tiles_bits_of_few_tokens_do_not_depend_on_chunking(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compilation, "has_tiles", lambda: True)  # torch's own tiles
    runner, text = compiled(small()), model_helpers.random_prompt(40, seed=7)
    alone = model_helpers.chunked_logits(runner, text, [1] * 40)
    for pieces in ([fused.MOST_BESIDE_TILES] * 2 + [8], [7, 13, 4, 16], [2, 3, 5, 6, 8, 16]):
        assert torch.equal(model_helpers.chunked_logits(runner, text, pieces), alone)


@WAYS
def test_a_tokens_result_does_not_depend_on_other_branches_or_sequences() -> None:
    runner, text = compiled(small()), model_helpers.random_prompt(30, seed=3)
    alone = model_helpers.chunked_logits(runner, text, [1] * 30)
    slot, other = runner.open(), runner.open()
    runner.prefill(slot, text[:20])
    runner.prefill(other, model_helpers.random_prompt(11, seed=4))
    # the text continues along nodes 1, 2, 5, 6 of a tree whose other branches differ
    tokens, parents = [63, text[21], text[22], 60, 61, text[23], text[24]], [-1, -1, 1, 0, 1, 2, 5]
    both = [
        model_helpers.tree_segment(slot, text[20], tokens, parents),
        model_helpers.tree_segment(other, 5, [1, 2, 3], [-1, -1, 0]),
    ]
    found = runner.forward(both).logits[0]
    assert torch.equal(found[[0, 2, 3, 6, 7]], alone[20:25])
    runner.rewind(other, other.length)
    runner.commit(slot, [0, 2, 3, 6, 7])
    after = runner.forward([Segment(slot, torch.tensor(text[25:]))]).logits[0]
    assert torch.equal(after, alone[25:])  # moved cache entries are read in the same order


@WAYS
def test_any_number_of_threads_gives_the_same_bits_without_waiting_for_a_busy_pool(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    runner, text = compiled(small()), model_helpers.random_prompt(24, seed=5)
    torch.set_num_threads(1)
    alone = model_helpers.chunked_logits(runner, text, [24])
    for threads in (2, 3, 5):
        torch.set_num_threads(threads)
        assert torch.equal(model_helpers.chunked_logits(runner, text, [8, 8, 8]), alone)
    gate = threading.Event()
    assert compilation._workers is not None
    busy = [compilation._workers.submit(gate.wait) for _ in range(64)]
    try:
        assert torch.equal(model_helpers.chunked_logits(runner, text, [24]), alone)
    finally:
        gate.set()
    assert all(task.result() for task in busy)


def test_pass_completes_without_available_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    runner, text = compiled(small()), model_helpers.random_prompt(24, seed=5)
    alone = model_helpers.chunked_logits(runner, text, [24])

    class Closed:
        def submit(self, work: Any) -> None:
            raise RuntimeError("cannot schedule new futures after interpreter shutdown")

    torch.set_num_threads(3)
    monkeypatch.setattr(compilation, "_workers", Closed())
    assert torch.equal(model_helpers.chunked_logits(runner, text, [24]), alone)


def test_trees_of_maximum_size_are_compiled() -> None:
    assert fused.FUSED_TOKENS > MOST_NODES


def test_padding_rows_give_no_nan() -> None:
    model = small()
    runner = compiled(model)
    decoder, slot = runner._lean, runner.open()
    assert decoder is not None
    runner.prefill(slot, [1, 2, 3])
    mask, places = (
        torch.full((1, 1, 2, 5), torch.finfo(torch.bfloat16).min, dtype=torch.bfloat16),
        torch.tensor([[3, 4]]),
    )
    mask[0, 0, 0] = 0
    runner.cache.window.start, runner.cache.window.used = 3, 5
    with torch.inference_mode():
        stream, _ = decoder.fused(torch.randn(2, 64), mask, places, runner.cache, range(3))  # type: ignore[misc]
    assert bool(stream.isfinite().all())


def test_next_sequence_uses_changed_weights_and_norms() -> None:
    model = small()
    runner, text = compiled(model), torch.tensor(model_helpers.random_prompt(6))
    before = runner.forward([Segment(runner.open(), text)]).logits
    with torch.no_grad():
        model.model.norm.weight.mul_(torch.linspace(0.2, 2, 128))
        model.model.layers[1].input_layernorm.weight.mul_(torch.linspace(2, 0.2, 128))
    after = runner.forward([Segment(runner.open(), text)]).logits
    assert runner._lean is not None
    assert runner._lean.fused is not None
    assert not torch.allclose(before, after)
    runner._lean.fused = None
    own = runner.forward([Segment(runner.open(), text)]).logits
    exact = model.float()(input_ids=text.unsqueeze(0)).logits
    assert (after - exact).norm() <= 1.2 * (own - exact).norm()


@pytest.mark.parametrize("why", ["float32", "a head of 8", "odd width", "Qwen3's norms", "asked not to"])
def test_unsupported_models_keep_the_lean_layers(why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if why == "asked not to":
        monkeypatch.setenv("WORKBENCH_COMPILED", "0")
    model = {
        "float32": lambda: small().float(),
        "a head of 8": lambda: model_helpers.family("llama", intermediate_size=96).to(torch.bfloat16),
        "odd width": lambda: small(intermediate_size=72),
        "Qwen3's norms": lambda: small("qwen3", head_dim=32),
        "asked not to": small,
    }[why]()
    runner = Runner(model)
    assert runner._lean is not None
    assert runner._lean.fused is None
    assert bool(runner.forward([Segment(runner.open(), torch.tensor([1, 2, 3]))]).logits.isfinite().all())


def test_missing_folder_for_machine_code_is_only_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "workbench.kernels.compiled", None)  # as if its import had failed
    monkeypatch.delitem(sys.modules, "workbench.kernels.compiled.forward", raising=False)
    monkeypatch.setattr(
        compilation, "_imported", compilation._imported.__wrapped__
    )  # as if nothing had been imported yet
    with caplog.at_level(logging.WARNING):
        decoder = make_lean_decoder(small(), 64)
    assert decoder is not None
    assert decoder.fused is None
    assert "Compiled kernels are not available" in caplog.text


def test_layers_of_several_shapes_are_not_compiled() -> None:
    model = small()
    for name, size in (("gate_proj", (64, 64)), ("up_proj", (64, 64)), ("down_proj", (64, 64))):
        setattr(model.model.layers[2].mlp, name, torch.nn.Linear(*size, bias=False, dtype=torch.bfloat16))
    assert fused.FusedDecoder.from_model(model, 64) is None


def test_replaced_weights_stay_in_memory_until_the_next_sequence() -> None:
    model = small()
    runner = compiled(model)
    weight = model.model.layers[0].mlp.up_proj.weight
    kept = runner._lean.fused._kept  # type: ignore[union-attr]
    at = weight.data_ptr()
    weight.data = weight.data.clone()
    assert weight.data_ptr() != at
    assert at in {tensor.data_ptr() for tensor in kept}
    runner.open()
    assert weight.data_ptr() in {tensor.data_ptr() for tensor in runner._lean.fused._kept}  # type: ignore[union-attr]


def test_failing_compilation_is_only_logged(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    def full(self: Any, *given: Any) -> Any:
        raise OSError("No space left on device")

    monkeypatch.setattr(fused.FusedDecoder, "__call__", full)
    with caplog.at_level(logging.WARNING):
        decoder = make_lean_decoder(small(), 64)
    assert decoder is not None
    assert decoder.fused is None
    assert "No space left on device" in caplog.text


def test_prompts_use_matrix_products_for_many_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    whole = fused.FusedDecoder.__call__

    def count(self: Any, x: torch.Tensor, *rest: Any) -> Any:
        asked.append(x.shape[0])
        return whole(self, x, *rest)

    monkeypatch.setattr(fused.FusedDecoder, "__call__", count)
    whole_range = [1, 16, 17, fused.FUSED_TOKENS]
    ways = [(False, False, whole_range), (True, False, [1, 16])]
    if may_use_tiles():
        ways.append((True, True, whole_range))
    for torchs, ours, wanted in ways:
        monkeypatch.setattr(compilation, "has_tiles", lambda torchs=torchs: torchs)
        monkeypatch.setattr(compilation, "may_use_tiles", lambda ours=ours: ours)
        runner = compiled(small(max_position_embeddings=256))
        asked.clear()
        for n in (1, 16, 17, fused.FUSED_TOKENS, fused.FUSED_TOKENS + 1):
            slot = runner.open()
            runner.forward([Segment(slot, torch.tensor(model_helpers.random_prompt(n)))])
            runner.close(slot)
        assert asked == wanted


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    """A target and a drafter of medium quality in bfloat16, and heads for it."""
    found, target = model_helpers.make_models("llama", noise=None, **SIZES), small()
    drafter = model_helpers.noisy_copy(target, 0.15)
    found.target, found.drafter = compiled(target), compiled(drafter)
    found.drafter_name, found.drafter_problem = "noisy", ""
    folder = tmp_path_factory.mktemp("medusa")
    found.heads = {
        "medusa": model_helpers.write_random_medusa(folder, found),
        **model_helpers.write_random_heads(folder.parent, found),
    }
    return found


@pytest.mark.unchecked
@pytest.mark.usefixtures("temporary_disk_cache")
def test_drafted_text_equals_plain_decoding_bit_for_bit_in_bfloat16(models: Models) -> None:
    """All methods at once in one batch, and every third one also alone."""
    methods, prompt = model_helpers.text_methods(), model_helpers.repeating_prompt(13, period=5)
    wanted = Engine(models).generate(Request(prompt, registry.get("autoregressive"), max_new_tokens=40)).token_ids
    engine = Engine(models, max_sequences=len(methods))
    rows = {method.name: engine.submit(Request(prompt, method, max_new_tokens=40)) for method in methods}
    while not engine.is_idle:
        engine.step()
    assert {name: row.trace and row.trace.token_ids for name, row in rows.items()} == dict.fromkeys(rows, wanted)
    alone = {m.name: Engine(models).generate(Request(prompt, m, max_new_tokens=40)).token_ids for m in methods[::3]}
    assert alone == dict.fromkeys(alone, wanted)


def test_auto_dtype_of_a_published_target_is_bfloat16_where_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    here = torch.device("cpu")
    assert models_module.resolve_dtype("auto", here, "smollm2") is torch.bfloat16
    assert models_module.resolve_dtype("auto", here, "text-target") is torch.float32
    assert models_module.resolve_dtype("float32", here, "smollm2") is torch.float32
    monkeypatch.setenv("WORKBENCH_COMPILED", "0")
    assert models_module.resolve_dtype("auto", here, "smollm2") is torch.float32


def test_compiled_code_is_cached_with_its_sources() -> None:
    """A function's cache folder is chosen at its declaration: one declared later would survive a change of sources."""
    name = "workbench.kernels.compiled"
    ask = f"import sys, {name}; print(*(m for m in sys.modules if m.startswith('{name}.')))"
    there = subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True, check=True).stdout.split()
    made = [
        file.stem for file in Path(fused.__file__).with_name("compiled").glob("*.py") if "@njit" in file.read_text()
    ]
    assert "draft_levels" in made
    assert {f"{name}.{module}" for module in made} <= set(there)
