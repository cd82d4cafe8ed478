"""Notebooks as HTML: shown and omitted parts, escaping, and no resources from other servers."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import griffe
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from workbench.site import build, notebook_pairs
from workbench.site.docstrings import Examples
from workbench.site.page import Page, to_page

WIDGET = "application/vnd.jupyter.widget-view+json"


def page_of(*cells: object) -> Page:
    return to_page(new_notebook(cells=list(cells)))


def shown(**data: str) -> str:
    kinds = {name.replace("__", "/"): text for name, text in data.items()}
    return page_of(new_code_cell("x", outputs=[new_output("display_data", data=kinds)])).body


def test_headings_become_title_and_contents() -> None:
    page = page_of(new_markdown_cell("# The *title*\n\n## Part\n\n## Part\n\n```python\n# no heading\n```"))
    assert page.title == "The title"
    assert page.headings == [(1, "the-title", "The title"), (2, "part", "Part"), (2, "part_1", "Part")]
    for _, name, _ in page.headings:
        assert f'id="{name}"' in page.body


def test_markdown_is_rendered_as_in_jupyter() -> None:
    body = page_of(new_markdown_cell("A list:\n- one\n  - inner\n\n| a | b |\n|---|---|\n| 1 | 2 |")).body
    assert body.count("<ul>") == 2
    assert "<td>1</td>" in body


@pytest.mark.parametrize(
    "source", [r"so $\frac{p}{q}$", r"$$\min(1, \frac{p}{q})$$", r"\begin{align}p &= \frac12\end{align}"]
)
def test_formulas_become_mathml(source: str) -> None:
    body = page_of(new_markdown_cell(source)).body
    assert "<math" in body
    assert "<mfrac" in body
    assert "$" not in body


def test_dollar_signs_outside_formulas_are_kept() -> None:
    assert "$5" in page_of(new_markdown_cell("It costs $5.")).body


def test_output_is_escaped_and_colour_codes_are_removed() -> None:
    text = "\x1b[31m<script>alert(1)</script>\x1b[0m"
    body = page_of(new_code_cell("x", outputs=[new_output("stream", name="stdout", text=text)])).body
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in body
    assert "\x1b" not in body


def test_printed_parts_are_merged_and_error_output_is_left_out() -> None:
    streams = [("stdout", "one\n"), ("stdout", "two\n"), ("stderr", "warning\n"), ("stdout", "\n")]
    outputs = [new_output("stream", name=name, text=text) for name, text in streams]
    body = page_of(new_code_cell("x", outputs=outputs)).body
    assert "<pre><code>one\ntwo</code></pre>" in body
    assert body.count("<pre><code>") == 1
    assert "warning" not in body


def test_the_richest_static_format_is_shown() -> None:
    body = shown(text__plain="View()", text__html="<b>picture</b>", **{WIDGET.replace("/", "__"): "{}"})
    assert "<b>picture</b>" in body
    assert "View()" not in body
    assert "application/javascript" not in shown(application__javascript="alert(1)")
    assert "data:image/png;base64,AAAA" in shown(image__png="AAAA\n", text__plain="<Figure>")


def test_a_control_without_image_is_replaced_by_a_note() -> None:
    body = shown(text__plain="IntSlider(value=0)", **{WIDGET.replace("/", "__"): "{}"})
    assert "run the notebook" in body
    assert "IntSlider" not in body


def test_progress_bars_are_left_out() -> None:
    bar = shown(
        text__plain="Loading weights:   0%|          | 0/56 [00:00<?, ?it/s]", **{WIDGET.replace("/", "__"): "{}"}
    )
    assert "run the notebook" not in bar
    assert "Loading" not in bar


def test_installation_is_left_out_and_solutions_are_folded() -> None:
    hidden = new_code_cell("install()", metadata={"tags": ["colab"]})
    solved = new_code_cell("answer = 42", metadata={"tags": ["solution"]})
    body = page_of(hidden, solved).body
    assert "install" not in body
    assert body.startswith("<details><summary>Solution</summary>")


def test_drawing_code_is_folded_and_its_image_is_shown() -> None:
    said = new_output("stream", name="stdout", text="what it draws")
    body = page_of(new_code_cell("draw()", metadata={"jupyter": {"source_hidden": True}}, outputs=[said])).body
    folded, _, rest = body.partition("</details>")
    assert "<summary>Code</summary>" in folded
    assert "draw" in folded
    assert "what it draws" not in folded
    assert "what it draws" in rest


def test_links_between_lessons_lead_to_pages() -> None:
    body = page_of(
        new_markdown_cell("[a](01_memory_bound.ipynb) [b](02_x.ipynb#part) [c](https://a.b/03_y.ipynb)")
    ).body
    assert 'href="01_memory_bound.html"' in body
    assert 'href="02_x.html#part"' in body
    assert 'href="https://a.b/03_y.ipynb"' in body


def test_external_resources_of_a_page_are_found(tmp_path: Path) -> None:
    good = '<a href="https://arxiv.org">paper</a><img src="x.png"><link rel="canonical" href="/x">'
    (tmp_path / "good.html").write_text(good)
    assert build.external_addresses(tmp_path) == []
    (tmp_path / "bad.html").write_text('<script defer src="https://cdn.example/x.js"></script>')
    (tmp_path / "bad.css").write_text('@import "//fonts.example/x.css"; a { background: url(https://b.example/y.png) }')
    assert build.external_addresses(tmp_path) == [
        "bad.css: //fonts.example/x.css",
        "bad.css: https://b.example/y.png",
        "bad.html: https://cdn.example/x.js",
    ]


def test_a_folder_without_a_site_is_not_emptied(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("x")
    with pytest.raises(build.WorkbenchError, match="contains files that an earlier build of the site did not write"):
        build.build([], tmp_path, tmp_path.parent / "work")
    assert (tmp_path / "precious").exists()


def test_contents_are_nested_by_level() -> None:
    nested = build._nested([(1, "t", "T"), (2, "a", "A"), (3, "b", "B & C"), (2, "c", "C")])
    assert [token["id"] for token in nested] == ["t"]
    assert [token["id"] for token in nested[0]["children"]] == ["a", "c"]
    assert nested[0]["children"][0]["children"][0]["name"] == "B &amp; C"


RELATIVE = re.compile(r"""\]\(\s*<?([^)\s>:#]+)[)\s>#]|(?:src|href)="([^":#]+)[#"]""")
"""Matches local targets of links and images in a Markdown page; no URLs, no anchors of the same page."""


def dead_ends(work: Path) -> list[str]:
    """Return `page: link` for each link that leads to no file of the site's sources."""
    return [
        f"{page.relative_to(work)}: {target}"
        for page in sorted(work.rglob("*.md"))
        for target in map("".join, RELATIVE.findall(page.read_text(encoding="utf-8")))
        if not (page.parent / target).exists()
    ]


def test_every_link_between_the_sources_resolves(tmp_path: Path) -> None:
    """MkDocs checks links, but only after all lessons ran; once the front page named an image of another format."""
    build._write_sources({name: Page(name, "") for name in notebook_pairs.names()}, tmp_path)
    assert (tmp_path / "index.md").is_file()
    assert dead_ends(tmp_path) == []
    (tmp_path / "more.md").write_text("![A](screenshot-live.png) [b](index.md#here) [c](https://d.e) <img src='x'>")
    assert dead_ends(tmp_path) == ["more.md: screenshot-live.png"]


def has_accidental_markup(text: str) -> bool:
    """Return whether Markdown would read part of a docstring as a link to a heading, or a session as a quotation."""
    return bool(re.search(r"\][ \n]?\[|^>>>", re.sub(r"```.*?```|`[^`]*`", "", text, flags=re.DOTALL), re.MULTILINE))


def test_sessions_in_docstrings_are_code() -> None:
    """MkDocs runs last and once failed because two lists of a session were read as a link without target."""
    package = griffe.load(
        "workbench", search_paths=[str(notebook_pairs.ROOT)], extensions=griffe.load_extensions(Examples)
    )
    texts = dict(docstring_texts(package))
    assert texts["workbench.methods.policies.buckets.budget"].count("```pycon\n>>> [budget(n)") == 1
    assert [where for where, text in texts.items() if has_accidental_markup(text)] == []
    assert has_accidental_markup(">>> f()\n1")
    assert has_accidental_markup("[1]\n[2]")


def docstring_texts(thing: griffe.Object | griffe.Alias) -> Iterator[tuple[str, str]]:
    """Yield the docstring text outside of sections, with the object it describes."""
    if thing.is_alias:
        return
    sections = thing.docstring.parse("google") if thing.docstring else []
    yield thing.path, "\n\n".join(part.value for part in sections if part.kind is griffe.DocstringSectionKind.text)
    for member in thing.members.values():
        yield from docstring_texts(member)
