"""Readings: a frozen target's stored hidden states over its answers, from chosen layers and before the LM head.

Every drafter is trained on the same readings, so they are computed once and stored as flat files, appended answer by
answer: a stopped run continues from there. Distributions are not stored: the target's LM head computes them from the
features.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from workbench.core.errors import ParameterError
from workbench.engine import Models
from workbench.models.fingerprint import WEIGHTS, fingerprint, fingerprints_differ
from workbench.models.loading import load_models
from workbench.trace.files import write_atomically
from workbench.training.answers import RATE, check_answers, is_held_out, read_answers, token_dtype
from workbench.training.clock import RunClock
from workbench.training.heads.features import Dialogue
from workbench.training.loop import Report
from workbench.training.text_forward import forward_text

REPORT_S = 10.0
COLUMNS = ("n", "start", "prompt", "length", "kind")
"""Columns of the table of readings (stored hidden states), which has one row per answer: number of the prompt, start in
the flat files, number of the prompt's tokens, number of tokens of prompt and answer, and origin of the answer (1
greedy, 0 sampled, −1 from the training text)."""
TEXT_ANSWER = -1
"""Value in the table of stored answers that marks an answer from the training text, not from the target."""


@dataclass
class ReadingsOptions:
    """Options of the `readings` recipe.

    Attributes:
        target: Name or folder of the target.
        answers: Folder with answers, written by the `answers` recipe.
        out: Output folder for the stored hidden states (readings).
        taps: Layers whose output is stored besides the last hidden states, counted from 1.
        tokens: Stop after this number of tokens, prompts included.
        longest: Skip an answer if the prompt and the answer together have more tokens than this.
        dtype: Number format of the target; "auto": the fastest on this machine.
        threads: Number of CPU threads.
        device: Device of the target: cpu, cuda, cuda:1, …; "auto" uses a GPU if there is one.
    """

    target: str = "smollm2"
    answers: Path = Path(".cache/train/answers")
    out: Path = Path(".cache/train/readings")
    taps: tuple[int, ...] = ()
    tokens: int = 4_000_000
    longest: int = 640
    dtype: str = "auto"
    threads: int = 2
    device: str = "auto"


@dataclass(frozen=True)
class Readings:
    """Stored hidden states of a target over its answers (readings), in a folder.

    Attributes:
        folder: folder of the files.
        device: device of the returned tensors.
        include_prompts: whether all positions of a training text, including the prompt's, count as positions of the
            answer. In held-out texts only the answer counts.
    """

    folder: Path
    device: torch.device = field(default_factory=partial(torch.device, "cpu"))
    include_prompts: bool = False

    @cached_property
    def facts(self) -> dict[str, Any]:
        """Return facts about the readings (stored hidden states): target, width, captured layers and number format."""
        return json.loads((self.folder / "readings.json").read_text())

    @cached_property
    def rows(self) -> np.ndarray:
        """Return the table of readings (stored hidden states): a row per answer, columns `COLUMNS`, int64 [n, 5]."""
        path = self.folder / "rows.bin"
        values = np.fromfile(path, dtype=np.int64) if path.exists() else np.zeros(0, np.int64)
        return values[: len(values) // len(COLUMNS) * len(COLUMNS)].reshape(-1, len(COLUMNS))

    @property
    def n_tokens(self) -> int:
        """Return the number of tokens in all complete readings (stored hidden states)."""
        return int(self.rows[-1, 1] + self.rows[-1, 3]) if len(self.rows) else 0

    def split_indices(self, held_out: bool) -> list[int]:
        """Return the indices of the held-out readings or of the training readings (stored hidden states)."""
        return [row for row, n in enumerate(self.rows[:, 0].tolist()) if is_held_out(n) == held_out]

    def dialogue(self, row: int) -> Dialogue:
        """Return a prompt with its answer, and the target's features at each of their tokens."""
        ids, n_prompt = self.text(row)
        if self.include_prompts and not is_held_out(int(self.rows[row, 0])):
            n_prompt = 1
        return Dialogue(torch.from_numpy(ids).to(self.device), n_prompt, self.hidden_states("features", row))

    def text(self, row: int) -> tuple[np.ndarray, int]:
        """Return the token ids of a prompt with its answer, int64, and the number of the prompt's tokens."""
        _, start, n_prompt, length, _ = (int(x) for x in self.rows[row])
        return self._flat("ids")[start : start + length].astype(np.int64), n_prompt

    def hidden_states(self, name: str, row: int) -> Float[Tensor, "n D"]:
        """Return an answer's hidden states in bfloat16: "features" (final norm) or "tap-6" (output of layer 6)."""
        _, start, _, length, _ = (int(x) for x in self.rows[row])
        values = self._flat(name)[start : start + length]
        return torch.from_numpy(values.copy()).view(torch.bfloat16).to(self.device)

    @cached_property
    def _opened(self) -> dict[str, np.ndarray]:
        return {}

    def _flat(self, name: str) -> np.ndarray:
        """Map a file into memory, once: token ids [T], or bfloat16 hidden states [T, D] stored as int16."""
        if name not in self._opened:
            is_text = name == "ids"
            shape = (self.n_tokens,) if is_text else (self.n_tokens, self.facts["width"])
            kind = token_dtype(self.facts["vocabulary"]) if is_text else np.dtype(np.int16)
            self._opened[name] = np.memmap(self.folder / f"{name}.bin", dtype=kind, mode="r", shape=shape)
        return self._opened[name]


def make_readings(options: ReadingsOptions, report: Report) -> dict[str, Any]:
    """Compute and store the target's hidden states over its answers (readings); return their counts and the time.

    The computation ends when all answers or enough tokens are processed.

    Raises:
        ParameterError: another target generated the answers, or the folder has readings of other weights or layers.
    """
    torch.set_num_threads(options.threads)
    options.out.mkdir(parents=True, exist_ok=True)
    models = load_models(options.target, None, options.device, options.dtype)
    target = models.target
    last_norm(target.model)
    facts = {"target": models.target_name, "width": target.hidden_size, "taps": list(options.taps)}
    facts |= {"vocabulary": target.vocab_size, "dtype": options.dtype, WEIGHTS: fingerprint(target.model)}
    facts["prompts"] = check_answers(options.answers, options.target, allow_text_answers=True)
    if not all(1 <= tap < target.n_layers for tap in options.taps):
        raise ParameterError(
            f"The target {models.target_name} does not have all of the layers {options.taps}.",
            f"Set taps to layers from 1 to {target.n_layers - 1}.",
        )
    readings = _open_readings(options.out, facts)
    finished = {(n, kind == TEXT_ANSWER) for n, kind in readings.rows[:, [0, 4]].tolist()}
    n_tokens = readings.n_tokens
    names = ["ids", "features", *(f"tap-{layer}" for layer in options.taps)]
    clock, new, reported_at = RunClock(float("inf")), 0, 0.0
    files = {name: (options.out / f"{name}.bin").open("r+b") for name in [*names, "rows"]}
    kind = token_dtype(target.vocab_size)
    for name, file in files.items():  # cut off an incomplete last answer of a killed run
        sizes = {"rows": readings.rows.nbytes, "ids": n_tokens * kind.itemsize}
        file.truncate(sizes.get(name, n_tokens * 2 * facts["width"]))
        file.seek(0, 2)
    for line in read_answers(options.answers / "answers.jsonl"):
        ids = line["prompt"] + line["answer"]
        if (line["n"], line["temperature"] is None) in finished or len(ids) > options.longest or not line["answer"]:
            continue
        states = compute_hidden_states(models, ids, options.taps)
        files["ids"].write(np.asarray(ids, dtype=kind).tobytes())
        for name in names[1:]:
            files[name].write(states[name].to(torch.bfloat16).cpu().contiguous().view(torch.int16).numpy().tobytes())
        answer_kind = TEXT_ANSWER if line["temperature"] is None else int(line["temperature"] == 0)
        row = (line["n"], n_tokens, len(line["prompt"]), len(ids), answer_kind)
        for name in names:
            files[name].flush()
        files["rows"].write(np.asarray(row, dtype=np.int64).tobytes())
        files["rows"].flush()
        n_tokens, new = n_tokens + len(ids), new + len(ids)
        if clock.seconds - reported_at > REPORT_S:
            reported_at = clock.seconds
            report(f"readings: {n_tokens:,} tokens · {new / clock.seconds:,.0f}/s")
        if n_tokens >= options.tokens:
            break
    for file in files.values():
        file.close()
    if (rate := options.answers / RATE).exists():
        write_atomically(options.out / RATE, rate.read_bytes())
    return {"tokens": n_tokens, "answers": len(Readings(options.out).rows), "seconds": round(clock.seconds, 1)}


@torch.inference_mode()
def compute_hidden_states(
    models: Models, ids: Sequence[int], capture_layers: Sequence[int] = ()
) -> dict[str, Float[Tensor, "n D"]]:
    """Return the target's hidden states over a text: "features", and for example "tap-6" for the output of layer 6.

    Features are the last layer's output after the final norm, so only the last logits of each chunk are computed.
    """
    target, chunks = models.target, dict[int, list[Tensor]]()
    layers = {target.n_layers - 1, *(layer - 1 for layer in capture_layers)}
    for output in forward_text(target, ids, last_only=True, capture_layers=layers):
        for layer, states in output.layer_states.items():
            chunks.setdefault(layer, []).append(states[0])
    streams = {layer + 1: torch.cat(parts) for layer, parts in chunks.items()}
    return {"features": last_norm(target.model)(streams[target.n_layers])} | {
        f"tap-{layer}": streams[layer] for layer in capture_layers
    }


def last_norm(model: Any) -> nn.Module:
    """Return a target's final norm, whose output the LM head reads; new heads' norms start with its weights.

    Raises:
        ParameterError: the norm is not Llama's RMSNorm.
    """
    norm = getattr(model.get_decoder(), "norm", None)
    if not isinstance(norm, nn.Module) or getattr(norm, "bias", None) is not None:
        raise ParameterError(
            f"Heads cannot be trained for a {type(model).__name__}: its final norm is not Llama's RMSNorm.",
            "Use a target such as Llama, Mistral, Qwen, Gemma, SmolLM or Phi-3. Draft models and methods without "
            "training also support other targets.",
        )
    return norm


def _open_readings(folder: Path, facts: dict[str, Any]) -> Readings:
    """Open the readings (stored hidden states) in a folder, which may be empty, and check their settings."""
    path = folder / "readings.json"
    old_facts = json.loads(path.read_text()) if path.exists() else facts
    if not fingerprints_differ(old_facts.get(WEIGHTS, ""), facts[WEIGHTS]):
        old_facts[WEIGHTS] = facts[WEIGHTS]  # differences in rounding
    old_facts.setdefault("prompts", facts["prompts"])  # readings of older versions lack it
    if old_facts != facts:
        changed = ", ".join(f"{name}={old_facts.get(name)}" for name in facts if old_facts.get(name) != facts[name])
        raise ParameterError(
            f"The stored hidden states (readings) in {folder} were created with other settings: {changed}.",
            "Use the settings of the folder to continue, or set `out` to another folder.",
        )
    write_atomically(path, (json.dumps(facts, indent=1) + "\n").encode())
    for name in ("ids", "features", "rows", *(f"tap-{layer}" for layer in facts["taps"])):
        (folder / f"{name}.bin").touch()
    return Readings(folder)


def batches(readings: Readings, rows: Sequence[int], size: int, seed: int) -> Callable[[int], list[int]]:
    """Return a function that gives for a training step's number the batch: indices of stored answers of similar length.

    The order is new in each epoch. A batch depends on the step's number alone, so that a resumed run continues
    correctly.
    """
    lengths, per_epoch = readings.rows[:, 3], -(-len(rows) // size)

    @lru_cache(maxsize=1)
    def groups(turn: int) -> list[list[int]]:
        rng = np.random.default_rng((seed, turn))
        order = sorted(rows, key=lambda row: lengths[row] + rng.uniform(-6, 6))
        return [order[i * size : (i + 1) * size] for i in rng.permutation(per_epoch).tolist()]

    return lambda step: groups(step // per_epoch)[step % per_epoch]
