"""llama.cpp as a contender of a bench: plain, with prompt lookup, and with a draft model.

llama.cpp uses the workbench's weights, written as GGUF (in float32 for a float32 target, else in float16), and the same
token ids. Draft lengths are fixed, as for the other contenders. llama.cpp's own server comes from the wheel
`xllamacpp`, which needs no compiler. The server runs in a separate process, so that a crash does not end the bench. For
a float32 target the server's KV cache is float32 too, so that greedy tokens can be compared.
"""

from __future__ import annotations

import http.client
import importlib.util
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from workbench.bench.llamaserver import Setting
from workbench.bench.sample import Contender, ContenderFailedError, Sample
from workbench.core.errors import ModelError
from workbench.core.sampling import SamplingParams
from workbench.decoders import ConfiguredMethod
from workbench.engine import Models
from workbench.interop.gguf import export_gguf

NAMES = {"draft-model": "llama.cpp-draft", "prompt-lookup": "llama.cpp-lookup"}
"""Methods of the workbench that llama.cpp has too, with the name of llama.cpp's contender."""
PLAIN = "llama.cpp"
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
RUN_S = 600.0
"""Timeout of a run of llama.cpp, in seconds."""


def why_not(models: Models) -> str:
    """Return the reason why llama.cpp cannot be compared with these models; empty if it can."""
    missing = [name for name in ("xllamacpp", "gguf") if importlib.util.find_spec(name) is None]
    if missing:
        return f"{' and '.join(missing)} not installed; run `pip install xllamacpp gguf`"
    if models.target.device.type != "cpu" or models.target.dtype not in DTYPES:
        return "llama.cpp can be compared only with a target in float32, bfloat16 or float16 on a CPU"
    return ""


def build_info() -> str:
    """Return the version of llama.cpp's wheel, and the CPU extensions for which it was compiled.

    A generic wheel lacks some of the machine's extensions.

    The query runs in a separate process, since importing compiled code may crash it.
    """
    code = "import xllamacpp as x; print(x.__version__, x.get_system_info())"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    version, _, facts = result.stdout.strip().partition(" ")
    extensions = [fact.split("=")[0].strip() for fact in facts.removeprefix("CPU : ").split("|") if fact.strip(" ")]
    return f"xllamacpp {version} ({', '.join(extensions)})" if version else "xllamacpp"


@dataclass
class LlamaCppContender:
    """Contender of a bench that generates with llama.cpp: plain, with prompt lookup, or with a draft model.

    Attributes:
        setting: settings of llama.cpp's server, which starts with the first run.
        eos: token ids that end the text.
        max_new_tokens: length limit of every run, in tokens.
        sampling: `SamplingParams` of every run.
        name: name of the contender in reports.
        weights_bytes: size of the GGUF files, in bytes.
        seed: seed of sampled runs.
    """

    setting: Setting
    eos: Sequence[int]
    max_new_tokens: int
    sampling: SamplingParams
    name: str
    weights_bytes: int = 0
    seed: int = 0
    kind: str = "llama.cpp"
    promise: str = "exact"
    _process: subprocess.Popen[str] | None = field(default=None, repr=False)
    _address: str = field(default="", repr=False)

    @property
    def title(self) -> str:
        """Return the contender's title for display, such as "llama.cpp, draft model"."""
        variants = {PLAIN: "plain", "llama.cpp-draft": "draft model", "llama.cpp-lookup": "prompt lookup"}
        return f"llama.cpp, {variants[self.name]}"

    @property
    def parameters(self) -> dict[str, Any]:
        """Return llama.cpp's draft length, and for prompt lookup the n-gram length; {} for plain decoding."""
        if not self.setting.depth:
            return {}
        return {"draft_tokens": self.setting.depth} | ({} if self.setting.drafter else {"ngram": self.setting.ngram})

    def run(self, prompt_ids: Sequence[int], prompt: int = 0, repeat: int = 0) -> Sample:
        """Generate a text with llama.cpp once, starting from an empty KV cache.

        In the sample, `decode_seconds` is the time after the prompt that the server reports. `rounds` counts the
        target's forward passes, including the pass over the prompt.

        Raises:
            ContenderLostError: the server did not start, has ended, or refused the request.
        """
        self._start()
        sampling = self.sampling
        body = {
            "prompt": list(prompt_ids), "n_predict": self.max_new_tokens, "cache_prompt": False, "return_tokens": True,
            "samplers": ["temperature", "top_k", "top_p", "min_p"], "temperature": sampling.temperature,
            "top_k": sampling.top_k or 0, "top_p": sampling.top_p, "min_p": sampling.min_p, "seed": self.seed + repeat,
        }  # fmt: skip
        start = time.perf_counter()
        response = self._post("/completion", body)
        seconds = time.perf_counter() - start
        token_ids, times = list(response["tokens"]), response["timings"]
        if end := next((i for i, token in enumerate(token_ids, 1) if token in self.eos), 0):
            token_ids = token_ids[:end]
        rounds = int(times["predicted_n"]) - int(times.get("draft_n_accepted", 0))
        return Sample(self.name, prompt, repeat, token_ids, seconds, times["predicted_ms"] / 1e3, rounds)

    def tokenise(self, text: str) -> list[int]:
        """Return the token ids of a text, without special tokens, by the tokenizer in the GGUF file."""
        self._start()
        return self._post("/tokenize", {"content": text, "add_special": False, "parse_special": False})["tokens"]

    def close(self) -> None:
        """Stop llama.cpp's server if it is running."""
        if self._process is None:
            return
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.kill()
        self._process.wait()
        self._process.stdin.close()
        self._process.stdout.close()
        self._process = None

    def _start(self) -> None:
        if self._process is not None:
            return
        command = [sys.executable, "-m", "workbench.bench.llamaserver", self.setting.to_json()]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True)
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("ADDRESS "):
                self._address = line.split()[1].removeprefix("http://")
                return
        raise self._failure("did not start")

    def _post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        connection = http.client.HTTPConnection(self._address, timeout=RUN_S)
        try:
            connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
            response = connection.getresponse()
            data = json.loads(response.read())
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise self._failure(f"llama.cpp gave no answer ({type(error).__name__})") from error
        finally:
            connection.close()
        if response.status != http.client.OK:
            raise ContenderFailedError(
                f"llama.cpp refused the request: {str(data.get('error', {}).get('message', data))[:200]}"
            )
        return data

    def _failure(self, what: str) -> ContenderFailedError:
        assert self._process is not None
        try:
            code = self._process.wait(timeout=2)  # a process that crashed may still be ending
        except subprocess.TimeoutExpired:
            return ContenderFailedError(what)
        return ContenderFailedError(
            f"{what}: its process ended " + (f"by signal {-code}" if code < 0 else f"with {code}")
        )


@contextmanager
def contenders(
    models: Models,
    methods: Sequence[ConfiguredMethod],
    max_new_tokens: int,
    sampling: SamplingParams,
    seed: int,
    folder: Path,
) -> Iterator[list[Contender]]:
    """Yield llama.cpp's contenders for a `with` block: plain decoding, and counterparts of the workbench's methods.

    The servers of llama.cpp are stopped at the end of the block.

    A draft model that cannot be written as GGUF has no counterpart. A draft model with a reduced vocabulary drafts from
    the whole vocabulary in llama.cpp.

    Args:
        models: target, and drafter for the draft model's counterpart.
        methods: methods that the workbench measures; the counterparts use the same draft lengths.
        max_new_tokens: length limit of every run, in tokens.
        sampling: sampling parameters of every run.
        seed: seed of sampled runs.
        folder: folder of the GGUF files, which the contenders read as long as they exist.

    Raises:
        ModelError: the target cannot be written as GGUF.
    """
    half = models.target.dtype != torch.float32
    file = export_gguf(models.target.model, models.tokenizer, folder / "target.gguf", models.target_name, half)
    size = file.stat().st_size
    common: dict[str, Any] = {
        "eos": sorted(models.eos), "max_new_tokens": max_new_tokens, "sampling": sampling, "seed": seed,
    }  # fmt: skip
    plain = Setting(str(file), models.target.context, torch.get_num_threads(), exact=not half)
    created = [LlamaCppContender(plain, name=PLAIN, weights_bytes=size, **common)]
    for configured in methods:
        depth, drafter = int(configured.values.get("depth", 0)), ""
        total_bytes = size
        if configured.name == "draft-model" and (drafter_file := _drafter(models, folder / "drafter.gguf", half)):
            drafter, total_bytes = str(drafter_file), size + drafter_file.stat().st_size
        elif configured.name != "prompt-lookup":
            continue
        ngram = int(configured.values.get("ngram", 2))
        setting = Setting(plain.model, plain.context, plain.threads, plain.exact, depth, drafter, ngram)
        created.append(LlamaCppContender(setting, name=NAMES[configured.name], weights_bytes=total_bytes, **common))
    try:
        yield list(created)
    finally:
        for contender in created:
            contender.close()


def _drafter(models: Models, path: Path, half: bool) -> Path | None:
    """Write the draft model as GGUF and return the file; None if there is none, or llama.cpp does not support it."""
    if models.drafter is None:
        return None
    try:
        return export_gguf(models.drafter.model, models.tokenizer, path, str(models.drafter_name), half)
    except ModelError:
        return None
