"""llama.cpp as a contender, through llama-cpp-python: plain, with prompt lookup, and with a drafter.

The same weights, written as GGUF; the same token ids in and out. Draft lengths are held fixed, as on the other sides.
Its keys and values are kept in float32, so that greedy tokens can be compared. llama-cpp-python verifies drafts itself
(`Llama.generate`); proposing is a class of the library for prompt lookup, and ours for a draft model, since the library
only defines what such a class must do.
"""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from workbench.bench.sample import Contender, Sample
from workbench.core.sampling import SamplingParams
from workbench.engine import Configured, Models
from workbench.interop.gguf import export_gguf

NAMES = {"draft-model": "llama.cpp-draft", "prompt-lookup": "llama.cpp-lookup"}
"""Our methods that llama.cpp has a counterpart of."""
PLAIN = "llama.cpp"


def why_not(models: Models) -> str:
    """Why llama.cpp cannot be measured beside these models; empty when it can."""
    missing = [name for name in ("llama_cpp", "gguf") if importlib.util.find_spec(name) is None]
    if missing:
        return "llama-cpp-python and gguf are not installed (pip install llama-cpp-python gguf)"
    if models.target.device.type != "cpu" or models.target.dtype != torch.float32:
        return "it is measured beside a float32 target on a CPU only"
    return ""


@dataclass
class LlamaCppContender:
    """One way of generating with llama.cpp.

    Attributes:
        llama: the library's model.
        eos: token ids that end the text.
        max_new_tokens: length limit.
        sampling: `SamplingParams` of every run.
        name: in reports.
        draft_tokens: tokens drafted a round; None for plain decoding.
        weights_bytes: of the GGUF files it reads.
        seed: of sampled runs.
    """

    llama: Any
    eos: Sequence[int]
    max_new_tokens: int
    sampling: SamplingParams
    name: str
    draft_tokens: int | None = None
    weights_bytes: int = 0
    seed: int = 0
    kind: str = "llama.cpp"
    promise: str = "exact"

    @property
    def title(self) -> str:
        """Name for people."""
        how = {PLAIN: "plain", "llama.cpp-draft": "draft model", "llama.cpp-lookup": "prompt lookup"}
        return f"llama.cpp (llama-cpp-python), {how[self.name]}"

    @property
    def parameters(self) -> dict[str, Any]:
        """The draft length."""
        return {} if self.draft_tokens is None else {"draft_tokens": self.draft_tokens}

    def run(self, prompt_ids: Sequence[int], prompt: int = 0, repeat: int = 0) -> Sample:
        """Generate once, from an empty cache."""
        self.llama.reset()
        self.llama.set_seed(self.seed + repeat)
        self.llama.n_evals = 0
        start = time.perf_counter()
        found: list[int] = []
        for token in islice(self._tokens(list(prompt_ids)), self.max_new_tokens):
            found.append(token)
            if token in self.eos:
                break
        seconds = time.perf_counter() - start
        return Sample(self.name, prompt, repeat, found, seconds, None, self.llama.n_evals)

    def _tokens(self, prompt: list[int]) -> Iterator[int]:
        sampling = self.sampling
        return self.llama.generate(
            prompt, temp=sampling.temperature, top_k=sampling.top_k or 0, top_p=sampling.top_p, min_p=sampling.min_p
        )


def contenders(
    models: Models,
    methods: Sequence[Configured],
    max_new_tokens: int,
    sampling: SamplingParams,
    seed: int,
    folder: Path,
) -> list[Contender]:
    """Plain decoding by llama.cpp, and the counterparts of those methods that it has.

    Args:
        models: target, and drafter for the draft model's counterpart.
        methods: what is measured on our side; draft lengths are taken from them.
        max_new_tokens: length limit.
        sampling: of every run.
        seed: of sampled runs.
        folder: for the GGUF files; the contenders read them as long as they live.

    Raises:
        ModelError: the models cannot be written as GGUF.
    """
    target = export_gguf(models.target.model, models.tokenizer, folder / "target.gguf", models.target_name)
    common: dict[str, Any] = {
        "eos": sorted(models.eos),
        "max_new_tokens": max_new_tokens,
        "sampling": sampling,
        "seed": seed,
    }
    size = target.stat().st_size
    found: list[Contender] = [LlamaCppContender(_load(target, models), name=PLAIN, weights_bytes=size, **common)]
    for configured in methods:
        name = NAMES.get(configured.name)
        if name is None or (name == "llama.cpp-draft" and models.drafter is None):
            continue
        depth = int(configured.values["depth"])
        drafter = _lookup(depth, int(configured.values.get("ngram", 2)))
        together = size
        if name == "llama.cpp-draft":
            assert models.drafter is not None
            place = folder / "drafter.gguf"
            file = export_gguf(models.drafter.model, models.tokenizer, place, str(models.drafter_name))
            drafter, together = _drafter(_load(file, models), depth), size + file.stat().st_size
        llama = _load(target, models, drafter)
        found.append(LlamaCppContender(llama, name=name, draft_tokens=depth, weights_bytes=together, **common))
    return found


def _load(file: Path, models: Models, drafter: Any = None) -> Any:
    import llama_cpp  # pyright: ignore[reportMissingImports]  # an extra that not every checkout has

    class Counting(llama_cpp.Llama):
        """Counts its forwards: the verification passes of a run."""

        n_evals = 0

        def eval(self, tokens: Any) -> None:
            self.n_evals += 1
            super().eval(tokens)

    threads = torch.get_num_threads()
    return Counting(
        str(file),
        n_ctx=models.target.context,
        n_threads=threads,
        n_threads_batch=threads,
        type_k=llama_cpp.GGML_TYPE_F32,
        type_v=llama_cpp.GGML_TYPE_F32,
        draft_model=drafter,
        verbose=False,
    )


def _lookup(depth: int, ngram: int) -> Any:
    from llama_cpp.llama_speculative import LlamaPromptLookupDecoding  # pyright: ignore[reportMissingImports]

    return LlamaPromptLookupDecoding(max_ngram_size=ngram, num_pred_tokens=depth)


def _drafter(llama: Any, depth: int) -> Any:
    """A draft model in the form that llama-cpp-python asks for: token ids in, the likeliest continuation out."""
    import numpy as np
    from llama_cpp.llama_speculative import LlamaDraftModel  # pyright: ignore[reportMissingImports]

    class Drafter(LlamaDraftModel):
        def __call__(self, input_ids: Any, /, **_: Any) -> Any:
            tokens = llama.generate(input_ids.tolist(), temp=0.0)  # keeps what is in its cache already
            return np.array(list(islice(tokens, depth)), dtype=np.intc)

    return Drafter()
