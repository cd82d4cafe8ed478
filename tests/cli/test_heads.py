"""`workbench heads`, and `--head` of the commands that draft."""

from __future__ import annotations

import json
from pathlib import Path

import layouts
import pytest
from layouts import SMALL, SMALL3, write

from workbench.cli.main import main
from workbench.cli.options import refuse_unused_heads
from workbench.engine import load_models
from workbench.methods import registry
from workbench.models.bundle import bundled_folder
from workbench.models.checkpoints import user_heads

pytestmark = pytest.mark.usefixtures("no_user_heads")


def test_inspect_describes_a_head_and_fails_if_it_does_not_fit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = str(write(tmp_path / "heads", layouts.MEDUSA, layouts.medusa(288, 4096)))
    assert main(["heads", "inspect", folder, "--target", "text-target", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["layout"] == "Medusa (FasterDecoding)"
    assert said["drafts_with"] == ["medusa", "medusa-typical"]
    assert all(line["fits"] is not False for line in said["lines"])
    assert main(["heads", "inspect", folder, "--target", "vision-target"]) == 1
    out = capsys.readouterr().out
    assert "✕ hidden size: it is for a target of hidden size 288 (lmsys/vicuna-7b-v1.3); this target's is 256" in out
    assert main(["heads", "inspect", str(write(tmp_path / "three", SMALL3, layouts.eagle3(SMALL3)))]) == 0
    assert "no method of the workbench" in capsys.readouterr().out or "eagle-3" in registry.heads()
    assert main(["heads", "inspect", str(tmp_path)]) == 1
    assert "contains no *.safetensors" in capsys.readouterr().err


def test_generate_drafts_with_a_head_and_refuses_one_that_does_not_fit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = str(write(tmp_path / "wrong", SMALL, layouts.eagle(SMALL, embed=False)))
    words = ["generate", "Once upon a time", "--max-new-tokens", "8", "--json", "--drafter", "none"]
    assert main([*words, "--head", wrong, "--method", "eagle-2"]) == 2
    error = json.loads(capsys.readouterr().out)["error"]
    assert error["option"] == "--head"
    assert "hidden size 16" in error["message"]
    config = SMALL | {"hidden_size": 288, "vocab_size": 4096, "num_attention_heads": 6}
    right = str(write(tmp_path / "right", config, layouts.eagle(config, embed=False)))
    assert main([*words, "--head", right, "--method", "eagle-2"]) == 0
    drafted = json.loads(capsys.readouterr().out)
    assert main([*words, "--head", right, "--method", "prompt-lookup"]) == 2
    error = json.loads(capsys.readouterr().out)["error"]
    assert error["option"] == "--head"
    assert error["message"] == f"{right} has eagle heads, and prompt-lookup does not draft with such heads."
    assert error["remedy"].startswith("Use a method that drafts with these heads: eagle, eagle-2")
    compare = ["compare", "Once upon a time", "--lane", "prompt-lookup:depth=3", "--head", right, "--drafter", "none"]
    assert main(compare) == 2
    assert "prompt-lookup does not draft with such heads" in capsys.readouterr().err
    refuse_unused_heads([str(bundled_folder() / "text-judge")], ["draft-model"])  # for verifier=judge
    refuse_unused_heads([right], ["prompt-lookup", "eagle"])
    user_heads.use_heads()
    assert main([*words, "--method", "autoregressive"]) == 0
    assert drafted["text"] == json.loads(capsys.readouterr().out)["text"]
    assert drafted["method"] == "eagle-2"


def test_heads_from_the_environment_are_used_by_every_frontend(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from workbench.service.choices import static_reasons

    config = SMALL | {"hidden_size": 288, "vocab_size": 4096, "num_attention_heads": 6}
    folder = write(tmp_path / "mine", config, layouts.eagle(config, embed=False))
    needs = registry.get("eagle-2").needs
    assert load_models("text-target", None, "cpu").heads["eagle"].name == "text-target-eagle"
    monkeypatch.setenv(user_heads.ENV, str(folder))
    assert static_reasons("text-target", None)(needs) == ""
    assert load_models("text-target", None, "cpu").heads["eagle"].name == "mine"
    assert "hidden size 288" in static_reasons("vision-target", None)(needs), (
        "a target that the head does not fit gets the reason"
    )


def test_inspect_takes_the_names_that_models_lists(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "--json"]) == 0
    assert '"text-target-eagle"' in capsys.readouterr().out
    assert main(["heads", "inspect", "text-target-eagle"]) == 0
    assert "target weights" in capsys.readouterr().out
