"""The list of `python tests/mutate.py` does not rot: each break still fits, and its tests exist."""

from __future__ import annotations

import dataclasses
import subprocess
import sys

import mutate
import pytest
from mutations import MUTATIONS, ROOT, Mutation
from views.test_modules import needs_node


def test_names_and_breaks_are_told_apart() -> None:
    assert len({mutation.name for mutation in MUTATIONS}) == len(MUTATIONS) >= 27
    assert len({(mutation.file, mutation.old, mutation.new) for mutation in MUTATIONS}) == len(MUTATIONS)


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_a_mutation_still_applies_and_its_tests_exist(mutation: Mutation) -> None:
    assert mutation.count() == 1, f"{mutation.file} holds {mutation.old!r} {mutation.count()} times"
    assert mutation.new != mutation.old
    assert mutation.why
    assert mutation.tests
    assert len({test.endswith(".js") for test in mutation.tests}) == 1, "one runner for all of its tests"
    assert not mutation.lost()


@pytest.mark.parametrize(
    "rot",
    [
        {"old": "no file holds these words"},
        {"file": "workbench/no_such_file.py"},
        {"tests": ("tests/test_mutations.py",)},
        {"tests": ("tests/test_mutations.py::test_of_nothing",)},
        {"tests": ("workbench/views/js/no_such_file.test.js",)},
    ],
    ids=["text", "file", "whole-file", "test", "node"],
)
def test_a_check_runs_no_test_and_names_what_has_rotted(
    rot: dict[str, object], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = MUTATIONS[1]
    rotten = dataclasses.replace(whole, name="rotten", **rot)
    monkeypatch.setattr(mutate, "started", lambda *_: pytest.fail("a test was run"))
    for there, words, code in (([whole], "1 of 1 apply", 0), ([whole, rotten], "1 of 2 apply", 2)):
        monkeypatch.setattr(mutate, "MUTATIONS", there)
        monkeypatch.setattr(sys, "argv", ["mutate.py", "--check"])
        assert mutate.main() == code
        said = capsys.readouterr().out
        assert words in said
        assert (f"{mutate.GONE}" in said, "rotten" in said) == (code == 2, code == 2)


@needs_node
@pytest.mark.slow
@pytest.mark.processes
def test_a_mutation_is_tried_in_a_copy_and_its_verdict_is_the_exit_code() -> None:
    tried = next(mutation for mutation in MUTATIONS if mutation.name == "link-loses-the-query")
    command = [sys.executable, str(ROOT / "tests" / "mutate.py"), "--only", tried.name]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 of 1 killed" in done.stdout
    assert tried.count() == 1, "the working tree is as it was"
    unknown = subprocess.run([*command, "--only", "nothing-like-it"], capture_output=True, timeout=120, check=False)
    assert unknown.returncode == 2
