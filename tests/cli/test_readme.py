"""The README is tested: its tables are generated, its commands and its code run."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import pytest

from workbench.cli.docs import replace_part
from workbench.methods import registry

from .conftest import Command

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def part(marker: str) -> str:
    """Return the text between two markers, without the code fences."""
    text = README.split(f"<!-- {marker} -->", 1)[1].split(f"<!-- /{marker} -->", 1)[0].strip()
    return re.sub(r"^```\w*\n|\n```$", "", text)


def test_generated_tables_are_up_to_date(workbench: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """When this fails: run `workbench docs`."""
    monkeypatch.chdir(ROOT)
    assert workbench("docs", "--check").err == ""


def test_a_stale_table_is_detected_and_updated(workbench: Command, tmp_path: Path) -> None:
    stale = tmp_path / "README.md"
    stale.write_text(replace_part(README, "methods", "nothing"), encoding="utf-8")
    boards = shutil.copytree(ROOT / "assets" / "boards", tmp_path / "boards")
    where = ("--readme", str(stale), "--boards", str(boards))
    table = boards / "methods.md"
    whole = table.read_text(encoding="utf-8")
    rotten = whole.replace("`medusa`", "`gorgo`")
    assert rotten != whole
    table.write_text(rotten, encoding="utf-8")
    assert "README.md is stale" in workbench("docs", "--check", *where).err
    assert workbench("docs", *where).status == 0
    assert (stale.read_text(encoding="utf-8"), table.read_text(encoding="utf-8")) == (README, whole)
    table.write_text(rotten, encoding="utf-8")
    assert "methods.md is stale" in workbench("docs", "--check", *where).err


def test_a_report_is_added_to_the_speed_board(workbench: Command, tmp_path: Path) -> None:
    boards = shutil.copytree(ROOT / "assets" / "boards", tmp_path / "boards")
    (tmp_path / "report.md").write_text("### measured today\n", encoding="utf-8")
    (tmp_path / "README.md").write_text(README, encoding="utf-8")
    where = ("--readme", str(tmp_path / "README.md"), "--boards", str(boards))
    assert workbench("docs", *where, "--bench", str(tmp_path / "report.md")).status == 0
    assert "<!-- bench -->\n### measured today\n" in (boards / "speed.md").read_text(encoding="utf-8")


def test_the_readme_is_short_and_its_links_resolve() -> None:
    assert len(README.splitlines()) <= 200
    for file in (ROOT / "README.md", *(ROOT / ".github").glob("*.md"), ROOT / "assets" / "boards" / "speed.md"):
        for link in re.findall(r"\]\(([^)#]+)", file.read_text(encoding="utf-8")):
            assert link.startswith("http") or (file.parent / link).exists(), f"{file.name}: {link}"


def test_every_method_is_named_once() -> None:
    assert sorted(re.findall(r"`([\w-]+)`", part("methods"))) == sorted(registry.names())


def test_set_up_commands_are_one_line_each() -> None:
    for marker in ("start-command", "test-command"):
        command = part(marker)
        assert len(command.splitlines()) == 1
        for name in re.findall(r"-r (\S+)", command):
            assert (ROOT / name).is_file()
    assert part("start-command").endswith("app.py")
    assert (ROOT / "app.py").is_file()


@pytest.mark.parametrize("line", part("examples").splitlines(), ids=lambda line: " ".join(line.split()[:3]))
def test_the_examples_run(workbench: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, line: str) -> None:
    monkeypatch.chdir(tmp_path)
    program, *args = shlex.split(line)
    assert program == "workbench"
    result = workbench(*args, *(["--max-new-tokens", "16"] if args[0] == "generate" else []))
    assert result.status == 0, result.err


def test_the_python_example_runs(capsys: pytest.CaptureFixture[str]) -> None:
    exec(compile(part("python"), "README", "exec"), {})
    assert "of tested drafts accepted" in capsys.readouterr().out


def test_the_method_of_the_readme_can_be_added(workbench: Command) -> None:
    code = part("add-a-method")
    assert len([line for line in code.splitlines() if line.strip()]) <= 20
    registry.names()
    try:
        exec(compile(code, "README", "exec", flags=0), {"__name__": "readme_method"})
        plain = workbench("generate", "no no no", "--method", "autoregressive", "--json", "--max-new-tokens", "12").json
        ours = workbench("generate", "no no no", "--method", "stutter", "--json", "--max-new-tokens", "12").json
        assert ours["token_ids"] == plain["token_ids"]
        assert ours["metrics"]["drafted"] > 0
        assert "stutter" in workbench("methods", "--markdown").out
    finally:
        registry._methods.pop("stutter", None)
        registry._places.pop("stutter", None)
