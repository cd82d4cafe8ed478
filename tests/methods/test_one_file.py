"""A method in one file outside the package, with or without a head, is listed, described, trained and measured."""

from __future__ import annotations

from pathlib import Path

import model_helpers
import pytest
import torch

from workbench.bench import claims, vision_suite
from workbench.bench.claims import Scale
from workbench.bench.labs import measure
from workbench.cli import docs
from workbench.cli.train import train
from workbench.core.errors import WorkbenchError
from workbench.decoders.declarations import heads_in
from workbench.engine import Engine, Request
from workbench.methods import method_info, registry
from workbench.models.loading import find_heads, load_models
from workbench.service.choices import static_reasons
from workbench.service.inventory import inventory
from workbench.site import methodpages
from workbench.training.scenes.model import save_vision_model
from workbench.ui import methods_page

from .test_registry import TEXT, file

WHOLE = (
    TEXT.replace("register(Method(", "METHOD = Method(").replace(
        "policies=(Fixed(),)))",
        """policies=(Fixed(),), differences=("The paper stutters twice.",),
    claims=(Claim("tokens a target pass (τ)", "anywhere", 1.0, 1.0, "a paper",
                  lambda lab: lab.on_groups("maths").tau()),),
    suites={"vision": (Setting("Stutter, deep", {"depth": 3}),)}, recording=Recording(("chat",)))""",
    )
).replace(
    "from workbench.decoders.draft_verify.parts",
    "from workbench.decoders.declarations import Claim, Recording, Setting\nfrom workbench.decoders.draft_verify.parts",
)

__all__ = ["file"]


def test_one_file_is_a_whole_method(file: Path) -> None:
    file.write_text(WHOLE, encoding="utf-8")
    assert registry.load(file) == ["my-stutter"]
    assert method_info.check("my-stutter", {"depth": 2}).title == "TITLE"
    assert "my-stutter" in {card["name"] for card in methods_page.catalogue()}
    assert "### `my-stutter`\n\n- The paper stutters twice.\n" in docs.pages(method_info.methods())["methods.md"]
    assert "The paper stutters twice." in methodpages.pages()["methods/my-stutter.md"]
    assert [s.name for s in vision_suite.settings() if s.method == "my-stutter"] == ["Stutter, deep"]
    assert registry.get("my-stutter").recording.presets == ("chat",)
    (claim,) = claims.claims_of("my-stutter")
    assert claim.command() == "workbench claims --method my-stutter"
    measured = measure(claim, Scale(tokens=8))
    assert measured is not None
    assert 1 <= measured.value < 2


TRAINED = '''
from __future__ import annotations
from dataclasses import dataclass
import torch
from workbench.decoders import Method, Promise, Source
from workbench.models.bundle import VISION_TARGET
from workbench.decoders.declarations import Claim, Head, Recording, Setting
from workbench.methods.common.feature import FeatureDrafter
from workbench.methods.common.feature_net import FeatureNet
from workbench.methods.policies.fixed import Fixed
from workbench.methods.verifiers.lossless import Lossless

class ScaledNet(FeatureNet):
    """EAGLE's layer, and a number for each place of its answer."""
    kind = "my-layer"
    def __init__(self, width, heads, ffn, context=1024):
        super().__init__(width, heads, ffn, context)
        self.scale = torch.nn.Parameter(torch.ones(width))
    def futures(self, state):
        return super().futures(state * self.scale)

@dataclass(frozen=True)
class Scaled(FeatureDrafter):
    """A layer whose answer is scaled."""
    needs = (ScaledNet.kind, "trees")
    net = ScaledNet

METHOD = Method(
    "my-layer", title="My layer", promise=Promise.EXACT, source=Source("A paper", "A. N. Other", 2026, ""),
    summary="Scale it.", drafter=Scaled(), verifier=Lossless(), policies=(Fixed(depth=3),),
    differences=("The paper scales nothing.",),
    claims=(Claim("mean accepted length", "anywhere", 1.0, 1.0, "a paper", lambda lab: lab.tau("Mine"),
                  home=VISION_TARGET),),
    suites={"vision": (Setting("Mine"),)}, recording=Recording(scene="four-shapes"),
    head=Head(ScaledNet, "A layer of {ffn}, scaled.", recipe="vision-heads"),
)
'''


def test_head_is_declared_trained_and_found_with_its_method(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file.write_text(TRAINED, encoding="utf-8")
    assert registry.load(file) == ["my-layer"]
    models = tmp_path / "models"
    monkeypatch.setenv("WORKBENCH_MODELS", str(models))
    save_vision_model(*model_helpers.tiny_scene_target(), models / "tiny-target")
    work = {"own": tmp_path / "own.json", "features": tmp_path / "features.safetensors", "checkpoint": ""}
    chosen = {"method": "my-layer", "target": models / "tiny-target", "out": models, "ffn": 16, "heads": 2, "steps": 2,
              "rows": 4, "own_scenes": 66, "used": 66, "questions": 1, "truth": True} | work  # fmt: skip
    train("vision-heads", [f"{name}={value}" for name, value in chosen.items()])

    card = (models / "tiny-my-layer" / "README.md").read_text(encoding="utf-8")
    assert "A layer of 16, scaled." in card
    assert "`workbench train vision-heads --set method=my-layer`" in card
    assert {e["role"] for e in inventory() if e["name"] == "tiny-my-layer"} == {"heads of tiny-target"}
    loaded = load_models("tiny-target", None, "cpu", "float32")
    assert loaded.unsupported_reason(registry.get("my-layer").needs) == ""
    ask = {"prompt": [5, 6, 7], "max_new_tokens": 8, "stop_at_eos": False}
    plain, mine = (
        Engine(loaded).generate(Request(method=registry.get(name), **ask)) for name in ("autoregressive", "my-layer")
    )
    assert mine.token_ids == plain.token_ids
    assert any(round.nodes.tokens for round in mine.rounds), "it drafts"
    with torch.inference_mode():
        loaded.target.model.get_input_embeddings().weight.neg_()
    assert "other weights" in find_heads("tiny-target", loaded.target)["my-layer"].problem

    assert static_reasons("tiny-target", None)(("my-layer", "trees")) == ""
    assert "my-layer" in {card["name"] for card in methods_page.catalogue()}
    assert "The paper scales nothing." in docs.pages(method_info.methods())["methods.md"]
    assert "Mine" in {setting.name for setting in vision_suite.settings()}
    assert registry.get("my-layer").recording.scene == "four-shapes"
    (claim,) = claims.claims_of("my-layer")
    assert claim.missing_requirement() == "there are no my-layer heads for vision-target yet"
    assert "my-layer" in {method.name for method in model_helpers.text_methods()}, "the common battery's methods"
    assert "my-layer" in model_helpers.make_models(heads=tmp_path / "medusa").heads, "and heads"


def test_two_networks_cannot_be_heads_of_one_kind(file: Path) -> None:
    file.write_text(TRAINED.replace('kind = "my-layer"', 'kind = "msd"'), encoding="utf-8")
    with pytest.raises(WorkbenchError, match=r"my-layer and msd declare different networks for .* one kind, 'msd'"):
        registry.load(file)


def test_each_needed_head_is_declared_by_some_method() -> None:
    needed = {kind for method in registry.catalogue_methods() for kind in heads_in(method.needs)}
    assert needed == {method.head.kind for method in registry.catalogue_methods() if method.head}
