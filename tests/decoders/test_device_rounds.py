"""Rounds that the host reads late: same text and trace as the normal loop, whatever the delay; no hidden host read."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import model_helpers
import numpy as np
import pytest
import torch

from workbench.core.random_stream import Purpose, RandomStream
from workbench.core.rejection import walk
from workbench.core.sampling import SamplingParams
from workbench.decoders.draft_verify.decoder import DraftVerify
from workbench.engine import Engine, Models, Request
from workbench.engine.request import ENDED, Sequence
from workbench.kernels.device_random import as_signed, device_uniforms
from workbench.kernels.device_walk import find_path
from workbench.methods import registry
from workbench.trace.events import Trace

PROMPT = model_helpers.repeating_prompt(11, period=5)
N = 60
METHODS = {
    "plain": registry.get("autoregressive").with_params(),
    "chain": registry.get("draft-model").with_params(depth=3),
}


@pytest.fixture(scope="module")
def models(device: str) -> Models:
    """A drafter of medium quality."""
    return model_helpers.make_models("llama", noise=0.05, device=device)


def make_request(method: str, **more: Any) -> Request:
    return Request(PROMPT, METHODS[method], max_new_tokens=N, stop_at_eos=False, **more)


def queue_of(engine: Engine) -> Any:
    decoder = next(d for d in engine._decoders.values() if isinstance(d, DraftVerify))
    assert decoder.queue is not None
    return decoder.queue


def content(trace: Trace) -> list[Any]:
    """Return all facts about a trace's rounds but its times."""
    return [
        (r.nodes.tokens, r.nodes.status, r.path, r.bonus, [t.token for t in r.emitted], r.changes, r.notes,
         np.round([a or 0 for a in r.nodes.accept], 9).tolist(), np.round(r.entropy, 9).tolist())
        for r in trace.rounds
    ]  # fmt: skip


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("late", [1, 3])
def test_late_rounds_equal_the_normal_loop(models: Models, method: str, temperature: float, late: int) -> None:
    request = dict(sampling=SamplingParams(temperature=temperature), seed=5)
    normal = Engine(models).generate(make_request(method, **request))
    engine = Engine(models, rounds_late=late)
    trace = engine.generate(make_request(method, **request))
    assert content(trace) == content(normal)
    assert trace.footer.text == normal.footer.text
    assert trace.footer.reason == normal.footer.reason == "length"
    assert queue_of(engine).n_launched > len(trace.rounds) / 2, "most rounds were launched before the last was read"
