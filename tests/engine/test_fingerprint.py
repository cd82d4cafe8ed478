"""Fingerprints tie a head to its target's weights: rounding does not change them, retraining does."""

from __future__ import annotations

import copy
import json
import shutil
from pathlib import Path

import model_helpers
import pytest
import torch

from workbench.core.errors import MethodUnavailableError
from workbench.engine import Engine, Request, load_models
from workbench.methods import registry
from workbench.models.bundle import bundled, bundled_folder
from workbench.models.fingerprint import N_BITS, TOLERATED, WEIGHTS, fingerprint, fingerprints_differ
from workbench.models.loading import find_heads
from workbench.models.pretrained import load_model


def model(seed: int = 0) -> torch.nn.Module:
    return model_helpers.family("llama", seed, vocab_size=257)


def test_fingerprint_survives_rounding_but_not_retraining() -> None:
    one, other = model(), model(1)
    mine = fingerprint(one)
    assert len(mine) == N_BITS // 4
    assert fingerprint(copy.deepcopy(one).float()) == mine
    rounded = copy.deepcopy(one).to(torch.bfloat16)
    assert not fingerprints_differ(fingerprint(rounded), mine)
    embedding = rounded.float().get_input_embeddings().weight  # type: ignore[operator]
    scale = embedding.abs().amax(1, keepdim=True) / 7
    embedding.data.copy_((embedding / scale).round() * scale)
    assert not fingerprints_differ(fingerprint(rounded.float()), mine), "four bits per weight"
    assert fingerprints_differ(fingerprint(other), mine)


def test_fingerprints_within_tolerance_match_and_invalid_ones_do_not() -> None:
    mine = int(fingerprint(model()), 16)
    changed = [f"{mine ^ (1 << n) - 1:064x}" for n in (TOLERATED, TOLERATED + 1)]
    assert [fingerprints_differ(f"{mine:064x}", other) for other in changed] == [False, True]
    assert fingerprints_differ(f"{mine:064x}", "x")


@pytest.mark.parametrize("name", ["text-target", "vision-target"])
def test_every_bundled_head_has_the_fingerprint_of_its_target(name: str) -> None:
    mine = fingerprint(load_model(name, torch.device("cpu"), torch.float32))
    configs = [json.loads((folder / "config.json").read_text()) for folder in bundled().values()]
    heads = [c for c in configs if "workbench_head" in c and c["target"] == name]
    assert heads
    assert all(not fingerprints_differ(c[WEIGHTS], mine) for c in heads)


def test_head_for_other_weights_is_refused_with_a_remedy_and_other_methods_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("text-target", "text-target-medusa"):
        shutil.copytree(bundled_folder() / name, tmp_path / name)
    monkeypatch.setenv("WORKBENCH_MODELS", str(tmp_path))
    models = load_models("text-target", None, "cpu")
    assert models.missing_reason("medusa") == ""
    models.target.model.get_input_embeddings().weight.data.normal_()  # retrained
    models.heads = find_heads("text-target", models.target)
    medusa = registry.get("medusa")
    why = models.unsupported_reason(medusa.needs)
    assert "text-target-medusa was trained for other weights than those of the loaded text-target" in why
    assert "workbench train" in why
    engine = Engine(models)
    with pytest.raises(MethodUnavailableError, match="other weights"):
        engine.generate(Request([5, 6, 7], medusa, max_new_tokens=4))
    assert engine.generate(Request([5, 6, 7], registry.get("prompt-lookup"), max_new_tokens=4)).footer.error == ""
    config = tmp_path / "text-target-medusa" / "config.json"
    values = json.loads(config.read_text())
    del values[WEIGHTS]
    config.write_text(json.dumps(values))
    assert not find_heads("text-target", models.target)["medusa"].problem, "heads made before fingerprints existed"


def test_added_tokens_keep_the_fingerprint() -> None:
    one = model()
    mine, size = fingerprint(one), one.get_input_embeddings().weight.shape[0]  # type: ignore[operator]
    one.resize_token_embeddings(size + 7)  # type: ignore[operator]
    assert not fingerprints_differ(fingerprint(one), mine)
