"""Medusa-1 heads on the frozen bundled target (Cai et al. 2024, arXiv 2401.10774).

Head k maps the target's last hidden state f_t (after the final norm: what the LM head reads) to
f_t + SiLU(W_k f_t + b_k); the *target's* LM head, shared and not stored here, turns that into logits of the token at
t + 1 + k, where the target itself predicts t + 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import LlamaForCausalLM

from workbench.engine.fingerprint import WEIGHTS, fingerprint
from workbench.methods.drafters.medusa import RANKS, MedusaHeads
from workbench.training.distill import load_target
from workbench.training.heads.artefact import save_net
from workbench.training.loop import Report, RunOptions, RunResult, run_loop
from workbench.training.models import half_precision
from workbench.training.windows import Windows, held_windows


@dataclass
class MedusaOptions(RunOptions):
    """Options of the `medusa` recipe, beside those of every run.

    Attributes:
        target: Folder of the target.
        corpus: Folder written by the `corpus` recipe.
        out: Folder of the finished heads.
        own_text: Token file of text written by the target; used for every second step if it exists.
        heads: Number of heads.
        window: Tokens per window.
        rows: Windows per step.
        positions: Positions per step at which the heads are trained; the LM head is most of the cost.
    """

    target: Path = Path(".cache/models/text-target")
    corpus: Path = Path(".cache/train/corpus")
    out: Path = Path(".cache/models/text-medusa")
    checkpoint: Path | None = Path(".cache/train/medusa.pt")
    own_text: Path = Path(".cache/train/own-text.bin")
    heads: int = 4
    minutes: float | None = 7.0
    window: int = 256
    rows: int = 12
    positions: int = 1024
    matrix_rate: float = 0.01
    other_rate: float = 0.003
    seed: int = 2
    threads: int = 2


def keep_heads(heads: MedusaHeads, out: Path, accuracy: list[list[float]], **of: Any) -> str:
    """Write heads with what their drafter reads of them; returns a line that says how good they are.

    Args:
        heads: The heads.
        out: Their folder.
        accuracy: How often the r-th best token of each head is right, [K, 10].
        of: What they were trained for: name, fingerprint and number of tokens of the target.
    """
    heads.accuracy = tuple(map(tuple, accuracy))
    save_net(heads, out, **of)
    return "medusa: held-out top-1 accuracy " + " ".join(f"{row[0]:.3f}" for row in accuracy)


def head_accuracy(heads: MedusaHeads, target: LlamaForCausalLM, windows: Tensor) -> list[list[float]]:
    """Return how often the r-th best token of each head is right, on text, for r = 1..10.

    Args:
        heads: The heads.
        target: Their target.
        windows: Held-out text, int64 [B, T].
    """
    count = len(heads.heads)
    hits = torch.zeros(count, RANKS)
    with torch.inference_mode(), half_precision():
        for ids in windows.split(4):
            features = target.model(ids, use_cache=False)[0]
            usable = ids.shape[1] - 1 - count
            logits = target.lm_head(heads(features[:, :usable].flatten(0, 1)))
            best = logits.float().topk(RANKS, dim=-1).indices  # [H, N, 10]
            for k in range(count):
                labels = ids[:, k + 2 : k + 2 + usable].reshape(-1)
                hits[k] += (best[k] == labels[:, None]).float().sum(0)
    total = windows.shape[0] * (windows.shape[1] - 1 - count)
    return [[round(float(value) / total, 4) for value in row] for row in hits]


def train_medusa(options: MedusaOptions, report: Report) -> RunResult:
    """Train the heads and write them to `options.out`."""
    torch.set_num_threads(options.threads)
    target = load_target(options.target)
    heads = MedusaHeads(target.config.hidden_size, options.heads)
    report(f"medusa: {sum(p.numel() for p in heads.parameters()):,} parameters")
    optimizers = options.optimizers(heads, weight_decay=0.0)
    sources = [Windows(options.corpus / "train.bin", options.window, options.rows, options.seed)]
    if options.own_text.exists():
        sources.append(Windows(options.own_text, options.window, options.rows, options.seed))
    held_files = [options.corpus / f"held-{group}.bin" for group in ("own-stories", "own-tasks", "stories", "chat")]
    held = torch.cat([held_windows(path, options.window, 12) for path in held_files if path.exists()])

    def step_losses(step: int) -> tuple[int, dict[str, float]]:
        ids = sources[step % len(sources)].batch(step)
        usable = ids.shape[1] - 1 - options.heads
        generator = torch.Generator().manual_seed(options.seed * 1_000_003 + step)
        chosen = torch.randperm(ids.shape[0] * usable, generator=generator)[: options.positions]
        with half_precision():
            with torch.no_grad():
                features = target.model(ids, use_cache=False)[0][:, :usable].flatten(0, 1)[chosen]
            logits = target.lm_head(heads(features)).float()
        losses = [
            F.cross_entropy(logits[k], ids[:, k + 2 : k + 2 + usable].reshape(-1)[chosen]) for k in range(options.heads)
        ]
        torch.stack(losses).sum().backward()
        return ids.numel(), {f"head {k + 1}": float(loss.detach()) for k, loss in enumerate(losses)}

    def on_checkpoint(result: RunResult) -> str:
        accuracy = head_accuracy(heads, target, held)
        result.held = {f"accuracy {k + 1}": row[0] for k, row in enumerate(accuracy)}
        of = {"target": "text-target", "vocab_size": target.config.vocab_size, WEIGHTS: fingerprint(target)}
        return keep_heads(heads, options.out, accuracy, **of)

    loop = options.loop("medusa")
    return run_loop(loop, heads, optimizers, step_losses, report, on_checkpoint)
