"""Export of heads to other engines' layouts: reading them back gives the same drafts."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from workbench.core.errors import ModelError, ParameterError, WorkbenchError
from workbench.engine import Engine, Models, Request, load_models
from workbench.interop import heads
from workbench.interop.heads import export_heads
from workbench.methods import registry
from workbench.methods.common.feature_net import FeatureNet
from workbench.methods.common.trained_net import head_of, load_trained
from workbench.methods.medusa.drafter import MedusaHeads
from workbench.models.bundle import bundled_folder
from workbench.models.checkpoints import user_heads
from workbench.models.checkpoints.layouts import read_checkpoint
from workbench.models.checksums import checksum_problem
from workbench.models.loading import find_heads
from workbench.training.heads.artefact import load_net, save_net, shrink

pytestmark = pytest.mark.usefixtures("no_user_heads")


@pytest.fixture(scope="module")
def text_models() -> Models:
    return load_models("text-target", None, "cpu", "float32")


def run(models: Models, method: str, prompt: list[int], n: int = 24, **params: Any) -> Any:
    request = Request(prompt, registry.get(method).with_params(**params), max_new_tokens=n, seed=1)
    return Engine(models, max_sequences=1).generate(request)


def found_in(models: Models, folder: Path, kind: str) -> Models:
    """Return the target with the heads of a folder."""
    user_heads.use_heads(str(folder))
    models.heads = find_heads(models.target_name, models.target)
    assert models.heads[kind].folder == folder
    assert not models.heads[kind].problem
    models.shared = {}
    return models


def guesses(models: Models, method: str) -> Any:
    """Return the drafts of each round of a run."""
    done = run(models, method, models.tokenizer("Once upon a time there was").input_ids, 16)
    assert sum(len(r.nodes.tokens) for r in done.rounds) > 16
    return [r.nodes.tokens for r in done.rounds], done.token_ids


def own_layer(folder: Path, **options: Any) -> Path:
    """Write a random layer for the bundled target, in the format of `workbench train`."""
    net, generator = FeatureNet(288, 6, 48, **options), torch.Generator().manual_seed(0)
    for weight in net.parameters():
        weight.data = 0.3 * torch.randn(weight.shape, generator=generator)
    extra = {} if options else {"draft_vocabulary": list(range(0, 4096, 2))}
    save_net(net, folder, "text-target", torch.float16, **extra)
    return folder


@pytest.mark.parametrize(
    ("to", "options"),
    [
        ("speculators", {}),
        ("speculators", {"norms": ("norm_embed", "before", "after"), "rope": {"rope_theta": 5e4}}),
        ("speculators", {"norms": (), "fuse_bias": True, "bias": True, "eps": 1e-5}),
        ("vllm", {"norms": ()}),
    ],
)
def test_exported_layer_reads_back_to_the_same_predictions(
    to: str, options: dict[str, Any], tmp_path: Path, text_models: Models
) -> None:
    ours = own_layer(tmp_path / "ours", **options)
    written = export_heads(str(ours), tmp_path / "theirs", to)
    assert written["layout"] == read_checkpoint(tmp_path / "theirs").layout
    x, places = torch.randn(2, 1, 7, 288).unbind(0), torch.arange(7)
    said = []
    for folder in (ours, tmp_path / "theirs"):
        models = found_in(text_models, folder, "eagle")
        with torch.inference_mode():
            net = load_trained(FeatureNet, models, "heads", "")
            logits = head_of(FeatureNet, models)(net(net.make_pairs(*x), places))
        said.append((logits, head_of(FeatureNet, models).to_token_ids(logits.argmax(-1))))
    assert torch.equal(said[0][0], said[1][0])
    assert torch.equal(said[0][1], said[1][1])
    assert said[0][0].shape[-1] == (4096 if options else 2048), "the draft vocabulary is the same"


@pytest.mark.unchecked
def test_exported_medusa_heads_read_back_to_the_same_drafts(tmp_path: Path, text_models: Models) -> None:
    written = export_heads("text-target-medusa", tmp_path / "theirs", "vllm")
    assert written["layout"] == "Medusa (vLLM)"
    config = json.loads((tmp_path / "theirs" / "config.json").read_text())
    assert config["original_lm_head"]
    assert config["num_heads"] == 4
    assert config["model_type"] == "medusa"
    shapes = read_checkpoint(tmp_path / "theirs").files.shapes
    assert shapes["lm_head.weight"] == (4096, 288), "vLLM reads the LM head from there"
    user_heads.use_heads()
    text_models.heads = find_heads("text-target", text_models.target)
    before = guesses(text_models, "medusa")
    assert guesses(found_in(text_models, tmp_path / "theirs", "medusa"), "medusa") == before


def own_medusa(folder: Path, layers: int, own_rows: bool) -> tuple[Path, MedusaHeads]:
    """Write random heads for every second token, with or without own LM heads."""
    kept, generator = list(range(0, 4096, 2)), torch.Generator().manual_seed(1)
    heads = MedusaHeads(288, 3, layers, len(kept) if own_rows else 0)
    heads.accuracy = ((0.5,) * 10,) * 3
    for weight in heads.parameters():
        weight.data = 0.1 * torch.randn(weight.shape, generator=generator)
    save_net(heads, folder, "text-target", torch.float16, draft_vocabulary=kept, vocab_size=4096)
    return folder, heads


@pytest.mark.parametrize(("layers", "own_rows"), [(1, False), (3, False), (2, True)])
def test_exported_medusa_heads_with_reduced_vocabulary_read_back_to_the_same_distributions(
    layers: int, own_rows: bool, tmp_path: Path, text_models: Models
) -> None:
    ours, _ = own_medusa(tmp_path / "ours", layers, own_rows)
    export_heads(str(ours), tmp_path / "theirs", "vllm")
    stored = load_file(tmp_path / "theirs" / "model.safetensors")
    assert stored["token_map"].tolist() == list(range(0, 4096, 2))
    if not own_rows:
        table = text_models.target.model.get_output_embeddings().weight
        torch.testing.assert_close(stored["lm_head.weight"].float(), table[::2].float(), atol=1e-3, rtol=1e-3)
    h, logits = torch.randn(4, 288, generator=torch.Generator().manual_seed(2)), []
    for folder in (ours, tmp_path / "theirs"):
        models = found_in(text_models, folder, "medusa")
        with torch.inference_mode():
            net = load_trained(MedusaHeads, models, "heads", "")
            states, head = net(h).float(), head_of(MedusaHeads, models)
            logits.append(head(states) if net.own is None else states @ net.own.float().mT)
    torch.testing.assert_close(logits[0], logits[1], atol=2e-2, rtol=2e-2)
    assert not torch.allclose(logits[0][0], logits[0][1]), "the heads' predictions differ"


def test_configuration_keys_that_only_other_engines_read_are_correct(tmp_path: Path) -> None:
    for name, options, bias in (
        ("with", {"norms": (), "fuse_bias": True, "bias": True, "eps": 1e-5}, True),
        ("without", {"norms": ()}, False),
    ):
        export_heads(str(own_layer(tmp_path / name, **options)), tmp_path / f"{name}-out")
        config = json.loads((tmp_path / f"{name}-out" / "config.json").read_text())
        assert config["fusion_bias"] is bias
        assert config["transformer_layer_config"]["attention_bias"] is bias
        assert config["transformer_layer_config"]["rms_norm_eps"] == options.get("eps", 1e-6)
        assert config["speculators_config"]["verifier"]["name_or_path"] == "text-target"
        net = FeatureNet.from_checkpoint(read_checkpoint(tmp_path / f"{name}-out"), 64, 12)
        assert net.eps == options.get("eps", 1e-6)
    with pytest.raises(ModelError, match="no bias where it combines feature and embedding"):
        export_heads(str(own_layer(tmp_path / "biased", norms=(), fuse_bias=True)), tmp_path / "no", "vllm")
    wide = own_layer(tmp_path / "wide", norms=(), head_size=32)
    with pytest.raises(
        ModelError, match="wide has 6 attention heads of size 32; for an export, heads × size must equal the width 288"
    ):
        export_heads(str(wide), tmp_path / "no", "vllm")
    assert not (tmp_path / "no").exists()


def test_lm_head_is_searched_in_all_files_before_the_embedding_is_used(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    save_file({"model.embed_tokens.weight": torch.zeros(4, 2)}, tmp_path / "model-00001-of-00002.safetensors")
    save_file({"lm_head.weight": torch.ones(4, 2)}, tmp_path / "model-00002-of-00002.safetensors")
    assert bool(heads._lm_head(str(tmp_path)).all()), "it is not tied"
    (tmp_path / "model-00002-of-00002.safetensors").unlink()
    assert not bool(heads._lm_head(str(tmp_path)).any())


def test_full_disk_is_reported_and_leaves_no_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")

    monkeypatch.setattr("safetensors.torch.save_file", full)
    for folder in ("new", "there"):
        (tmp_path / "there").mkdir(exist_ok=True)
        with pytest.raises(WorkbenchError, match="cannot be written: No space left on device"):
            export_heads("text-target-medusa", tmp_path / folder, "vllm")
    assert [path.name for path in tmp_path.rglob("*")] == ["there"], "an existing folder stays"


def test_heads_without_a_layout_are_refused_by_name(tmp_path: Path) -> None:
    layer = str(own_layer(tmp_path / "ours"))
    with pytest.raises(ModelError, match=r"lacks the norms of ours.*--to speculators"):
        export_heads(layer, tmp_path / "a", "vllm")
    with pytest.raises(ModelError, match=r"The layout speculators does not support medusa heads\. Use --to vllm"):
        export_heads("text-target-medusa", tmp_path / "a", "speculators")
    with pytest.raises(ModelError, match="The layout vllm does not support judge heads"):
        export_heads("text-judge", tmp_path / "a", "vllm")
    with pytest.raises(ModelError, match="has no heads that the workbench trained"):
        export_heads("text-target", tmp_path / "a")
    with pytest.raises(ParameterError, match="is not an empty folder"):
        export_heads("text-target-medusa", tmp_path, "vllm")
    with pytest.raises(ParameterError, match="The workbench cannot write heads in the layout 'onnx'"):
        export_heads("text-target-medusa", tmp_path / "a", "onnx")
    assert not (tmp_path / "a").exists(), "no file was written"


def test_int8_head_drafts_nearly_the_same_and_keeps_the_text(tmp_path: Path, text_models: Models) -> None:
    user_heads.use_heads()
    text_models.heads = find_heads("text-target", text_models.target)
    before, text = guesses(text_models, "mtp")
    whole = tmp_path / "whole"
    shutil.copytree(bundled_folder() / "text-target-mtp", whole)
    net, facts = load_net(whole)
    facts.pop("stored", None)
    facts = {key: value for key, value in facts.items() if key not in ("workbench_head", *net.config())}
    save_net(net, whole, dtype=torch.float16, **facts)
    made = shrink(whole, tmp_path / "less")
    assert made["after"] < 0.56 * made["before"]
    assert 0 < made["error"] < 0.01
    found, same = guesses(found_in(text_models, tmp_path / "less", "mtp"), "mtp")
    assert same == text
    alike = [a == b for one, other in zip(before, found, strict=False) for a, b in zip(one, other, strict=False)]
    assert sum(alike) > 0.8 * len(alike)
    config = load_net(tmp_path / "less")[1]
    assert config.pop("stored") == {"bits": 8, "error": round(made["error"], 5)}
    assert config == load_net(whole)[1]
    assert sorted(p.name for p in (tmp_path / "less").iterdir()) == sorted(
        p.name for p in (bundled_folder() / "text-target-mtp").iterdir()
    )
    check_sums(tmp_path / "less")


def check_sums(folder: Path) -> None:
    for line in (folder / "SHA256SUMS").read_text().splitlines():
        assert checksum_problem(folder / line.split()[1], line.split()[0]) == ""


def test_heads_that_cannot_be_int8_are_refused(tmp_path: Path) -> None:
    shrink(own_layer(tmp_path / "ours"), tmp_path / "less")
    for folder, error, words in (
        (tmp_path / "less", ModelError, "can be converted to int8"),
        (bundled_folder() / "text-judge", ModelError, "can be converted to int8"),
        (tmp_path / "nowhere", ModelError, "no readable weights"),
    ):
        with pytest.raises(error, match=words):
            shrink(folder, tmp_path / "further")
        assert not (tmp_path / "further").exists()
    with pytest.raises(ParameterError, match="Choose a new folder"):
        shrink(tmp_path / "ours", tmp_path / "less")
