"""The window that explains a run's speed, and the boards, in the page."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from traces import make_hostile_trace
from ui.conftest import PageOpener, wait_until_drawn
from ui.fake_client import FakeWorkbench

from workbench.core.errors import WorkbenchError
from workbench.methods import registry
from workbench.ui.hosting import return_errors
from workbench.ui.session import MOST_OTHERS, Session
from workbench.views import recorded_runs


def in_browser(test: Any) -> Any:
    """Mark a test that needs chromium."""
    return pytest.mark.browser(pytest.mark.slow(test))


def test_the_session_analyses_traces_from_the_browser() -> None:
    session = Session(FakeWorkbench())
    trace, plain = recorded_runs.trace("draft-model").to_wire(), recorded_runs.trace("autoregressive").to_wire()
    found = session.whatif({"trace": trace, "others": [plain]})
    assert found["budget"]["speedup"] > 1
    assert Path(found["plotly"]).name == "plotly.min.js"
    assert session.whatif({"trace": trace})["budget"]["speedup"] is None
    medusa = recorded_runs.trace("medusa").to_wire()
    many = session.whatif({"trace": trace, "others": [medusa] * (MOST_OTHERS + 4)})
    assert len(many["combinations"]) == MOST_OTHERS
    assert session.whatif({"trace": make_hostile_trace().to_wire()})["words"]


def test_the_session_concludes_from_pairs_of_runs_only() -> None:
    session = Session(FakeWorkbench())
    trace, plain = recorded_runs.trace("draft-model").to_wire(), recorded_runs.trace("autoregressive").to_wire()
    asked = {"trace": trace, "others": [plain]}
    assert "one run, which is not conclusive" in session.whatif(asked)["words"][0]
    said = session.whatif(asked | {"pairs": [1.5, 1.52, 1.51, "x", -1, float("nan"), 1e300]})["words"][0]
    assert said.startswith("1.51×: faster on this prompt (1.49–1.54×, n = 3).")


def test_pairs_are_sent_as_they_are_measured_and_stopped_by_their_job_id() -> None:
    async def messages() -> list[dict[str, Any]]:
        session, seen = Session(FakeWorkbench()), []
        asked = {"pairs": True, "channel": "p", "prompt": "Once", "method": "draft-model", "params": {"depth": 3}}
        async for message in session.decode(asked | {"max_new_tokens": 9}):
            seen.append(message)
            if message.get("pairs", {}).get("waiting"):
                session.stop_pairs({"job": message["job"]})
        return seen

    seen = asyncio.run(messages())
    assert {message["channel"] for message in seen} == {"p"}
    pair_updates = [message["pairs"] for message in seen if "pairs" in message]
    assert [len(pairs["ratios"]) for pairs in pair_updates][:4] == [1, 2, 3, 4]
    assert pair_updates[0]["estimate"]["low"] is None
    assert pair_updates[-1]["ended"] == "stopped"


def test_an_invalid_trace_is_reported() -> None:
    session = Session(FakeWorkbench())
    assert "damaged" in return_errors(session.whatif)({"trace": {"header": {}}})["error"]["message"]
    with pytest.raises(WorkbenchError):
        session.whatif({})


def test_the_session_returns_statistics_of_runs_for_researchers(monkeypatch: pytest.MonkeyPatch) -> None:
    from workbench.bench import roofline

    session = Session(FakeWorkbench())
    trace, plain = recorded_runs.trace("draft-model").to_wire(), recorded_runs.trace("autoregressive").to_wire()
    found = session.research({"trace": trace})
    assert (found["drafted"], sum(row["accepted"] for row in found["by_kind"])) == (48, 43)
    assert found["roofline"] == {"reason": "The target of this run is not available in this app."}
    assert session.research({"trace": make_hostile_trace().to_wire()})["by_kind"]
    assert "damaged" in return_errors(session.research)({"trace": {"header": {}}})["error"]["message"]

    rates = roofline.MachineRates("cpu", "float32", 1e10, 8e10)
    monkeypatch.setattr(roofline, "machine_rates", lambda *_: rates)
    monkeypatch.setattr(session, "_targets", lambda: [{"name": "text-target"}])
    here = session.research({"trace": trace, "plain": plain, "live": True})["roofline"]
    assert (here["rates"]["ridge"], here["plain"]["limit"]) == (8.0, "memory")
    assert here["plain"]["rounds"] > 40, "the plain run's passes"
    assert here["plain"]["reached"] > 0
    elsewhere = session.research({"trace": trace, "plain": plain})["roofline"]
    assert elsewhere["plain"]["reached"] is None, "the times of a file may be those of another machine"
    assert "when all runs have ended" in session.research({"trace": trace, "rates": False})["roofline"]["reason"]
    session.client.is_remote = True  # type: ignore[attr-defined]
    assert "remote backend" in session.research({"trace": trace})["roofline"]["reason"]


@in_browser
@pytest.mark.parametrize(("width", "scheme"), [(1440, "light"), (390, "dark")])
def test_statistics_for_researchers(fake_app: str, open_page: PageOpener, width: int, scheme: str) -> None:
    from ui.test_pages import serious

    page = open_page(
        f"{fake_app}/?recorded=draft-model", viewport={"width": width, "height": 1000}, color_scheme=scheme
    )
    section = page.locator(".wb-research")
    page.wait_for_selector(".wb-theorywords:not(:empty)")
    assert not section.evaluate("(e) => e.open"), "folded by default"
    section.locator("summary").focus()
    page.keyboard.press("Enter")
    page.wait_for_selector(".wb-researchgrid:not([hidden])")
    assert "(48 drafted tokens)" in section.locator(".wb-card-calibration").inner_text()
    assert section.locator(".wb-calibration .wb-series").count() == 3, "diagonal, mean p, acceptance rate"
    rows = section.locator(".wb-card-byKind tbody tr").all_inner_texts()
    assert [row.split("\t")[:2] for row in rows] == [["word start", "36 / 38"], ["punctuation", "7 / 7"]]
    assert "32 / 32" in section.locator(".wb-card-byEntropy tbody tr").first.inner_text()
    assert "not available in this app" in section.locator(".wb-card-roofline").inner_text()
    section.locator(".wb-card-calibration .wb-tool").click()
    wait_until_drawn(page)
    assert section.locator(".wb-card-calibration tbody tr").count() == 10
    with page.expect_download() as download:
        section.get_by_role("button", name="CSV").click()
    lines = download.value.path().read_text().splitlines()
    assert lines[10].startswith("draft probability q,0.9–1.0,31,")
    assert lines[-1].startswith("kind of token,punctuation,,,,7,7,1,")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert serious(page) == []

    page.goto(f"{fake_app}/?recorded=token-recycling")
    page.wait_for_selector(".wb-researchgrid:not([hidden])")  # the reader had left it open
    page.wait_for_function("document.querySelector('.wb-card-calibration').innerText.includes('is deterministic')")
    page.locator(":is([data-press=run], [data-near=run]):visible").first.click()
    page.wait_for_function("document.querySelector('.wb-researchhead').innerText.includes('all runs have ended')")
    assert not section.locator(".wb-researchgrid").is_visible(), "no figures of the run before"
    page.wait_for_selector(".wb-researchgrid:not([hidden])")
    page.wait_for_function("document.querySelector('.wb-researchhead').innerText.startsWith('This run.')")


def opened(page: Any) -> Any:
    page.get_by_role("button", name="Explain this speed").click()
    page.wait_for_selector(".wb-whybody:not([hidden])")
    return page.locator(".wb-whatif")


@in_browser
@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_why_this_fast(fake_app: str, open_page: PageOpener, tmp_path: Path, width: int, scheme: str) -> None:
    from ui.test_pages import serious

    page = open_page(
        f"{fake_app}/?recorded=draft-model", viewport={"width": width, "height": 1000}, color_scheme=scheme
    )
    page.wait_for_selector(".wb-theorywords:not(:empty)")
    assert "by position" in page.locator(".wb-theorywords").inner_text()
    assert page.locator(".wb-card-position .wb-theory").get_attribute("d")
    dialog = opened(page)
    assert "speed-up is unknown" in dialog.inner_text()
    assert dialog.locator(".wb-whytable tbody tr").count() >= 12
    dialog.locator(".wb-card-lengths .wb-tool").click()
    wait_until_drawn(page)
    assert "exactly the accepted tokens" in dialog.locator(".wb-card-lengths table").inner_text()
    page.wait_for_function("document.querySelectorAll('.wb-plot:has(.main-svg)').length >= 2")  # Plotly is loaded

    medusa = tmp_path / "medusa.json"
    medusa.write_text(json.dumps(recorded_runs.trace("medusa").to_wire()))
    with page.expect_file_chooser() as chooser:
        dialog.get_by_role("button", name="Compare with another run").click()
    chooser.value.set_files(medusa)
    page.wait_for_function("document.querySelector('.wb-whatif').innerText.includes('and medusa 2.')")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert serious(page) == []
    page.keyboard.press("Escape")
    wait_until_drawn(page)
    assert not dialog.is_visible()


@in_browser
@pytest.mark.parametrize(("width", "scheme"), [(1440, "light"), (390, "dark")])
def test_a_cell_of_the_matrix_is_found_in_seconds(
    fake_app: str, open_page: PageOpener, width: int, scheme: str
) -> None:
    from ui.test_pages import serious

    page = open_page(f"{fake_app}/methods", viewport={"width": width, "height": 900}, color_scheme=scheme)
    page.wait_for_selector(".wb[data-drawn=true]")
    assert page.evaluate("document.documentElement.scrollHeight") < 10_800, "at most a dozen screens"
    board = page.locator("#combinations")

    def chosen(name: str) -> Any:
        return board.get_by_role("combobox", name=name)

    chosen("Verifier").select_option("k-seq")
    chosen("Drafter").select_option("Draft model, AMUSD")
    pair_updates, button = board.locator(".wb-crosstold"), board.locator("tbody button:visible")
    assert pair_updates.locator("h3").inner_text() == "Drafts of Draft model, AMUSD, verified by k-seq"
    assert "rsd-c" in pair_updates.inner_text()
    assert "differs from p by TV" in pair_updates.inner_text()
    assert button.count() == 1
    chosen("Tree builder").select_option("rsd-c")
    assert button.inner_text() == "✕", "the form disables this combination"
    assert "disabled" in pair_updates.inner_text()
    for name in ("Verifier", "Drafter", "Tree builder"):
        chosen(name).select_option("")
    board.locator("tbody button[aria-pressed=true]").focus()
    page.keyboard.press("ArrowRight")
    assert pair_updates.locator("h3").inner_text() == "Drafts of Draft model, AMUSD, verified by optimal-two"
    assert page.evaluate("document.activeElement.getAttribute('aria-label')").startswith(
        "Draft model, AMUSD, optimal-two:"
    )
    assert board.locator("tbody button[tabindex='0']").count() == 1, "the matrix is one tab stop"
    assert serious(page, "#combinations") == []
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


@in_browser
def test_one_field_finds_methods_and_rows_of_the_boards(fake_app: str, open_page: PageOpener) -> None:
    page = open_page(f"{fake_app}/methods")
    page.wait_for_selector(".wb[data-drawn=true]")
    page.get_by_label("Find").fill("CAI medusa heads")
    page.wait_for_selector(".wb-find small:has-text('of the boards')")
    shown = page.locator(".wb-method:visible h2 code").all_inner_texts()
    assert "medusa" in shown
    assert "prompt-lookup" not in shown
    assert 0 < page.locator("#claims tbody tr:visible").count() < page.locator("#claims tbody tr").count()
    page.get_by_label("Find").fill("")
    page.wait_for_function("!document.querySelector('.wb-find small').textContent")
    assert page.locator(".wb-method:visible").count() == len(registry.names())
    assert page.locator("#claims tbody tr:visible").count() == 0, "folded again"


@in_browser
def test_the_boards_are_on_the_methods_page(fake_app: str, open_page: PageOpener) -> None:
    page = open_page(f"{fake_app}/methods")
    page.wait_for_selector(".wb[data-drawn=true]")
    for board in ("#exactness", "#claims"):
        page.locator(f"{board} summary").first.click()
    assert page.locator("#exactness tbody tr").count() == len(registry.names())
    standings = page.locator("#exactness .wb-standing").all_inner_texts()
    assert len(standings) == len(registry.names())
    assert all(standings)
    claims = page.locator("#claims tbody tr")
    assert claims.count() >= 15
    line = page.locator("#claims tbody tr", has_text="kangaroo").filter(has_text="one sequence")
    assert "not measurable here" in line.inner_text()
    assert "workbench claims --method kangaroo" in line.inner_text()
    assert page.locator(".wb-method .wb-standing").count() == len(registry.names())


@in_browser
def test_the_waterfall_zooms_and_selects_a_round(fake_app: str, open_page: PageOpener) -> None:
    from ui.test_pages import serious

    page = open_page(f"{fake_app}/?recorded=draft-tree", viewport={"width": 390, "height": 1000})
    rounds = len(recorded_runs.trace("draft-tree").rounds)
    page.wait_for_function(f"document.querySelector('.wb-where').textContent === 'round {rounds} of {rounds}'")
    assert "verify" in page.inner_text(".wb-whyline")
    page.click(".wb-whyline")
    drawn = "[...document.querySelectorAll('.wb-fallrow')].filter((e) => e.getAttribute('display') !== 'none').length"
    page.wait_for_function(f"{drawn} === {rounds}")
    assert "needs a measured baseline" in page.inner_text(".wb-falls")
    page.click(".wb-falldialog [aria-label='Zoom in (key +)']")
    page.focus(".wb-fall")
    page.keyboard.press("+")
    page.wait_for_function(f"{drawn} < {rounds}")
    page.keyboard.press("0")
    page.wait_for_function(f"{drawn} === {rounds}")
    page.click(".wb-fallrow[data-row='3']")
    page.wait_for_function("document.querySelector('.wb-fallnote').textContent.includes('selected on the page')")
    assert serious(page) == []
    page.mouse.move(1, 1)  # off the tokens, which show their round while the pointer is on them
    page.keyboard.press("Escape")
    page.wait_for_function("document.querySelector('.wb-where').textContent.startsWith('round 4 of')")


@in_browser
def test_hindsight_names_the_missing_draft_and_is_off_at_first(fake_app: str, open_page: PageOpener) -> None:
    page = open_page(f"{fake_app}/?recorded=draft-tree-sampled&round=1")
    switch = page.locator("[aria-label^='Best tree in hindsight']")
    assert switch.get_attribute("aria-pressed") == "false"
    assert not page.is_visible(".wb-treebetter")
    switch.click()
    wait_until_drawn(page)
    seen = set[str]()
    for _ in range(8):
        words = page.inner_text(".wb-treebetter")
        assert words.startswith(("The drafter's token", "Not known", "No better draft", "The target's token")), words
        assert page.is_visible(".wb-better circle") == words.startswith("The drafter's token")
        seen.add(" ".join(words.split()[:5]))
        page.click("[aria-label='Next round'], .wb-scrub button:has-text(']')")
        wait_until_drawn(page)
    assert "The drafter's token of rank" in seen
