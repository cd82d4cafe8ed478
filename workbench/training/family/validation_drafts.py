"""On-policy evaluation of a head during training: the engine decodes held-out prompts with the last saved weights."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from workbench.decoders import ConfiguredMethod
from workbench.engine import Engine, Request
from workbench.engine.request import ENDED
from workbench.methods import registry
from workbench.methods.method_info import PLAIN
from workbench.models.loading import HeadInfo, Models, load_models
from workbench.trace import metrics
from workbench.trace.curves import ON_POLICY, SPEEDUP, TAU, TESTED
from workbench.trace.events import Round
from workbench.trace.speedup import speedup
from workbench.training.family.evaluate import evaluation_settings, read_held_out_prompts, with_chain_drafts

TOKENS = 48
"""Length limit of the answers that a head drafts in the evaluation during training, in tokens."""


@dataclass
class OnPolicyEvaluator:
    """Decodes held-out prompts greedily with a head in training and returns metrics; the models are loaded once.

    Attributes:
        target: name or folder of the target.
        kind: kind of the head.
        folder: folder of the head.
        answers: folder with the target's answers, whose held-out prompts are used.
        prompts: number of prompts, from as many groups as possible.
        device: device of the models.
    """

    target: str
    kind: str
    folder: Path
    answers: Path
    prompts: int
    device: str = "cpu"
    _models: list[Models] = field(default_factory=list)
    _n_calls: int = 0

    def __call__(self) -> dict[str, float]:
        """Decode held-out prompts with the last saved head; return the metrics by the names of their curves.

        The metrics are the acceptance at each draft position, the number of rounds, τ and the speed-up. The result is
        empty if there are no held-out prompts. Drafts have one branch if the method supports that, so that each
        position is either accepted or not. Each prompt is decoded alone, by the method and by plain decoding in turn,
        so that other load on the machine slows both.
        """
        if not self._models:
            self._models.append(load_models(self.target, None, self.device, "float32"))
        models = self._models[0]
        self._n_calls += 1
        config = json.loads((self.folder / "config.json").read_text(encoding="utf-8"))
        models.heads[self.kind] = HeadInfo(f"{self.folder.name}, {self._n_calls}", self.folder, config)
        models.shared.clear()  # it caches the previous net
        settings = evaluation_settings(self.kind)
        setting = next((row for row in settings if row.name == "chain"), settings[0])
        method = registry.get(setting.method).with_params(**dict(setting.params))
        draft_models = with_chain_drafts(models) if setting.name == "chain" else models
        held = list(read_held_out_prompts(self.answers / "answers.jsonl", 1))
        held = (
            held
            if len(held) >= self.prompts
            else list(read_held_out_prompts(self.answers / "answers.jsonl", self.prompts))
        )
        prompts, plain = [ids for _, ids in islice(held, self.prompts)], registry.get(PLAIN).with_params()
        if prompts:  # warm-up: compiling and loading must not count
            decode_greedily(draft_models, prompts[0], method, 2)
        pairs = [(decode_greedily(draft_models, ids, method), decode_greedily(models, ids, plain)) for ids in prompts]
        rounds = [r for draft_rounds, _ in pairs for r in draft_rounds]
        figures: dict[str, float] = {}
        for depth, tested, accepted in metrics.acceptance_by_depth(rounds):
            figures[f"{ON_POLICY}/position {depth}"] = accepted / tested
            figures[f"{TESTED}/position {depth}"] = tested
        if (tau := metrics.tau(rounds)) is not None:
            figures[TAU] = tau
        draft_rates, plain_rates = (
            {(i, 0): metrics.tokens_per_second(pair[k]) or 0.0 for i, pair in enumerate(pairs)} for k in (0, 1)
        )
        result = speedup(draft_rates, plain_rates)
        return figures if result is None else figures | {SPEEDUP: result.value}


def decode_greedily(models: Models, ids: list[int], method: ConfiguredMethod, tokens: int = TOKENS) -> list[Round]:
    """Return the rounds of a greedy answer to the prompt `ids`, decoded without other sequences in the batch."""
    engine = Engine(models, max_sequences=1)
    sequence = engine.submit(Request(ids, method, max_new_tokens=tokens))
    while sequence.status not in ENDED:
        engine.step()
    return list(sequence.trace.rounds)
