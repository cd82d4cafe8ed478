"""A decoder with faults affects only its own sequences."""

from __future__ import annotations

import dataclasses
from collections import abc

import model_helpers
import pytest

from workbench.core.sampling import SamplingParams
from workbench.decoders.decoder_params import DecoderParams
from workbench.engine import Engine, Models, Request, Sequence
from workbench.engine.decoder import Decoder, EngineContext
from workbench.engine.request import ENDED, ERROR, FINISHED
from workbench.engine.settings import Settings
from workbench.methods import registry

PROMPT = model_helpers.repeating_prompt(11, period=5)
N = 12


@dataclasses.dataclass  # therefore without a hash
class Faulty(Decoder):
    """Raises errors where configured."""

    context: EngineContext
    in_step: bool

    def open(self, row: Sequence) -> None:
        row.state = None

    def step(self, rows: abc.Sequence[Sequence]) -> bool:
        if self.in_step:
            raise RuntimeError("a round")
        self.context.end(rows[0], FINISHED, "length")
        return True

    def change(self, row: Sequence, settings: Settings) -> None:
        raise RuntimeError("a change")

    def revoke(self, row: Sequence) -> None:
        raise RuntimeError("a hand-over")

    def close(self, row: Sequence) -> None:
        raise RuntimeError("the end")


@dataclasses.dataclass(frozen=True)
class FaultyRounds(DecoderParams):
    in_step: bool = False

    def decoder(self, context: EngineContext) -> Decoder:
        return Faulty(context, self.in_step)


@pytest.mark.parametrize("in_step", [True, False])
def test_faults_of_a_decoder_end_only_its_own_sequences(in_step: bool, device: str) -> None:
    models: Models = model_helpers.make_models("llama", noise=0.05, device=device)
    plain = registry.get("autoregressive")
    faulty = dataclasses.replace(plain, name="faulty", decoder_params=FaultyRounds(in_step))
    engine = Engine(models)
    rows = [engine.submit(Request(PROMPT, m, max_new_tokens=N, stop_at_eos=False)) for m in (faulty, plain)]
    for _ in range(200):
        if engine.is_idle:
            break
        engine.step()
    assert [row.status for row in rows] == [ERROR if in_step else FINISHED, FINISHED]
    assert all(row.status in ENDED for row in rows)
    assert rows[1].committed[len(PROMPT) :] == model_helpers.hf_greedy(models.target.model, PROMPT, N)
    assert not models.target.slots


class Closed(Faulty):
    def open(self, row: Sequence) -> None:
        row.settings = dataclasses.replace(
            row.settings, sampling=SamplingParams(temperature=2.0)
        )  # release what was opened so far
        raise RuntimeError("an opening")


@dataclasses.dataclass(frozen=True)
class ClosedRounds(DecoderParams):
    def decoder(self, context: EngineContext) -> Decoder:
        return Closed(context, False)


def test_decoder_that_cannot_open_keeps_the_run_unchanged(device: str) -> None:
    models: Models = model_helpers.make_models("llama", noise=0.05, device=device)
    plain = registry.get("draft-model")
    engine = Engine(models)
    row = engine.submit(Request(PROMPT, plain, max_new_tokens=N, stop_at_eos=False))
    engine.step()
    held = row.settings, row.state
    row.change(method=dataclasses.replace(plain, name="closed", decoder_params=ClosedRounds()))
    engine.step()
    assert row.settings is held[0]
    assert row.state is held[1]
    while not engine.is_idle:
        engine.step()
    assert row.status == FINISHED
    assert row.trace is not None
    assert any("A change was refused" in note for note in row.trace.footer.warnings)
    assert row.committed[len(PROMPT) :] == model_helpers.hf_greedy(models.target.model, PROMPT, N)
