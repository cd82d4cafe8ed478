"""Measurements of single Triton kernels: compile time, errors against float64, bitwise equality, launch time, speed.

On a GPU the kernels run as they are, on a CPU in Triton's interpreter, whose times say nothing about speed.
"""

from __future__ import annotations

import contextlib
import math
import multiprocessing
import os
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass, replace
from importlib import metadata
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from workbench.bench.damped_targets import Shape
from workbench.bench.timed_blocks import BlockRun, SkippedBlockError, TimeUpError, quartiles, time_calls
from workbench.kernels.bandwidth import copy_bandwidth, matmul_rate, read_bandwidth
from workbench.kernels.cuda_graphs import CudaGraphRecorder
from workbench.kernels.device_clock import synchronise
from workbench.kernels.segment import Output
from workbench.kernels.self_test import logits_error
from workbench.models.machine import machine_facts

if TYPE_CHECKING:
    from workbench.kernels.gpu.products import Product

TOKENS = (1, 2, 5, 16, 17, 33, 64)
"""Numbers of tokens per launch in the exactness test of the kernels."""
SWEPT_TOKENS = (1, 16, 64)
CONTEXT = 200
"""Number of committed tokens in the KV cache in the test of the attention kernels."""
TOY_BYTES, TOY_CONTEXT = 2**22, 20
EMPTY_LAUNCHES = 200
REPLAYS, LEAST_LAUNCHES, BEYOND_CACHE = 15, 24, 4
"""Measurement of a weight kernel: number of replays of a CUDA graph, minimum number of launches in it, and bytes of all
copies of the weights as a multiple of the L2 cache."""
COMPILERS = 12
"""Maximum number of processes that compile kernels."""


@dataclass(frozen=True, slots=True)
class Tile:
    """Tile shape and launch options of a weight kernel (a product of weights and inputs).

    `splits` is a factor on the default number of parts into which the sum over the inputs is split.
    """

    rows: int = 64
    step: int = 128
    splits: float = 1.0
    warps: int = 4

    def __str__(self) -> str:
        return f"tile of {self.rows} rows × {self.step} inputs, splits × {self.splits:g}, {self.warps} warps"


TILES = (
    Tile(), Tile(step=64), Tile(rows=32), Tile(rows=128, warps=8), Tile(splits=2.0), Tile(splits=0.5),
)  # fmt: skip
"""Tiles that are measured for each weight kernel; the first is the default of `Product`."""
TOY_TILES = Tile(), Tile(step=32, splits=2.0)


@dataclass(frozen=True, slots=True)
class WeightKernel:
    """One matrix product of a decoder: numbers of weight rows and inputs, and operations fused with the product."""

    name: str
    rows: int
    inputs: int
    has_norm: bool = False
    is_gated: bool = False
    adds: bool = False

    def splits(self, device: torch.device, tile: Tile) -> int:
        """Return the number of programs that split the sum over inputs: that of `GpuDecoder` times `tile.splits`."""
        from workbench.kernels.gpu.products import n_splits, programs_aimed_at

        usual = n_splits(self.rows, self.inputs, programs_aimed_at(device), tile.rows, tile.step)
        return min(max(1, int(usual * tile.splits)), -(-self.inputs // tile.step))

    def create(self, device: torch.device, dtype: torch.dtype, tile: Tile, splits: int, seed: int = 0) -> Product:
        """Return this matrix product as a `Product` with random weights."""
        from workbench.kernels.gpu.products import Product

        weight = numbers((self.rows, self.inputs), device, dtype, seed, self.inputs**-0.5)
        norm = numbers((self.inputs,), device, dtype, seed + 1, 0.1) + 1 if self.has_norm else None
        return Product(
            weight, None, norm, 1e-5, self.is_gated, splits, rows=tile.rows, step=tile.step, n_warps=tile.warps
        )

    def inputs_of(self, n: int, device: torch.device, dtype: torch.dtype) -> tuple[Tensor, Tensor | None]:
        """Return random inputs [n, inputs] of the product, and a random summand [n, rows] or None."""
        return (
            numbers((n, self.inputs), device, dtype, 100),
            numbers((n, self.rows), device, dtype, 101) if self.adds else None,
        )


def weight_kernels(shape: Shape) -> list[WeightKernel]:
    """Return the weight kernels of a decoder layer of this shape, and the weight kernel of the LM head."""
    head_size = shape.hidden // shape.heads
    queries = shape.heads * head_size
    return [
        WeightKernel("QKV", queries + 2 * shape.kv_heads * head_size, shape.hidden, has_norm=True),
        WeightKernel("O", shape.hidden, queries, adds=True),
        WeightKernel("gate+up", 2 * shape.inner, shape.hidden, has_norm=True, is_gated=True),
        WeightKernel("down", shape.hidden, shape.inner, adds=True),
        WeightKernel("LM head", shape.vocabulary, shape.hidden),
    ]


def numbers(size: Sequence[int], device: torch.device, dtype: torch.dtype, seed: int, deviation: float = 1.0) -> Tensor:
    """Return a tensor of normal random numbers with mean 0 and the given standard deviation."""
    generator = torch.Generator(device).manual_seed(seed)
    return torch.empty(size, device=device, dtype=dtype).normal_(0.0, deviation, generator=generator)


def is_interpreting() -> bool:
    """Return whether Triton runs kernels in its interpreter."""
    return os.environ.get("TRITON_INTERPRET") == "1"


def require_kernels(device: torch.device) -> None:
    """Raise SkippedBlockError with the reason if the Triton kernels cannot run here."""
    if find_spec("triton") is None:
        raise SkippedBlockError("Triton is not installed")
    if device.type != "cuda" and not is_interpreting():
        raise SkippedBlockError(
            "on a CPU the kernels run only in Triton's interpreter: set TRITON_INTERPRET=1 before starting Python"
        )


# -- machine ----------------------------------------------------------------------------------------------------------


def measure_machine(run: BlockRun) -> None:
    """Collect facts about the machine, and measure its memory copy rate, memory read rate and matrix product rate."""
    cuda = run.device.type == "cuda"
    facts = machine_facts() | {
        "device": str(run.device),
        "triton": metadata.version("triton") if find_spec("triton") else None,
        "interpreted": not cuda and is_interpreting(),
    }
    if cuda:
        properties = torch.cuda.get_device_properties(run.device)
        facts |= {
            "multiprocessors": properties.multi_processor_count,
            "l2_bytes": properties.L2_cache_size,
            "memory_bytes": properties.total_memory,
            "capability": f"{properties.major}.{properties.minor}",
            "cuda": torch.version.cuda,
            "clocks": _clocks(),
        }
    run.report["machine"] = facts
    size = None if cuda else TOY_BYTES
    rates: dict[str, Any] = {"copy_bytes_per_s": copy_bandwidth(run.device, size)}
    run.report["rates"] = rates
    run.check()
    rates["read_bytes_per_s"] = read_bandwidth(run.device, size)
    run.check()
    dtype = torch.bfloat16 if cuda else torch.float32
    rates["matmul_dtype"] = str(dtype).removeprefix("torch.")
    rates["matmul_flops_per_s"] = matmul_rate(run.device, dtype)


def _clocks() -> dict[str, str]:
    fields = "driver_version,clocks.sm,clocks.mem,clocks.max.sm,clocks.max.mem,power.draw,power.limit,temperature.gpu"
    command = ["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        return {"not read": type(error).__name__}
    values = done.stdout.splitlines()[0].split(", ")
    return dict(zip(fields.split(","), values, strict=False))


def share_of_copy(run: BlockRun, n_bytes: float, seconds: float) -> float | None:
    """Return the memory rate `n_bytes / seconds` as a share of the measured copy rate; None if no copy was measured."""
    rate = run.report.get("rates", {}).get("copy_bytes_per_s")
    return None if not rate else round(n_bytes / seconds / rate, 4)


# -- compilation ------------------------------------------------------------------------------------------------------

Job = tuple[WeightKernel, Tile, int, int]
"""Type of a compilation job: weight kernel, tile, number of splits, number of tokens."""


def tiles_of(device: torch.device) -> tuple[Tile, ...]:
    """Return the tiles to measure on a device: all on a GPU, two small ones on a CPU."""
    return TILES if device.type == "cuda" else TOY_TILES


def compilation_jobs(shapes: Sequence[Shape], device: torch.device) -> list[Job]:
    """Return the compilation jobs for all weight kernels that later measurements need.

    Weights are made small, since Triton compiles the same code for any size. Kernels with equal code appear once.
    """
    jobs = dict[Job, None]()
    for kernel in [kernel for shape in shapes for kernel in weight_kernels(shape)]:
        for tile in tiles_of(device):
            small = replace(kernel, name="", rows=min(256, kernel.rows), inputs=min(1024, kernel.inputs))
            for n in TOKENS if tile == TILES[0] else SWEPT_TOKENS:
                jobs[small, tile, kernel.splits(device, tile), 2 if n == 5 else n] = None  # 2 and 5 are compiled alike
    return list(jobs)


def compile_all(shapes: Sequence[Shape], dtype: torch.dtype, run: BlockRun) -> None:
    """Compile the weight kernels in several processes, which fill Triton's disk cache; without a GPU, run them once.

    Attention kernels are compiled at their first use.
    """
    require_kernels(run.device)
    jobs = compilation_jobs(shapes, run.device)
    started, seconds = time.perf_counter(), list[float]()
    n_processes = min(COMPILERS, os.cpu_count() or 1) if run.device.type == "cuda" else 0
    run.report["compile"] = {"kernels": len(jobs), "processes": n_processes}
    try:
        if n_processes:
            compile_in_processes(jobs, n_processes, dtype, run, seconds)
        else:
            for job in jobs:
                seconds.append(compile_kernel(job, str(run.device), dtype))
                run.check()
    finally:
        run.report["compile"] |= {"compiled": len(seconds), "wall_s": round(time.perf_counter() - started, 2)}
        if seconds:
            run.report["compile"]["slowest_s"] = round(max(seconds), 2)


def compile_in_processes(
    jobs: Sequence[Job], n_processes: int, dtype: torch.dtype, run: BlockRun, seconds: list[float]
) -> None:
    """Compile kernels in parallel processes, and append the seconds of each compilation to `seconds`.

    Raises:
        TimeUpError: the time limit of the measurement ended first.
    """
    pool = ProcessPoolExecutor(n_processes, multiprocessing.get_context("spawn"))  # CUDA does not survive a fork
    try:
        futures = [pool.submit(compile_kernel, job, str(run.device), dtype) for job in jobs]
        for future in as_completed(futures, timeout=min(max(0.0, run.ends_at - time.monotonic()), 1e6)):
            seconds.append(future.result())
            run.check()
    except FutureTimeoutError:
        raise TimeUpError from None
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def compile_kernel(job: Job, device: str, dtype: torch.dtype) -> float:
    """Compile a kernel by launching it once; return the seconds that this took."""
    kernel, tile, splits, n = job
    place = torch.device(device)
    start = time.perf_counter()
    with torch.inference_mode():
        kernel.create(place, dtype, tile, splits)(*kernel.inputs_of(n, place, dtype))
        synchronise(place)
    return time.perf_counter() - start


# -- exactness --------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def poison_new_tensors() -> Iterator[None]:
    """Inside the `with` block, fill tensors that torch allocates without values with NaN, to find unwritten entries."""
    fills: Any = torch.utils.deterministic
    was_on = torch.are_deterministic_algorithms_enabled()
    warns, filled = torch.is_deterministic_algorithms_warn_only_enabled(), fills.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True, warn_only=True)
    fills.fill_uninitialized_memory = True
    try:
        yield
    finally:
        fills.fill_uninitialized_memory = filled
        torch.use_deterministic_algorithms(was_on, warn_only=warns)


@torch.inference_mode()
def check_exactness(shape: Shape, dtype: torch.dtype, run: BlockRun) -> None:
    """Compare each kernel's results with float64 at several numbers of tokens.

    New tensors are filled with NaN, so that unwritten outputs are found. The report also says whether the first
    token's result has the same bits for any number of tokens, and whether a second launch gives the same bits.
    """
    require_kernels(run.device)
    attention = AttentionCase(shape, run.device, dtype)
    with run.part("attention"):
        _compare(run, "rope, cache write, attention", dtype, attention.compute, attention.in_float64)
    for kernel in weight_kernels(shape):
        splits = kernel.splits(run.device, TILES[0])
        product = kernel.create(run.device, dtype, TILES[0], splits)
        x, add = kernel.inputs_of(max(TOKENS), run.device, dtype)
        wanted = product_in_float64(product, x, add)

        def compute(n: int, product: Product = product, x: Tensor = x, add: Tensor | None = add) -> Tensor:
            return product(x[:n], None if add is None else add[:n])

        with run.part(kernel.name):
            _compare(run, f"{kernel.name}, {splits} splits", dtype, compute, lambda n, wanted=wanted: wanted[:n])


def _compare(
    run: BlockRun, name: str, dtype: torch.dtype, compute: Callable[[int], Tensor], reference: Callable[[int], Tensor]
) -> None:
    alone: Tensor | None = None
    for n in TOKENS:
        with poison_new_tensors():
            result = compute(n)
        again, wanted = compute(n), reference(n)
        alone = result[0].clone() if alone is None else alone
        error = logits_error(result, wanted)
        run.add(
            "exact",
            {
                "kernel": name,
                "dtype": str(dtype).removeprefix("torch."),
                "tokens": n,
                "rel_err": float(f"{error:.3g}") if math.isfinite(error) else None,
                "has_nan": bool(result.isnan().any()),
                "bits_equal": torch.equal(result[0], alone),
                "same_again": torch.equal(result, again),
            },
        )


def product_in_float64(product: Product, x: Tensor, add: Tensor | None) -> Tensor:
    """Compute a decoder's product in float64, with the operations fused with it (norm, gate, bias, sum): [T, o]."""
    x, pieces = x.double(), list[Tensor]()
    if product.norm_weight is not None:
        x = x * (x.square().mean(-1, keepdim=True) + product.eps).rsqrt() * product.norm_weight.double()
    for part in product.weight.split(2**14):  # a whole LM head in float64 has gigabytes
        pieces.append(x @ part.double().T)
    y = torch.cat(pieces, -1)
    if product.is_gated:
        gate, up = y.chunk(2, -1)
        y = torch.nn.functional.silu(gate) * up
    y = y if product.bias is None else y + product.bias.double()
    return y if add is None else y + add.double()


class AttentionCase:
    """Test case of the attention kernels: a random draft tree over a KV cache of random numbers.

    Entries of the cache that no kernel may read are NaN.

    Args:
        shape: shape of the decoder.
        device: device of the kernels.
        dtype: dtype of queries, keys and values.
    """

    def __init__(self, shape: Shape, device: torch.device, dtype: torch.dtype) -> None:
        self.heads, self.groups, self.size = shape.heads, shape.kv_heads, shape.hidden // shape.heads
        self.committed = CONTEXT if device.type == "cuda" else TOY_CONTEXT
        self.device, self.dtype = device, dtype
        most, self.scale = max(TOKENS), self.size**-0.5
        self.capacity = -(-(self.committed + most) // 64) * 64
        self.cache = numbers((2, 1, self.groups, self.capacity, self.size), device, dtype, 1)
        self.qkv = numbers((most, (self.heads + 2 * self.groups) * self.size), device, dtype, 2)
        parents = [-1, *(int(i * 0.618) for i in range(most - 1))]  # node 0 is the root of the tree
        sees, depth = torch.zeros(most, most, dtype=torch.bool), torch.zeros(most, dtype=torch.long)
        for i, parent in enumerate(parents):
            if parent >= 0:
                sees[i], depth[i] = sees[parent], depth[parent] + 1
            sees[i, i] = True
        self.sees, self.positions = sees.to(device), (self.committed + depth).to(device)
        half = torch.arange(self.size // 2, device=device)
        angles = torch.arange(self.capacity, device=device)[:, None] * 10_000.0 ** (-half / (self.size // 2))
        self.tables = tuple(torch.cat([part, part], -1).to(dtype) for part in (angles.cos(), angles.sin()))

    def mask(self, n: int) -> Tensor:
        """Return the additive attention mask of the first n tree nodes, [1, 1, n, KV cache capacity]."""
        mask = torch.full((1, 1, n, self.capacity), torch.finfo(self.dtype).min, dtype=self.dtype, device=self.device)
        mask[..., : self.committed] = 0
        mask[0, 0, :, self.committed : self.committed + n].masked_fill_(self.sees[:n, :n], 0)
        return mask

    def compute(self, n: int) -> Tensor:
        """Return the attention output of the first n tree nodes, by the Triton kernels, [n, heads · head size]."""
        from workbench.kernels.gpu.attention import attend

        self.cache[:, :, :, self.committed :] = torch.nan
        index = torch.arange(self.committed, self.committed + n, device=self.device)
        rows, cos_sin = torch.zeros_like(index), (self.tables[0], self.tables[1])
        return attend(
            self.qkv[:n], cos_sin, self.positions[:n], self.cache, (rows, index), self.mask(n), 0, self.scale,
            self.heads,
        )  # fmt: skip

    def in_float64(self, n: int) -> Tensor:
        """Return the attention output of the first n tree nodes, computed in float64, [n, heads · head size]."""
        sizes = [self.heads * self.size, self.groups * self.size, self.groups * self.size]
        queries, keys, values = (
            part.double().unflatten(1, (-1, self.size)).transpose(0, 1) for part in self.qkv[:n].split(sizes, 1)
        )
        cos, sin = (table[self.positions[:n]].double() for table in self.tables)

        def rotate(x: Tensor) -> Tensor:
            low, high = x.chunk(2, -1)
            return x * cos + torch.cat([-high, low], -1) * sin

        past = self.cache[:, 0, :, : self.committed].double()
        shared = self.heads // self.groups
        keys = torch.cat([past[0], rotate(keys)], 1).repeat_interleave(shared, 0)
        values = torch.cat([past[1], values], 1).repeat_interleave(shared, 0)
        sees = torch.cat([self.sees.new_ones(n, self.committed), self.sees[:n, :n]], 1)
        scores = (rotate(queries) @ keys.mT * self.scale).masked_fill(~sees, -torch.inf)
        return (scores.softmax(-1) @ values).transpose(0, 1).flatten(1)


# -- launches and weight kernels --------------------------------------------------------------------------------------


@torch.inference_mode()
def measure_gaps(run: BlockRun) -> None:
    """Measure the time of a kernel that does nothing: in a CUDA graph, and launched by the host."""
    if run.device.type != "cuda":
        raise SkippedBlockError("CUDA graphs need a GPU")
    require_kernels(run.device)
    from workbench.kernels.gpu.launches import launch_nothing

    x = torch.zeros(1, device=run.device)

    def launch_all() -> Output:
        for _ in range(EMPTY_LAUNCHES):
            launch_nothing(x)
        return Output(x, x)

    device, host = time_calls(launch_all, run, 10)
    run.report["gaps"] = {
        "launches": EMPTY_LAUNCHES,
        "host": quartiles([1e6 * s / EMPTY_LAUNCHES for s in host], "us"),
        "launched_one_by_one": quartiles([1e6 * s / EMPTY_LAUNCHES for s in device], "us"),
    }
    _, replay = CudaGraphRecorder(run.device)(launch_all)
    device, host = time_calls(replay, run, 50)
    run.report["gaps"] |= {
        "in_graph": quartiles([1e6 * s / EMPTY_LAUNCHES for s in device], "us"),
        "graph_launch_host": quartiles([1e6 * s for s in host], "us"),
    }


@torch.inference_mode()
def measure_weight_kernels(shapes: Sequence[Shape], dtype: torch.dtype, run: BlockRun) -> None:
    """Measure each weight kernel in a CUDA graph over copies of its weights that together exceed the L2 cache."""
    require_kernels(run.device)
    cuda = run.device.type == "cuda"
    cache_bytes = torch.cuda.get_device_properties(run.device).L2_cache_size if cuda else 0
    for tile in tiles_of(run.device):  # the default first, so that a cut run has all shapes
        for shape in shapes:
            for kernel in weight_kernels(shape):
                n_bytes = kernel.rows * kernel.inputs * dtype.itemsize
                n_copies = 1 + -(-BEYOND_CACHE * cache_bytes // n_bytes)
                splits = kernel.splits(run.device, tile)
                if (
                    tile != TILES[0]
                    and replace(tile, splits=1.0) == TILES[0]
                    and splits == kernel.splits(run.device, TILES[0])
                ):
                    continue  # one split cannot be halved
                copies = [kernel.create(run.device, dtype, tile, splits, seed) for seed in range(n_copies)]
                for n in SWEPT_TOKENS:
                    with run.part(f"{shape.name}, {kernel.name}, {n} tokens, {tile}"):
                        _measure_weight_kernel(run, shape, kernel, tile, copies, n, dtype)
                del copies


def _measure_weight_kernel(
    run: BlockRun,
    shape: Shape,
    kernel: WeightKernel,
    tile: Tile,
    copies: Sequence[Product],
    n: int,
    dtype: torch.dtype,
) -> None:
    x, add = kernel.inputs_of(n, run.device, dtype)
    cuda = run.device.type == "cuda"
    passes = max(1, -(-LEAST_LAUNCHES // len(copies))) if cuda else 1

    def launch_all() -> Output:
        out = x
        for product in [*copies] * passes:
            out = product(x, add)
        return Output(out, x)

    n_launches = len(copies) * passes
    out, replay = CudaGraphRecorder(run.device)(launch_all) if cuda else (None, launch_all)
    seconds, _ = time_calls(replay, run, REPLAYS if cuda else 1, warm_up=2 if cuda else 0)
    moved = kernel.rows * kernel.inputs * dtype.itemsize + x.nbytes + (0 if add is None else 2 * add.nbytes)
    per_launch = [s / n_launches for s in seconds]
    run.add(
        "gemv",
        {
            "model": shape.name,
            "kernel": kernel.name,
            "shape": [kernel.rows, kernel.inputs],
            "tokens": n,
            "tile": {"rows": tile.rows, "step": tile.step, "splits": copies[0].n_splits, "warps": tile.warps},
            "is_default": tile == TILES[0],
            "copies": len(copies),
            **quartiles([1e6 * s for s in per_launch], "us"),
            "share_copy": share_of_copy(run, moved, statistics.median(per_launch)),
        },
    )
    del out
