"""The lab: a training run is started, killed, resumed at its step and stopped, one at a time; its head is promoted."""

from __future__ import annotations

import errno
import json
import os
import shutil
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import model_helpers
import pytest
import torch

from workbench.core.errors import CapacityError, ModelError, ParameterError, UnknownNameError, WorkbenchError
from workbench.models.checkpoints import user_heads
from workbench.models.fingerprint import WEIGHTS, fingerprint
from workbench.service import Backend
from workbench.service.lab import processes, promotion, supervisor
from workbench.service.lab.runs import DAMAGED, DONE, FAILED, KILLED, RUNNING, STOPPED, LabRun
from workbench.service.lab.supervisor import Lab
from workbench.service.lab.training_requests import LOSSES, OWN, Budget, TrainingRequest, heads, methods_of
from workbench.trace.curves import LOSS, TEACHER_FORCED, CurveWriter
from workbench.training.heads.artefact import save_net
from workbench.training.heads.losses import WeightedLoss

from . import fake_training
from .conftest import PROMPT, rounds, wait_until

TOY = [sys.executable, str(Path(fake_training.__file__))]


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lab]:
    monkeypatch.setattr(supervisor, "NICE", 1)  # at 10, a training run waits for minutes while other tests compute
    made = Lab(tmp_path / "lab", TOY)
    yield made
    made.close()


def make_request(steps: int = 200, **options: Any) -> TrainingRequest:
    return TrainingRequest("eagle-3", "text-target", Budget(steps=steps, **options))


def step_of(run: LabRun) -> int:
    return run.summary()["step"]


@pytest.mark.processes
def test_a_killed_training_run_resumes_from_its_last_checkpoint(lab: Lab) -> None:
    run = lab.start(make_request())
    wait_until(lambda: step_of(run) >= 2 * fake_training.EVERY + 1)
    process = run.process
    assert process is not None
    assert process.nice() >= supervisor.NICE
    if (
        session := Path(f"/proc/{process.pid}/autogroup")
    ).is_file():  # an autogroup of its own, whose priority counts first
        assert session.read_text().split()[-1] == str(supervisor.NICE)
    assert run.memory() > 1 << 20
    with pytest.raises(CapacityError, match="eagle-3 for text-target") as refused:
        lab.start(make_request())
    assert "stop it" in refused.value.remedy
    process.kill()
    wait_until(lambda: run.state == KILLED)
    killed_at, saved = step_of(run), int((run.folder / "heads-eagle-3.pt").read_text())
    assert killed_at - saved < fake_training.EVERY
    trouble = run.summary()["trouble"]
    assert f"step {killed_at}" in trouble["message"]
    assert "last checkpoint" in trouble["remedy"]
    again = Lab(lab.folder, TOY)  # the app was restarted
    assert [found.id for found in again.runs()] == [run.id]
    again.resume(run.id)
    try:
        wait_until(lambda: step_of(run) > killed_at + 1)
        steps = [step for step, _ in run.curves()["loss/x"]]
        assert steps == list(range(1, steps[-1] + 1)), (
            "points after the checkpoint are dropped, and no step occurs twice"
        )
        again.stop(run.id)
        wait_until(lambda: run.state == STOPPED)
        assert int((run.folder / "heads-eagle-3.pt").read_text()) == step_of(run), "a stop saves the current step"
    finally:
        again.close()


@pytest.mark.processes
def test_a_training_run_finishes_or_reports_its_error_and_another_can_start(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = lab.start(make_request(2))
    wait_until(lambda: run.state != RUNNING)
    assert (run.state, step_of(run), run.figures) == (DONE, 2, {"steps": 2})
    with pytest.raises(WorkbenchError, match="is finished"):
        lab.resume(run.id)
    failed = lab.start(make_request(2, loss="ce_hard:1"))
    wait_until(lambda: failed.state != RUNNING)
    assert failed.state == FAILED
    assert failed.summary()["trouble"] == {"message": "There is no chat format.", "remedy": "Take another target."}
    monkeypatch.setattr(supervisor, "GRACE_S", 0.3)
    deaf = lab.start(make_request(2, loss="reverse_kl:1"))
    lab.stop(deaf.id)
    wait_until(lambda: deaf.state == STOPPED)
    lab.delete(run.id)
    assert {found.id for found in lab.runs()} == {failed.id, deaf.id}


@pytest.mark.processes
def test_closing_the_app_ends_its_training_run_which_can_be_resumed(lab: Lab) -> None:
    run = lab.start(make_request())
    wait_until(lambda: step_of(run) > 0)
    lab.close()
    assert run.state == STOPPED


def test_a_killed_run_reports_its_last_checkpoint(lab: Lab) -> None:
    run = LabRun(lab.folder / "runs" / "20261124-180000-0a1b2c3d")
    run.folder.mkdir(parents=True)
    (run.folder / "run.json").write_text(json.dumps({"head": "medusa", "target": "t", "options": {}, "created": ""}))
    assert "starts again" in run.summary()["trouble"]["remedy"]
    (run.folder / "heads-medusa.pt").write_bytes(b"x")
    assert "continues from its last checkpoint" in run.summary()["trouble"]["remedy"]
    (run.folder / "run.json").write_text("")
    with pytest.raises(WorkbenchError, match="cannot be read"):
        run.note(stopped=True)
    assert not (run.folder / "run.json").read_text(), "an unreadable file is not overwritten"


def test_progress_follows_from_the_log_and_the_elapsed_time(lab: Lab) -> None:
    run = LabRun(lab.folder / "runs" / "20261124-180000-0a1b2c3d")
    run.folder.mkdir(parents=True)
    options = {"minutes": 2.5, "answer_tokens": 25_000}
    said = {"head": "eagle-3", "target": "t", "options": options, "created": ""}
    (run.folder / "run.json").write_text(json.dumps(said))
    (run.folder / "log.txt").write_text("eagle-3 for t: 1 of 4, x\nanswers: 20,000 tokens · 100/s\n")
    at = run.progress({})
    assert (at["stage"], at["done"], at["left_s"]) == (1, 0.8, 50.0)
    (run.folder / "log.txt").write_text("eagle-3: 3 of 4, training\n")
    at = run.progress({"seconds/training": [(4, 60.0), (5, 75.0)]})
    assert (at["stage"], at["done"], at["left_s"]) == (3, 0.5, 75.0)
    run.note(options=options | {"steps": 20})
    at = run.progress({"seconds/training": [(5, 75.0)]})
    assert (at["done"], at["left_s"]) == (0.25, 225.0)


def test_the_rate_of_answers_is_the_newest_one(lab: Lab) -> None:
    for n, (name, seconds) in enumerate((("b", 1.0), ("a", 2.0), ("c", 4.0))):
        place = lab.folder / "answers" / name / "text-target" / "answers" / "rate.json"
        place.parent.mkdir(parents=True)
        place.write_text(json.dumps({"tokens": 100, "seconds": seconds}))
        os.utime(place, (1000 + n % 2, 1000 + n % 2))
    assert lab.rate("text-target") == 50.0


def test_runs_share_answers_only_with_equal_settings() -> None:
    names = {TrainingRequest("eagle-3", "t", Budget(**more)).data for more in (
        {}, {"seed": 1}, {"answer_tokens": 300}, {"max_new_tokens": 9}, {"per_task": 11})}  # fmt: skip
    assert len(names) == 5
    assert TrainingRequest("medusa", "t", Budget(minutes=9.0, loss="ce_hard:1")).data in names


@pytest.mark.processes
def test_a_resumed_run_that_is_killed_is_reported_as_killed_and_a_training_run_cannot_be_deleted(lab: Lab) -> None:
    run = lab.start(make_request())
    wait_until(lambda: step_of(run) >= 1)
    with pytest.raises(CapacityError, match="still in progress"):
        lab.delete(run.id)
    assert (run.folder / "run.json").is_file()
    lab.stop(run.id)
    wait_until(lambda: run.state == STOPPED)
    lab.resume(run.id)
    wait_until(lambda: run.state == RUNNING)
    process = run.process
    assert process is not None
    process.kill()
    wait_until(lambda: run.state == KILLED)


def test_a_reused_process_id_and_a_changed_clock_are_detected(lab: Lab) -> None:
    folder = lab.folder / "runs" / "20261124-180000-0a1b2c3d"
    folder.mkdir(parents=True)
    mine = processes.identity(os.getpid())
    stepped = {"born": mine["born"] - 100}  # the same process after the clock was set
    said: dict[str, Any] = {"head": "eagle-3", "target": "t", "options": {}, "created": ""}
    states = {KILLED: [{"pid": os.getpid()} | stepped], RUNNING: [{"pid": os.getpid(), "born": mine["born"]}]}
    if "ticks" in mine:
        states[RUNNING] += [mine, mine | stepped]
        states[KILLED] += [mine | {"ticks": mine["ticks"] - 1}, mine | {"boot": "an earlier one"}]
    for state, notes in states.items():
        for note in notes:
            (folder / "run.json").write_text(json.dumps(said | note))
            assert lab.run(folder.name).state == state


@pytest.mark.processes
def test_a_training_run_without_saved_process_id_is_found_by_its_lock(lab: Lab) -> None:
    """After a kill of the app before it saved the id: no second training run can start, and this one can be stopped."""
    run = lab.start(make_request())
    noted = json.loads((run.folder / "run.json").read_text())
    (run.folder / "run.json").write_text(
        json.dumps({k: v for k, v in noted.items() if k not in ("pid", "born", "ticks")})
    )
    other = Lab(lab.folder, TOY)
    assert other.run(run.id).state == RUNNING
    with pytest.raises(CapacityError, match="training run is in progress"):
        other.start(make_request())
    with pytest.raises(CapacityError, match="Stop the training run first"):
        other.delete(run.id)
    other.stop(run.id)
    wait_until(lambda: run.state == STOPPED)
    assert run.process is None


@pytest.mark.processes
def test_a_training_run_whose_process_id_cannot_be_saved_is_ended(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(LabRun, "note", full)
    with pytest.raises(WorkbenchError, match="was stopped, because"):
        lab.start(make_request())
    monkeypatch.undo()
    (run,) = lab.runs()
    assert not run.is_training
    assert run.state == KILLED


@pytest.mark.parametrize("name", ["../../etc", "20261124-180000-0a1b2c3d", None, 3, "20261124-180000-0a1b2c3d/.."])
def test_an_invalid_run_id_never_becomes_a_path(lab: Lab, name: Any) -> None:
    with pytest.raises(UnknownNameError, match="has no training run of this name"):
        lab.run(name)


def test_a_full_disk_is_reported_before_the_start(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor.shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10, 9, 1 << 20))  # type: ignore[attr-defined]
    with pytest.raises(CapacityError, match="1 MB are free") as refused:
        lab.start(make_request())
    assert supervisor.ENV in refused.value.remedy
    assert not lab.runs()


def test_requests_are_checked_and_errors_name_the_choices() -> None:
    known = ["text-target"]
    assert next(iter(heads())) == "eagle-3"
    assert {"hydra", "eagle", "eagle-3"} <= set(heads())
    assert methods_of("eagle-3") == ["eagle-3"]
    made = TrainingRequest.of("eagle-3", "text-target", {"minutes": "1.5", "loss": OWN}, known)
    assert made.settings(2)["minutes"] == 1.5
    assert not {"loss", "steps"} & set(made.settings()), "defaults of the recipe are not passed"
    for head, target, options, error in (
        ("eagle-9", "text-target", {}, UnknownNameError),
        ("eagle-3", "../x", {}, UnknownNameError),
        ("eagle-3", "text-target", {"out": "/tmp/x"}, UnknownNameError),
        ("eagle-3", "text-target", {"minutes": 0}, ParameterError),
        ("eagle-3", "text-target", {"loss": "ce_soft:1 --set out=/"}, ParameterError),
    ):
        with pytest.raises(error):
            TrainingRequest.of(head, target, options, known)
    for loss in LOSSES:
        assert loss == OWN or WeightedLoss.parse(loss).terms


class Place(NamedTuple):
    """A backend with a tiny target and its eagle-3 head, and a lab run with another such head."""

    backend: Backend
    run: LabRun
    target: str


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lab: Lab) -> Iterator[Place]:
    target = model_helpers.save_random_llama(tmp_path / "stranger")
    monkeypatch.setattr(user_heads, "_chosen", [])
    backend = Backend(str(target), None, dtype="float64", device="cpu")
    models = backend.load()
    kind = model_helpers.registry.heads()["eagle-3"].net
    folder = lab.folder / "runs" / "20261124-180000-0a1b2c3d"
    for seed, out in enumerate((tmp_path / "first", folder / "stranger-eagle-3")):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            net = kind(32, 4, 32, (1, 2, 3), 64)
            net.d2t.copy_(torch.arange(64) * 3)
        save_net(net, out, models.target_name, **{WEIGHTS: fingerprint(models.target.model)})
    user_heads.use_heads(str(tmp_path / "first"))
    backend._pool.find_heads()
    said = {"head": "eagle-3", "target": models.target_name, "options": {}, "created": ""}
    (folder / "run.json").write_text(json.dumps(said))
    curves = CurveWriter(folder)
    curves.add(5, {f"{TEACHER_FORCED}/position 1": 0.5})
    curves.add(7, {f"{LOSS}/step 1": 2.0})
    curves.close()
    yield Place(backend, LabRun(folder), models.target_name)
    backend.close()


def head_of(backend: Backend) -> str:
    """Return the name of eagle-3's head in the list of methods; methods without heads must not have one."""
    head_by_method = {method["name"]: method["head"] for method in backend.methods()}
    assert head_by_method["draft-model"] == ""
    return head_by_method["eagle-3"]


def test_a_promoted_head_drafts_in_a_run_in_progress_and_changes_no_token(lab: Lab, place: Place) -> None:
    backend, lab_run, _ = place
    whole = backend.start(PROMPT, "autoregressive", max_new_tokens=24).wait(60).token_ids
    running = backend.start(PROMPT, "eagle-3", max_new_tokens=24, paused=True)
    plain = backend.start(PROMPT, "autoregressive", max_new_tokens=24, paused=True)
    for run in (running, plain):
        run.step()
        wait_until(lambda run=run: rounds(run) == 1 and run.state == "paused")
    assert head_of(backend) == "first"
    found = lab.promote(lab_run.id, backend.prefer_heads)
    assert found["switched"] == 2
    assert (lab_run.summary()["step"], found["step"]) == (7, 5), "two steps were trained after the checkpoint"
    assert head_of(backend) == Path(found["folder"]).name
    assert Path(found["folder"]).name.startswith("stranger-eagle-3-0a1b2c3d-step-5-")
    for run in (running, plain):
        run.resume()
        trace = run.wait(60)
        assert trace.token_ids == whole
        assert trace.rounds[-1].method == "eagle-3"
        assert len(trace.rounds[1].nodes) > 0
    changes = [c for r in running.trace.rounds for c in r.changes]
    assert [(c.name, c.before, c.after) for c in changes] == [("head", "first", Path(found["folder"]).name)]
    assert next(user_heads.own_heads()).folder == Path(found["folder"]), "the folder has the layout that --head expects"
    assert lab_run.summary()["promoted"]
    shutil.rmtree(lab_run.folder / "stranger-eagle-3")  # the promoted copy does not depend on the run's folder
    assert backend.start(PROMPT, "eagle-3", max_new_tokens=24).wait(60).token_ids == whole
    lab.promote(lab_run.id, backend.prefer_heads, on=False)
    assert next(user_heads.own_heads()).name == "first"
    assert not lab_run.summary()["promoted"]


def another(place: Place, name: str, target: str = "") -> LabRun:
    """Return another run with a head of the same kind."""
    run = LabRun(place.run.folder.with_name(name))
    shutil.copytree(place.run.folder, run.folder)
    if target:
        run.note(target=target)
    return run


def test_the_head_marked_as_promoted_is_the_one_that_drafts(lab: Lab, place: Place) -> None:
    """One head of each kind is promoted per target; demoting it does not restore the one it replaced."""
    backend, first, _ = place
    second, elsewhere = another(place, "20261124-180000-0a1b2c3e"), another(place, "20261124-180000-0a1b2c3f", "other")
    takes = backend.prefer_heads
    lab.promote(first.id, takes)
    (elsewhere.folder / "promoted.json").write_text('{"folder": "/of/another/target"}')
    found = lab.promote(second.id, takes)
    assert [run.summary()["promoted"] for run in (first, second, elsewhere)] == [False, True, True]
    assert [path.name for path in (lab.folder / "heads").iterdir()] == [Path(found["folder"]).name], "no other stays"
    assert head_of(backend) == Path(found["folder"]).name
    lab.promote(second.id, takes, on=False)
    assert head_of(backend) == "first", "the earlier promoted head is not restored"
    lab.promote(first.id, takes)
    lab.delete(first.id, takes)
    assert head_of(backend) == "first", "the head of a deleted run no longer drafts"
    assert not list((lab.folder / "heads").iterdir())


def test_a_promotion_and_a_demotion_do_not_overlap(lab: Lab, place: Place) -> None:
    """Otherwise the saved note could name a deleted head. This includes two apps that share a folder."""
    events: list[str] = []

    def takes(folder: str, on: bool) -> int:
        events.append(f"{on} begins")
        time.sleep(0.1)
        events.append(f"{on} ends")
        return 0

    lab.promote(place.run.id, takes)
    apps = [Lab(lab.folder, TOY), Lab(lab.folder, TOY)]
    threads = [
        threading.Thread(target=app.promote, args=(place.run.id, takes, on))
        for app, on in zip(apps, (True, False), strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert all(end == begin.replace("begins", "ends") for begin, end in zip(events[::2], events[1::2], strict=True))
    promoted = promotion.promoted_folder(place.run)
    assert not promoted or Path(promoted).is_dir()


def test_a_missing_head_does_not_prevent_promotion_or_demotion(lab: Lab, place: Place) -> None:
    backend, first, _ = place
    second, takes = another(place, "20261124-180000-0a1b2c3e"), backend.prefer_heads
    shutil.rmtree(lab.promote(first.id, takes)["folder"])
    assert head_of(backend), "methods can still be listed"
    assert lab.promote(second.id, takes)["folder"]
    shutil.rmtree(lab.promote(first.id, takes)["folder"])
    lab.promote(first.id, takes, on=False)
    assert not first.summary()["promoted"]
    for note in ("", "{}", "[]", '{"folder": 3}', "\udcff"):
        (first.folder / "promoted.json").write_text(note, errors="surrogateescape")
        lab.promote(first.id, takes, on=False)
        assert not first.summary()["promoted"]
    assert [found.name for found in user_heads.own_heads()] == ["first"]


def test_a_damaged_copy_does_not_replace_the_current_head(lab: Lab, place: Place) -> None:
    backend, run, _ = place
    folder = Path(lab.promote(run.id, backend.prefer_heads)["folder"])
    head = run.head
    assert head is not None
    (head / "SHA256SUMS").write_bytes(b"\xff\xfe")
    (run.folder / "result.json").write_text('{"result": {}}')
    with pytest.raises(WorkbenchError, match="damaged") as refused:
        lab.promote(run.id, backend.prefer_heads)
    assert refused.value.remedy == "Train a new head; this training run is finished and cannot be resumed.", (
        "a finished run cannot be resumed"
    )
    assert (folder / "model.safetensors").is_file()
    assert head_of(backend) == folder.name
    assert [path.name for path in (lab.folder / "heads").iterdir()] == [folder.name]


@pytest.mark.parametrize("written", ["", "[]", "{}", "[" * 100_000, '{"head": "eagle-3"}', "\udcff"])
def test_an_unreadable_run_is_listed_as_such_and_can_be_deleted(lab: Lab, written: str) -> None:
    good, bad = (lab.folder / "runs" / f"20261124-180000-0a1b2c3{end}" for end in "de")
    for folder in (good, bad):
        folder.mkdir(parents=True)
    said = {"head": "eagle-3", "target": "t", "options": {}, "created": "", "pid": -1, "born": 0}
    (good / "run.json").write_text(json.dumps(said))
    (good / "result.json").write_text("[" * 100_000)
    (good / "log.txt").write_text("x: 9 of 4, y\n")
    (bad / "run.json").write_text(written, errors="surrogateescape")
    details_by_id = {run.id: run.details() for run in lab.runs()}
    assert {name: run["state"] for name, run in details_by_id.items()} == {good.name: KILLED, bad.name: DAMAGED}
    assert "cannot be read" in details_by_id[bad.name]["trouble"]["message"]
    with pytest.raises(WorkbenchError, match="cannot be read"):
        lab.resume(bad.name)
    lab.delete(bad.name)
    assert [run.id for run in lab.runs()] == [good.name]
    linked = bad.with_name("20261124-180000-0a1b2c3f")
    linked.symlink_to(good)
    lab.delete(linked.name)
    assert (good / "run.json").is_file(), "only the link was deleted"


def test_nan_and_infinity_are_left_out_of_curves(lab: Lab) -> None:
    run = LabRun(lab.folder / "runs" / "20261124-180000-0a1b2c3d")
    curves = CurveWriter(run.folder)
    curves.add(1, {"loss/x": float("nan"), "loss/y": float("inf")})
    curves.add(2, {"loss/x": 1.0})
    curves.close()
    assert run.curves() == {"loss/x": [(2, 1.0)]}


def test_a_promoted_head_drafts_again_after_a_restart(
    lab: Lab, place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend, run, _ = place
    folder = lab.promote(run.id, backend.prefer_heads)["folder"]
    monkeypatch.setattr(user_heads, "_chosen", [str(tmp_path / "first")])  # another process has only its start options
    backend._pool.find_heads()
    again = Lab(lab.folder, TOY)
    assert again.restore_promotions(backend.prefer_heads) == [folder]
    assert next(user_heads.own_heads()).folder == Path(folder)
    (Path(folder) / "model.safetensors").unlink()
    monkeypatch.setattr(user_heads, "_chosen", [str(tmp_path / "first")])
    assert again.restore_promotions(backend.prefer_heads) == [], "the promoted head is missing or damaged"
    assert not run.summary()["promoted"], "the run is no longer marked as promoted"
    assert next(user_heads.own_heads()).name == "first"


def test_a_broken_checkpoint_is_not_promoted_and_nothing_changes(lab: Lab, place: Place) -> None:
    backend, run, _ = place
    head = run.head
    assert head is not None
    weights = head / "model.safetensors"
    good = weights.read_bytes()
    weights.write_bytes(good[:-8])
    with pytest.raises(WorkbenchError, match="damaged") as refused:
        lab.promote(run.id, backend.prefer_heads)
    assert "next checkpoint" in refused.value.remedy
    weights.write_bytes(good)
    config = json.loads((head / "config.json").read_text())
    (head / "config.json").write_text(json.dumps(config | {WEIGHTS: "0" * 8}))
    with pytest.raises(ModelError, match="other weights"):
        lab.promote(run.id, backend.prefer_heads)
    assert [found.name for found in user_heads.own_heads()] == ["first"]
    assert not list((lab.folder / "heads").iterdir())
    (head / "config.json").unlink()
    with pytest.raises(WorkbenchError, match="no checkpoint"):
        lab.promote(run.id, backend.prefer_heads)
