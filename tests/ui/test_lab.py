"""The Lab tab: access, checks of values from the browser, and the page with ended runs."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ui.conftest import PageOpener, free_port, serve
from ui.fake_client import FakeWorkbench
from ui.test_pages import in_browser, serious

from workbench.core.errors import MethodUnavailableError, UnknownNameError, WorkbenchError
from workbench.service.lab.runs import LabRun
from workbench.service.lab.supervisor import Lab
from workbench.trace.curves import CurveWriter
from workbench.ui.lab import NOT_HERE, NOT_YOURS, LabView
from workbench.ui.recorded_training import describe_training
from workbench.ui.saved_runs import SavedRunsView

RUNS = ("20261124-180000-0a1b2c3d", "20261124-170000-0a1b4e5f")


def seed(folder: Path) -> None:
    """Write two ended runs: one finished, one killed."""
    for n, run in enumerate(RUNS):
        place = folder / "runs" / run
        (place / "synthetic-target-eagle-3").mkdir(parents=True)
        (place / "synthetic-target-eagle-3" / "config.json").write_text("{}")
        said = {"head": "eagle-3", "target": "synthetic-target", "options": {"minutes": 2.5, "answer_tokens": 25000}}
        (place / "run.json").write_text(json.dumps(said | {"created": "2026-11-24T18:00:00+00:00", "data": "x"}))
        (place / "log.txt").write_text("eagle-3: 3 of 4, training\n")
        if not n:
            (place / "result.json").write_text(json.dumps({"result": {"steps": 60}}))
        writer = CurveWriter(place)
        for step in range(1, 61):
            losses = {f"loss/step {i}": 8 * 0.95**step + i / 4 for i in (1, 2, 3)}
            writer.add(step, losses | {"seconds/training": 2.5 * step})
            if step % 6 == 0:
                grown = 1 - 0.95**step
                writer.add(step, {f"teacher-forced/position {i}": grown * (0.85 - 0.05 * i) for i in (1, 2, 3)})
                policy = {f"on-policy/position {i}": grown * (0.8 - 0.12 * i) for i in range(1, 6)}
                policy |= {"on-policy tested/position 1": 90.0, "on-policy/tau": 1 + (1.4 - 0.3 * n) * grown}
                writer.add(step, policy)
        writer.close()


@pytest.fixture
def view(tmp_path: Path) -> LabView:
    seed(tmp_path)
    return LabView(FakeWorkbench(pace=0.0), SavedRunsView(True), Lab(tmp_path))  # type: ignore[arg-type]


def test_the_lab_is_disabled_with_a_reason_on_public_servers_and_for_other_visitors(
    view: LabView, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert view.offer({})["barred"] == ""
    public = LabView(view.client, SavedRunsView(False), Lab())
    assert public.offer({})["barred"] == NOT_HERE
    monkeypatch.setattr("workbench.ui.saved_runs.is_user", lambda: False)
    assert view.offer({})["barred"] == NOT_YOURS
    for off in (public, view):
        for call in off.server_functions()[2:]:
            with pytest.raises(MethodUnavailableError):
                call({"id": RUNS[0], "head": "eagle-3", "target": "synthetic-target", "options": {}})


def test_runs_are_listed_and_the_open_one_has_its_curves(view: LabView) -> None:
    said = view.runs({"opened": RUNS[1], "compared": [RUNS[0], "../x", 3]})
    assert [(run["id"], run["state"], run["step"]) for run in said["runs"]] == [
        (RUNS[0], "done", 60),
        (RUNS[1], "killed", 60),
    ]
    assert said["opened"]["trouble"]["remedy"].startswith("Resume")
    assert said["opened"]["curves"]["on-policy/tau"][-1][0] == 60
    assert set(said["compared"]) == {RUNS[0]}
    json.dumps(said)  # plain data


@pytest.mark.parametrize("name", ["../../etc/passwd", "/etc", RUNS[0] + "/.."])
def test_paths_from_the_browser_are_refused(view: LabView, name: str) -> None:
    assert view.runs({"opened": name})["opened"] is None
    for call in (view.stop_training, view.resume, view.promote, view.forget):
        with pytest.raises(UnknownNameError):
            call({"id": name})
    with pytest.raises(UnknownNameError):
        view.train({"head": "eagle-3", "target": name, "options": {}})
    with pytest.raises(UnknownNameError):
        view.train({"head": "eagle-3", "target": "synthetic-target", "options": {"run": name}})


@pytest.fixture
def lab_app(tmp_path: Path) -> Iterator[str]:
    seed(tmp_path / "lab")
    port = free_port()
    command = [sys.executable, "tests/ui/serve_fake.py", str(port), "0.05"]
    yield from serve(command, port, tmp_path / "log", WORKBENCH_LAB=str(tmp_path / "lab"))


def shot(page: Any, name: str) -> None:
    """Save a screenshot for manual inspection in pytest's temporary folder."""
    page.screenshot(path=name, full_page=True)


@pytest.mark.smoke
@in_browser
def test_runs_are_opened_compared_and_read_as_tables(lab_app: str, open_page: PageOpener, tmp_path: Path) -> None:
    ready = "#wb-lab .wb[data-ready=true]"
    for width, scheme in ((1440, "light"), (390, "dark")):
        page = open_page(
            f"{lab_app}/?tab=lab", ready=ready, viewport={"width": width, "height": 1000}, color_scheme=scheme
        )
        page.wait_for_selector("#wb-lab .wb-card-beside .wb-seriesline[stroke-dasharray='6 4'][d^=M]")
        page.locator("#wb-lab .wb-parting").filter(has_text="are accepted at position 1 (90 rounds)").wait_for()
        assert page.locator("#wb-lab .wb-card-byPosition .wb-seriesline[d*=L]").count() == 5
        box = page.locator(f"#wb-lab [data-run='{RUNS[1]}'] input")
        box.focus()
        page.keyboard.press("Space")
        page.locator("#wb-lab .wb-card-taus .wb-seriesmark[d*=z] >> nth=3").wait_for()
        shot(page, str(tmp_path / f"lab-{width}.png"))
        page.click("#wb-lab [aria-label='Loss: show as a table']")
        page.locator("#wb-lab .wb-card-losses tbody tr >> nth=59").wait_for()
        page.click(f"#wb-lab [data-run='{RUNS[1]}'] button")
        page.locator("#wb-lab .wb-alert").filter(has_text="killed after step 60").wait_for()
        assert page.locator("#wb-lab .wb-deeds button:has-text('Resume')").is_enabled()
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert serious(page) == []


def test_the_recorded_training_is_real_and_complete(view: LabView, monkeypatch: pytest.MonkeyPatch) -> None:
    public = LabView(view.client, SavedRunsView(False), Lab())
    found = public.example({})
    assert found == view.example({})
    assert (found["head"], found["target"], found["state"]) == ("eagle-3", "text-target", "done")
    assert found["hardware"]
    assert "folder" not in found
    assert {"on-policy/tau", "on-policy/speed-up", "loss/step 1"} <= set(found["curves"])
    tau, losses = found["curves"]["on-policy/tau"], found["curves"]["loss/step 1"]
    assert found["tau"] == pytest.approx(tau[-1][1], rel=1e-4)
    assert [step for step, _ in losses] == list(range(1, found["step"] + 1))
    assert losses[-1][1] < losses[0][1]
    monkeypatch.setenv("WORKBENCH_RECORDED", "/nowhere")
    assert public.example({}) == {}


def test_only_a_finished_training_is_recorded(tmp_path: Path) -> None:
    seed(tmp_path)
    finished, killed = (LabRun(tmp_path / "runs" / run) for run in RUNS)
    found = json.loads(json.dumps(describe_training(finished)))
    assert found["curves"]["on-policy/tau"][-1][0] == 60
    assert str(tmp_path) not in json.dumps(found)
    with pytest.raises(WorkbenchError, match="is killed"):
        describe_training(killed)


@in_browser
def test_the_lab_opens_on_a_recorded_training(fake_app: str, open_page: PageOpener) -> None:
    page = open_page(f"{fake_app}/?tab=lab", ready="#wb-lab .wb[data-ready=true]")
    page.wait_for_selector("#wb-lab .wb-card-taus .wb-seriesline[d^=M]")
    assert "RECORDED" in page.inner_text("#wb-lab .wb-head")
    assert "RECORDED training: eagle-3 for text-target" in page.inner_text("#wb-lab .wb-banner.is-note")
    assert not page.locator("#wb-lab .wb-deeds").is_visible(), "a recorded run cannot be stopped or promoted"
