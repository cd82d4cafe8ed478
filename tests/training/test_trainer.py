"""The trainer: losses of a step, order of evaluation and saving, exact resuming; and typed options per kind of head."""

from __future__ import annotations

import dataclasses
import inspect
import itertools
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from workbench.core.errors import ParameterError, UnknownNameError
from workbench.methods import registry
from workbench.training import recipes
from workbench.training.family.options import ChatHeadOptions, chat_head_kinds, options_class
from workbench.training.heads.recipe import trainable
from workbench.training.loop import RunOptions
from workbench.training.options import docs_of, types_of
from workbench.training.recipe import changed_options
from workbench.training.stopping import StoppedError
from workbench.training.trainer import Curve, Step, StepLoss, Trainer, propagate, step_generator

TRAINING = Path(inspect.getfile(recipes)).parent
KINDS = [*chat_head_kinds(), *trainable()]


def make_trainer(options: RunOptions, lines: list[str], **parts: Any) -> Trainer:
    """Return a trainer of a linear layer on noise."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        net = nn.Linear(4, 4)

    def loss(step: Step) -> StepLoss:
        x = torch.randn(8, 4, generator=step.generator)
        return StepLoss((net(x) - x).square().mean(), 8)

    return Trainer("toy", options, net, loss, lines.append, **parts)


def test_gradients_and_figures_of_the_parts_of_a_step_are_added() -> None:
    weight = nn.Parameter(torch.tensor([2.0]))
    before_second: list[float] = []

    def parts() -> Iterator[StepLoss]:
        yield StepLoss(3 * weight.sum(), 5, {"loss": 1.0, "first": 2.0})
        assert weight.grad is not None
        before_second.append(float(weight.grad))  # the first part's graph is freed before the second is computed
        yield StepLoss(4 * weight.sum(), 6, {"loss": 0.5})

    assert propagate(parts()) == (11, {"loss": 1.5, "first": 2.0})
    assert weight.grad is not None
    assert (before_second, float(weight.grad)) == ([3.0], 7.0)
    assert propagate(StepLoss(torch.zeros(()), 2)) == (2, {"loss": 0.0}), "nothing is supervised: no gradient"


def test_a_steps_random_numbers_depend_on_seed_and_number_alone() -> None:
    draws = [
        torch.rand(3, generator=step_generator(seed, number)).tolist() for seed, number in ((0, 1), (0, 2), (1, 1))
    ]
    assert draws[0] == torch.rand(3, generator=step_generator(0, 1)).tolist()
    assert all(a != b for a, b in itertools.combinations(draws, 2))


def test_a_net_is_evaluated_before_it_is_saved_and_is_in_training_mode_during_steps() -> None:
    events: list[tuple[str, bool]] = []
    lines: list[str] = []
    trainer = make_trainer(RunOptions(steps=2), lines, curve=Curve(None))
    trainer.evaluate = lambda: events.append(("evaluate", trainer.net.training)) or {"agreement": 0.25, "more": 1.0}
    trainer.save = lambda: events.append(("save", trainer.net.training))
    result = trainer.run()
    assert events == [("evaluate", False), ("save", False)]
    assert trainer.net.training
    assert result.held == {"agreement": 0.25, "more": 1.0}
    assert trainer.curve == Curve(None, [(16, 0.25)]), "the first figure"
    assert lines[0] == "toy: 20 parameters"
    assert lines[-1] == "toy: held-out agreement 0.250 more 1.000"


def test_a_run_stopped_by_sigterm_continues_as_if_it_had_not_been_stopped(tmp_path: Path) -> None:
    whole = make_trainer(RunOptions(tmp_path / "whole.pt", steps=6), [])
    whole.run()
    options = RunOptions(tmp_path / "run.pt", steps=6)
    trainer, lines = make_trainer(options, []), list[str]()
    usual = trainer.losses

    def stop_at_three(step: Step) -> Any:
        if step.number == 2:
            os.kill(os.getpid(), signal.SIGTERM)
        return usual(step)

    trainer.losses = stop_at_three
    with pytest.raises(StoppedError, match="step 3"):
        trainer.run()
    resumed = make_trainer(dataclasses.replace(options, resume=True), lines)
    assert resumed.run().steps == 6
    assert any("resumed at step 3" in line for line in lines)
    for a, b in zip(whole.net.parameters(), resumed.net.parameters(), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("kind", KINDS)
def test_a_kind_of_head_has_only_options_that_are_described_and_of_one_type(kind: str) -> None:
    """An option of a base class that has another type in a kind would be read as the wrong one of the two."""
    cls = options_class(kind)
    types = types_of(cls)
    assert set(types) <= set(docs_of(cls))
    bases: list[type] = [base for base in cls.__mro__[1:-1] if "__dataclass_fields__" in vars(base)]
    for base in bases:
        assert types_of(base).items() <= types.items(), base.__name__
    assert cls().method == kind
    files = [path for name in ("family", "heads") for path in (TRAINING / name).glob("*.py")]
    code = "".join(path.read_text() for path in [*files, *TRAINING.parent.glob("methods/*/train.py")])
    read = set(re.findall(r"\b(?:options|self)\.(\w+)", code)) | set(re.findall(r'getattr\(options, "(\w+)"', code))
    read |= set(inspect.signature(registry.heads()[kind].net).parameters) | set(types_of(RunOptions))
    assert set(types) <= read, "an option without effect"


def test_an_option_of_other_kinds_is_reported_and_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    recipe, lines = recipes.RECIPES["chat-heads"], list[str]()
    given = {"method": "medusa", "blocks": "3", "ttt": "2", "exit_layer": None}
    assert recipe.unused_options(given) == ["ttt"]
    options = recipe.parse(given)
    assert (options.method, options.blocks, hasattr(options, "ttt")) == ("medusa", 3, False)
    fixed = dataclasses.replace(recipe, run=lambda options, report: {})
    monkeypatch.setitem(recipes.RECIPES, "chat-heads", fixed)
    recipes.run("chat-heads", given | {"checkpoint": ""}, lines.append)
    assert lines == ["chat-heads: medusa does not use ttt"]
    with pytest.raises(ValueError, match="has no option 'bloks'"):
        recipe.parse({"method": "medusa", "bloks": 3})
    with pytest.raises(UnknownNameError, match="no head 'medusae'"):
        recipe.parse({"method": "medusae"})
    with pytest.raises(ParameterError, match="Only eagle heads, not medusa heads, can be averaged"):
        recipe.parse({"method": "medusa", "average": "0.5"})


def test_no_kind_has_the_options_of_another(monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(dataclasses.fields(options_class("medusa"))) < 30
    assert not hasattr(options_class("medusa"), "ttt")
    assert not hasattr(options_class("kangaroo"), "ffn")
    union = set(types_of(recipes.RECIPES["chat-heads"].options))
    assert union == {name for kind in chat_head_kinds() for name in types_of(options_class(kind))}


def test_options_that_earlier_versions_recorded_at_their_defaults_count_as_unchanged() -> None:
    assert options_class("clover")().earlier_defaults() == {"loss": "", "blocks": "4"}
    assert options_class("m2r2")().earlier_defaults() == {
        "matrix_rate": "0.02", "loss": "", "exit_layer": "8", "rank": "16",
    }  # fmt: skip
    assert options_class("medusa")().earlier_defaults() == {}


def test_the_kind_of_head_is_part_of_the_recorded_options() -> None:
    assert changed_options(options_class("medusa")(blocks=2, out=Path("x"))) == {"method": "medusa", "blocks": "2"}
    assert "method" not in changed_options(RunOptions(steps=3))
    assert changed_options(ChatHeadOptions())["method"] == "eagle"
