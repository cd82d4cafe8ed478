"""Missing heads: app and engine give the same message, and the command it names exists."""

from __future__ import annotations

import model_helpers
import pytest

from workbench.methods import method_info, registry
from workbench.models.untrained_heads import no_heads
from workbench.service.choices import static_reasons


@pytest.mark.parametrize(
    ("name", "instead", "train"),
    [
        ("kangaroo", "smollm2", " Train a head: workbench train kangaroo --target text-target."),
        ("flash", "vision-target", ""),  # its heads are for targets that read images, and take more than one command
    ],
)
def test_the_message_names_a_target_with_such_heads_and_the_command(name: str, instead: str, train: str) -> None:
    said = (
        f"There are no {name} heads trained for text-target. Such heads exist for {instead}: choose --target {instead}."
    )
    said += train
    needs = next(method.needs for method in method_info.methods() if method.name == name)
    assert static_reasons("text-target", None)(needs) == said
    models = model_helpers.make_small_models(6)
    models.target_name = "text-target"
    assert registry.get(name).with_params().missing_requirements(models) == said


def test_a_target_without_a_name_gets_no_command() -> None:
    said = (
        "There are no mtp heads trained for this target. Such heads exist for text-target: choose --target text-target."
    )
    assert no_heads("mtp", "") == said
