"""llama.cpp's own server in a separate process: `python -m workbench.bench.llamaserver '{…}'`, started by `llamacpp`.

If compiled code crashes with a segmentation fault, only this process ends. The process prints its address and serves
until its standard input is closed, which also happens when the parent process ends.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Setting:
    """Settings of llama.cpp's server.

    Attributes:
        model: path of the GGUF file.
        context: size of the KV cache, in positions.
        threads: threads of every forward pass.
        exact: True: float32 KV cache without flash attention, for a float32 target; False: float16 KV cache.
        depth: tokens drafted per round; 0 for plain decoding.
        drafter: path of the draft model's GGUF file; without one, drafts are looked up in the text.
        ngram: length of the n-grams that prompt lookup searches for.
    """

    model: str
    context: int
    threads: int
    exact: bool
    depth: int = 0
    drafter: str = ""
    ngram: int = 2

    def to_json(self) -> str:
        """Return the server's settings as JSON, the command-line argument of this module."""
        return json.dumps(asdict(self))


def params_of(setting: Setting, xllamacpp: Any) -> Any:
    """Convert the server's settings to llama.cpp's `CommonParams`.

    Draft lengths are fixed: low confidence does not end a draft early.
    """
    params = xllamacpp.CommonParams()
    params.model.path = setting.model
    params.n_ctx, params.n_parallel, params.n_gpu_layers = setting.context, 1, 0
    params.ctx_shift, params.cache_ram_mib = False, 0  # nothing is cached between runs
    params.verbosity, params.ui, params.endpoint_slots = -1, False, False
    types = xllamacpp.common_speculative_type
    spec = params.speculative
    if setting.depth and setting.drafter:
        spec.types = [types.COMMON_SPECULATIVE_TYPE_DRAFT_SIMPLE]
        spec.draft.mparams.path = setting.drafter
        spec.draft.n_gpu_layers = 0
        spec.draft.n_max, spec.draft.n_min, spec.draft.p_min = setting.depth, 0, 0.0
    elif setting.depth:
        spec.types = [types.COMMON_SPECULATIVE_TYPE_NGRAM_SIMPLE]
        ngram = spec.ngram_simple
        ngram.size_n, ngram.size_m, ngram.min_hits = setting.ngram, setting.depth, 1
    for cpu in (params.cpuparams, params.cpuparams_batch, spec.draft.cpuparams, spec.draft.cpuparams_batch):
        cpu.n_threads = setting.threads
    if setting.exact:
        float32 = xllamacpp.ggml_type.GGML_TYPE_F32
        params.cache_type_k = params.cache_type_v = float32
        spec.draft.cache_type_k = spec.draft.cache_type_v = float32
        params.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
    return params


def main() -> None:
    """Run llama.cpp's server with the settings in the JSON argument, until standard input closes."""
    import xllamacpp  # pyright: ignore[reportMissingImports]  # an optional dependency

    server = xllamacpp.Server(params_of(Setting(**json.loads(sys.argv[1])), xllamacpp))
    print(f"\nADDRESS {server.listening_address}", flush=True)  # noqa: T201  # the parent waits for it
    sys.stdin.read()


if __name__ == "__main__":
    main()
