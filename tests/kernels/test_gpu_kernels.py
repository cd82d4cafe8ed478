"""Triton kernels: on a GPU as they are, else in Triton's interpreter on the CPU."""

from __future__ import annotations

import json
import logging
import os
import random
import subprocess
import sys
from typing import Any

import model_helpers
import numpy as np
import pytest
import torch

pytest.importorskip("triton")

from engine.test_forward_replay import Rerun
from torch import Tensor

from workbench.bench.families import family
from workbench.core.random_stream import Purpose, RandomStream
from workbench.core.rejection import walk
from workbench.core.sampling import SamplingParams
from workbench.engine import Engine, Models, Request
from workbench.kernels import distributions, self_test
from workbench.kernels.device_random import as_signed
from workbench.kernels.forward_replay import ReplayCache
from workbench.kernels.gpu import attention, decoder, products, random_numbers, summaries, walks
from workbench.kernels.gpu.decoder import GpuDecoder, why_unsupported
from workbench.kernels.kv_cache import TreeCache, Window
from workbench.kernels.lean import LeanDecoder
from workbench.kernels.self_test import describe_difference
from workbench.methods import registry
from workbench.models.runner import Runner

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
SIZES = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16}
NEAR = {torch.float32: 1e-5, torch.bfloat16: 1e-2}


def numbers(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator).to(dtype).to(DEVICE)


def error(got: Tensor, wanted: Tensor) -> float:
    return float((got.double() - wanted).abs().max() / wanted.abs().max())


def reference(product: products.Product, x: Tensor, add: Tensor | None) -> Tensor:
    """Compute a product in float64."""
    x, weight = x.double(), product.weight.double()
    if product.norm_weight is not None:
        x = x * (x.square().mean(-1, keepdim=True) + product.eps).rsqrt() * product.norm_weight.double()
    y = x @ weight.T
    if product.is_gated:
        gate, up = y.chunk(2, -1)
        y = torch.nn.functional.silu(gate) * up
    y = y if product.bias is None else y + product.bias.double()
    return y if add is None else y + add.double()


@pytest.mark.parametrize("dtype", NEAR)
@pytest.mark.parametrize("n_splits", [1, 4])
@pytest.mark.parametrize(
    ("n_tokens", "kind"), [(1, "norm"), (5, "gated"), (17, "bias"), (33, "residual"), (64, "norm"), (64, "gated")]
)
def test_products_equal_float64(n_tokens: int, kind: str, n_splits: int, dtype: torch.dtype) -> None:
    weight = numbers(2 * 72, 530, seed=1, dtype=dtype) / 16  # neither is a multiple of a tile
    norm = numbers(530, seed=2, dtype=dtype) + 1 if kind in ("norm", "gated") else None
    bias = numbers(144, seed=3, dtype=dtype) if kind == "bias" else None
    product = products.Product(weight, bias, norm, 1e-5, kind == "gated", n_splits)
    x = numbers(n_tokens, 530, seed=4, dtype=dtype)
    add = numbers(n_tokens, 144, seed=5, dtype=dtype) if kind == "residual" else None
    first = product(x, add)
    assert error(first, reference(product, x, add)) < NEAR[dtype]
    assert torch.equal(product(x, add), first), "counters of the first launch are reset"


@pytest.mark.parametrize("is_gated", [False, True])
@pytest.mark.parametrize(
    "tile", [{"rows": 32}, {"step": 64, "n_splits": 3}, {"rows": 128, "n_warps": 8, "n_stages": 2}]
)
def test_products_with_other_tiles_equal_float64(tile: dict[str, int], is_gated: bool) -> None:
    weight, norm = numbers(2 * 72, 530, seed=1) / 16, numbers(530, seed=2) + 1
    product = products.Product(weight, None, norm, 1e-5, is_gated, **tile)
    x = numbers(17, 530, seed=4)
    assert error(product(x), reference(product, x, None)) < NEAR[torch.float32]
    default = products.n_splits(3072, 2048, 132)
    assert products.n_splits(3072, 2048, 132, rows=32) < default == products.n_splits(3072, 2048, 132, step=64)


@pytest.mark.parametrize("dtype", NEAR)
def test_bits_of_a_token_do_not_depend_on_the_other_tokens(dtype: torch.dtype) -> None:
    product = products.Product(
        numbers(128, 512, dtype=dtype), norm_weight=numbers(512, dtype=dtype), eps=1e-5, n_splits=2
    )
    x = numbers(64, 512, seed=3, dtype=dtype)
    alone = product(x[:1])[0]
    for n in (2, 16, 17, 33, 64):
        assert torch.equal(product(x[:n])[0], alone), n


def test_inputs_are_split_until_there_are_enough_programs_but_not_into_parts_of_one_step() -> None:
    assert products.n_splits(3072, 2048, 132) == 4
    assert products.n_splits(16384, 2048, 132) == 1
    assert products.n_splits(64, 512, 132) == 2
    assert products.n_splits(64, 128, 132) == 1


def attend_in_float64(queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor, scale: float) -> Tensor:
    """Return the attention output [B, n, H, D] of queries [B, n, H, D] over keys and values [B, G, used, D]."""
    shared = queries.shape[2] // keys.shape[1]
    keys, values = (part.double().repeat_interleave(shared, 1) for part in (keys, values))
    scores = torch.einsum("bnhd,bhkd->bhnk", queries.double(), keys) * scale + mask.double()
    return torch.einsum("bhnk,bhkd->bnhd", scores.softmax(-1), values.nan_to_num())


@pytest.mark.parametrize("dtype", NEAR)
@pytest.mark.parametrize(("n", "committed", "used"), [(1, 200, 201), (7, 130, 300), (20, 3, 128), (33, 250, 283)])
def test_attention_over_trees_equals_float64(n: int, committed: int, used: int, dtype: torch.dtype) -> None:
    """Entries that no token attends to may contain anything, NaN too."""
    heads, groups, size, sequences, first_row = 4, 2, 16, 2, 1
    cache = numbers(2, 4, groups, 320, size, seed=1, dtype=dtype)
    generator = torch.Generator().manual_seed(2)
    floor = torch.finfo(dtype).min
    mask = torch.full((sequences, 1, n, used), floor, dtype=dtype, device=DEVICE)
    mask[..., :committed] = 0
    for i in range(n):  # random trees: each node attends to itself and its ancestors
        for b in range(sequences):
            parent = int(torch.randint(-1, max(i, 1), (1,), generator=generator)) if i else -1
            if parent >= 0:
                mask[b, 0, i] = torch.maximum(mask[b, 0, i], mask[b, 0, parent])
            mask[b, 0, i, committed + i] = 0
    cache[:, :, :, committed + n :] = torch.nan
    qkv = numbers(sequences * n, (heads + 2 * groups) * size, seed=3, dtype=dtype)
    positions = torch.randint(0, 320, (sequences * n,), generator=generator).to(DEVICE)
    angles = torch.arange(320, device=DEVICE)[:, None] * torch.logspace(0, -3, size // 2, device=DEVICE)[None]
    cos, sin = (torch.cat([part, part], -1).to(dtype) for part in (angles.cos(), angles.sin()))
    rows = torch.arange(first_row, first_row + sequences, device=DEVICE).repeat_interleave(n)
    index = torch.arange(committed, committed + n, device=DEVICE).repeat(sequences)
    out = attention.attend(qkv, (cos, sin), positions, cache, (rows, index), mask, first_row, 0.25, heads)

    queries, keys, values = (
        part.unflatten(1, (-1, size)).double() for part in qkv.split([heads * size, groups * size, groups * size], 1)
    )
    c, s = (table[positions].double()[:, None] for table in (cos, sin))

    def rotate(x: Tensor) -> Tensor:
        low, high = x.chunk(2, -1)
        return x * c + torch.cat([-high, low], -1) * s

    written = cache[0, rows, :, index]
    assert error(written, rotate(keys)) < NEAR[dtype]
    assert error(cache[1, rows, :, index], values) < NEAR[dtype]
    part = cache[:, first_row : first_row + sequences, :, :used].nan_to_num()
    wanted = attend_in_float64(rotate(queries).unflatten(0, (sequences, n)), part[0], part[1], mask, 0.25)
    assert error(out.view(sequences, n, heads, size), wanted) < NEAR[dtype]
    assert cache[:, :, :, committed + n :].isnan().all(), "nothing else is written"


@pytest.mark.parametrize("dtype", NEAR)
@pytest.mark.parametrize(("n", "size"), [(1, 300), (4, 5000), (2, 2 * summaries.TILE)])
def test_summaries_equal_float64(n: int, size: int, dtype: torch.dtype) -> None:
    logits = 3 * numbers(n, size, seed=1, dtype=dtype)
    logits[0, 10], logits[0, 11:size:3] = 12.0, -torch.inf  # forbidden tokens
    logits[-1, [7, size - 5]] = 14.0  # equal, in two tiles
    p_top, logs, top, entropy, scale = summaries.summarise(logits, 8)
    p = logits.double().softmax(1)
    assert torch.allclose(p_top.double(), p.topk(8).values, rtol=1e-5)
    assert torch.allclose(logs.double(), p_top.double().log(), atol=1e-5)
    assert torch.allclose(entropy.double(), -torch.special.xlogy(p, p).sum(1), rtol=1e-5)
    found = (logits.double() - scale[:, :1]).exp() / scale[:, 1:]
    assert torch.allclose(found, p, rtol=1e-5)
    assert torch.equal(p.gather(1, top), p.topk(8).values)
    assert top[-1, :2].tolist() == [7, size - 5], "the first of equal logits"
    logits[0, 5] = torch.nan
    assert summaries.summarise(logits, 8)[3][0].isnan()


@pytest.mark.skipif(DEVICE != "cpu", reason="a GPU's own summary is in use there")
def test_summaries_are_used_only_if_they_equal_torchs(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    distributions.gpu_summary.cache_clear()
    found = distributions.gpu_summary(torch.device("cpu"))
    assert found is summaries.summarise
    monkeypatch.setattr(distributions, "on_host", lambda device: False)
    logits = numbers(2, 3000)
    summary = distributions.summarise_logits(logits, SamplingParams(temperature=0.0))
    assert summary.best is not None
    assert summary.best.tolist() == logits.argmax(1).tolist()
    assert torch.allclose(summary.token_probs(summary.top[:, 1]), summary.p_top[:, 1])
    distributions.gpu_summary.cache_clear()
    monkeypatch.setattr(summaries, "summarise", lambda logits, k: [part * 1.1 for part in found(logits, k)])
    with caplog.at_level(logging.WARNING):
        assert distributions.gpu_summary(torch.device("cpu")) is None
    assert "without the Triton kernel: the kernel's results differ" in caplog.text
    distributions.gpu_summary.cache_clear()


def model_of(kind: str, dtype: torch.dtype, **overrides: Any) -> Any:
    return family(kind, **SIZES | overrides).to(dtype).to(DEVICE).eval()


@pytest.mark.parametrize("dtype", NEAR)
@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3"])
def test_a_decoder_equals_its_model_and_leaves_its_weights_as_they_are(kind: str, dtype: torch.dtype) -> None:
    model = model_of(kind, dtype)
    ids = torch.arange(9, device=DEVICE)[None]
    with torch.no_grad():
        before = model(input_ids=ids).logits
        replacement = GpuDecoder(model, 64)
        assert describe_difference(replacement, model) == ""
        assert torch.equal(model(input_ids=ids).logits, before)
    assert replacement.fresh() is replacement
    model.get_parameter("model.layers.0.mlp.up_proj.weight").data.mul_(2.0)
    with torch.no_grad():
        model.get_parameter("model.layers.0.mlp.up_proj.weight").add_(1.0)
    assert replacement.fresh() is not replacement


@pytest.mark.skipif(DEVICE != "cpu", reason="the reference runs on a CPU")
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"layers": (0,), "head": False},
        {"capture_layers": {0, 1}, "last_only": True, "everywhere": True},
        {"skipped_halves": {0, 3}},
        {"states": True, "layers": (1,)},
    ],
    ids=str,
)
def test_every_option_of_a_forward_pass_gives_the_lean_decoders_result(options: dict[str, Any]) -> None:
    model = model_of("llama", torch.float32)
    ids, positions = torch.arange(10).view(2, 5), torch.tensor([[3, 4, 5, 5, 6], [3, 4, 4, 4, 5]])
    mask = torch.full((2, 1, 5, 8), torch.finfo(torch.float32).min)
    mask[..., :3], mask[:, :, range(5), range(3, 8)] = 0, 0
    if options.pop("states", False):
        options["states"] = numbers(2, 5, 64)
    results = []
    with torch.inference_mode():
        for made in (LeanDecoder(model, 64), GpuDecoder(model, 64)):
            cache = TreeCache(len(made.layers), 3, 64)
            cache.window = Window(slice(1, 3), 3, None, 8)
            cache.buffer(2, 16, made.table).copy_(numbers(len(made.layers), 2, 3, 2, 64, 16, seed=7))
            logits, hidden, states = made(ids, mask, positions, cache, **options)
            results.append([logits, hidden, *states.values(), cache.buffer(2, 16, made.table)])
    for lean, kernels in zip(*results, strict=True):
        assert kernels.shape == lean.shape
        assert lean.numel() == 0 or error(kernels, lean.double()) < 1e-4


def test_a_layer_launches_seven_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    launches = list[str]()

    class Counted:
        def __init__(self, kernel: Any) -> None:
            self.kernel = kernel

        def __getitem__(self, grid: Any) -> Any:
            launches.append(self.kernel.__name__)
            return self.kernel[grid]

    for module, name in ((products, "_product"), (attention, "_rotate_and_store"), (attention, "_attend_to_chunk"),
                         (attention, "_merge")):  # fmt: skip
        monkeypatch.setattr(module, name, Counted(getattr(module, name)))
    made = GpuDecoder(model_of("llama", torch.float32), 64)
    cache = TreeCache(len(made.layers), 1, 64)
    cache.window = Window(slice(0, 1), 0, None, 4)
    mask = torch.full((1, 1, 4, 4), torch.finfo(torch.float32).min, device=DEVICE).triu_(1)
    positions = torch.arange(4, device=DEVICE)[None]
    with torch.inference_mode():
        made(positions, mask, positions, cache)
    layer = ["_product", "_rotate_and_store", "_attend_to_chunk", "_merge", "_product", "_product", "_product"]
    assert launches == layer * len(made.layers) + ["_product"], "the last one is the LM head"


@pytest.fixture
def models() -> Models:
    """Return models whose runners use the kernels, and whose forward passes are recorded and replayed."""
    made = model_helpers.make_models("llama", noise=0.15, device=DEVICE, **SIZES)
    assert made.drafter is not None
    made.target, made.drafter = (Runner(r.model.float(), 128) for r in (made.target, made.drafter))
    for runner in (made.target, made.drafter):
        runner._lean, runner._gpu = None, GpuDecoder(runner.model, runner.cache.capacity)
        if DEVICE == "cpu":
            runner.geometry.is_length_rounded = True
            runner.replays = ReplayCache(Rerun(runner))
    return made


@pytest.mark.parametrize("method", ["draft-model", "draft-tree"])
def test_generated_text_is_the_models_own_and_passes_are_replayed(
    method: str, models: Models, monkeypatch: pytest.MonkeyPatch
) -> None:
    n_runs, run = [0], GpuDecoder.run_layers

    def counted(self: GpuDecoder, *args: Any) -> Any:
        n_runs[0] += 1
        return run(self, *args)

    monkeypatch.setattr(GpuDecoder, "run_layers", counted)
    prompt = [3, 17, 4, 3, 17, 4, 9]
    configured = registry.get(method).with_params(depth=2)
    trace = Engine(models).generate(Request(prompt, configured, max_new_tokens=8))
    assert n_runs[0] > 4
    assert trace.token_ids == model_helpers.hf_greedy(models.target.model, prompt, 8)
    assert models.target.replays is not None
    assert models.target.replays.why_not == ""


def test_models_that_the_kernels_cannot_run_are_named() -> None:
    assert why_unsupported(model_of("llama", torch.bfloat16)) == ""
    assert "bfloat16" in why_unsupported(model_of("llama", torch.float16))
    assert "heads have size 24" in why_unsupported(model_of("llama", torch.float32, head_dim=24))
    adapted = model_of("llama", torch.float32)
    adapted.model.layers[1].mlp.up_proj.__class__ = type("AdaptedLinear", (torch.nn.Linear,), {})
    assert "linear layer was replaced" in why_unsupported(adapted)


def test_a_model_whose_results_differ_keeps_its_own_forward_pass(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = model_of("llama", torch.float32)
    assert self_test.tested_gpu_decoder(model, 64) is not None
    monkeypatch.setattr(decoder, "attend", lambda qkv, *args: torch.zeros_like(qkv[:, :64]))
    with caplog.at_level(logging.WARNING):
        assert self_test.tested_gpu_decoder(model, 64) is None
    assert "without Triton kernels: logits differ" in caplog.text
    monkeypatch.setattr(decoder, "attend", lambda *args: 1 / 0)
    with caplog.at_level(logging.WARNING):
        assert self_test.tested_gpu_decoder(model, 64) is None
    assert "ZeroDivisionError" in caplog.text


def test_random_numbers_are_numpys_bit_for_bit() -> None:
    chooser = random.Random(1)
    for _ in range(12):
        stream = RandomStream(chooser.choice([0, 2**64 - 1, chooser.getrandbits(64), -3]))
        stream.attempt, position, level = chooser.choice([0, 1, 2**20]), chooser.randrange(10**6), chooser.randrange(9)
        numbers = [torch.tensor([as_signed(x)]) for x in (stream.seed, stream.attempt, position)]
        n = chooser.randrange(1, 70)
        drawn = random_numbers.uniforms(*numbers, int(Purpose.DRAFT), n, level)
        assert np.array_equal(drawn.numpy(), stream.uniform(position, Purpose.DRAFT, n, level))


def test_paths_are_those_of_the_walk_on_the_host() -> None:
    chooser = random.Random(2)
    for _ in range(40):
        n = chooser.randrange(1, 14)
        parents = [chooser.randrange(-1, node) if node else -1 for node in range(n)]
        accept = [float(chooser.random() < 0.5) for _ in range(n)]
        path = walk(parents, accept, [0] * (n + 1), None).path
        nodes, count, last = walks.find_path(torch.tensor(parents), torch.tensor(accept) > 0.5, n + 1)
        assert tuple(nodes[: int(count)].tolist()) == path
        assert nodes[int(count) :].tolist() == list(range(int(count), n + 1))
        assert int(last) == (path[-1] if path else -1)


COMPILE = """
import json, re, subprocess, tempfile
from pathlib import Path
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from workbench.kernels.gpu import attention, products, random_numbers, summaries, walks
from workbench.kernels.device_random import KEY_STEPS, MULTIPLIERS, ROUNDS

def resources(kernel, types, constants, **options):
    names = kernel.arg_names
    even = [n for n in names if types.get(n, "")[:1] == "*" or n in ("n_rows", "n_inputs", "used") or "stride" in n]
    source = ASTSource(
        kernel, types | dict.fromkeys(constants, "constexpr"), {(names.index(k),): v for k, v in constants.items()},
        {(names.index(n),): [["tt.divisibility", 16]] for n in even},
    )
    made = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)
    path = Path(tempfile.mkdtemp()) / "kernel.cubin"
    path.write_bytes(made.asm["cubin"])
    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    said = subprocess.run([tool, "-res-usage", path], capture_output=True, text=True, check=True)
    stack = int(re.search(r"STACK:(\\d+)", said.stdout + said.stderr)[1])
    wide = len(re.findall(r"cp\\.async\\.c[ag]\\.shared\\.global [^;]*0x10", made.asm["ptx"]))
    return [kernel.__name__, stack, wide, made.metadata.shared]

w, f, i = "*bf16", "*fp32", "*i64"
found = []
common = dict(x=w, norm_weight=w, weight=w, bias=w, residual=w, out=w, partial=f, squares=f, arrived="*i32",
              n_tokens="i32", n_rows="i32", n_inputs="i32", eps="fp32")
for tokens in (16, 32, 64):
    for norm, gated, split in ((True, False, 4), (True, True, 1), (False, False, 8)):
        found.append(resources(products._product, common, dict(
            NORM=norm, BIAS=False, RESIDUAL=not norm, GATED=gated, SPLIT=split, ROWS=products.ROWS, TOKENS=tokens,
            STEP=products.STEP, EMULATE=False), num_warps=4, num_stages=4 if tokens < 64 else 3))
strides = {f"stride_{name}": "i64" for name in ("part", "row", "head", "position")}
heads = dict(HEADS=32, GROUPS=8, EMULATE=False)
for rows, size in ((16, 64), (64, 64), (16, 128), (64, 128)):
    found.append(resources(attention._attend_to_chunk, dict(
        queries=w, cache=w, mask=w, sums=f, maxima=f, weights=f, first_row="i32", n="i32", used="i32", scale="fp32",
        floor="fp32", n_chunks="i32", **strides), dict(heads, SIZE=size, ROWS=rows, CHUNK=attention.CHUNK,
        TILE=attention.TILE), num_warps=8 if rows * size > 4096 else 4))
pointers = dict(best=f, best_ids="*i32", maxima=f, weights=f, moments=f)
found.append(resources(summaries._summarise_tile, dict(logits=w, **pointers, size="i32", n_tiles="i32"),
                       dict(TILE=summaries.TILE, K=8), num_warps=4))
found.append(resources(summaries._merge_tiles, dict(
    **pointers, p_top=f, logs=f, top=i, entropy=f, scale="*fp64", n_tiles="i32"),
    dict(TILES=64, CANDIDATES=512, K=8), num_warps=4))
found.append(resources(random_numbers._draw, dict(
    seed=i, attempt=i, position=i, out="*fp64", level="i32", purpose="i32", n="i32"),
    dict(STREAM=random_numbers.STREAM, STEP=2.0**-53, BLOCKS=16, M0=MULTIPLIERS[0], M1=MULTIPLIERS[1], K0=KEY_STEPS[0],
         K1=KEY_STEPS[1], ROUNDS=ROUNDS), num_warps=1))
found.append(resources(walks._walk, dict(parents=i, is_accepted="*i1", nodes=i, ends=i, n="i32", depth="i32"),
                       dict(DEPTH=16), num_warps=1))
print(json.dumps(found))
"""


@pytest.mark.slow
def test_kernels_compile_for_an_h100_without_spilled_registers_and_with_wide_asynchronous_loads() -> None:
    """In a process of its own: here the kernels belong to the interpreter."""
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-c", COMPILE], capture_output=True, text=True, timeout=300, check=True, env=environment
    )
    for name, stack, wide, shared in json.loads(done.stdout):
        assert stack == 0, name
        assert wide >= 6 or name in ("_summarise_tile", "_merge_tiles", "_draw", "_walk"), name
        assert shared <= 227 * 1024, name
