"""Convert an executed notebook to the HTML of a web site page, in the site's style and without scripts.

Markdown is parsed as in Jupyter (CommonMark). LaTeX becomes MathML, which browsers render natively. Widgets are shown
as their stored snapshots. Cells tagged `colab` are omitted, cells tagged `solution` are collapsed.
"""

from __future__ import annotations

import html
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from latex2mathml.converter import convert as to_mathml
from nbconvert.filters.ansi import strip_ansi
from nbconvert.filters.markdown_mistune import IPythonRenderer, MarkdownWithMath
from nbformat import NotebookNode
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import get_lexer_by_name
from pygments.util import ClassNotFound

_STATIC = ("text/html", "image/svg+xml", "image/png", "image/jpeg", "text/markdown", "text/latex", "text/plain")
"""MIME types of static notebook outputs, in order of preference."""
_WIDGET = "application/vnd.jupyter.widget-view+json"
_SNAPSHOT_MARK = 'class="wb-still'
"""Text by which the HTML of a widget's snapshot is recognised (`workbench.widgets.view.SNAPSHOT_CLASS`)."""
_BAR = re.compile(r"\d%\|.*\| \d+/")
"""Pattern of a progress bar in a notebook's output, which libraries print while models load."""
_LESSON = re.compile(r'(?<=href=")(?:\./)?(\d\d_\w+)\.(?:ipynb|py)(?=[#"])')


@dataclass(slots=True)
class Page:
    """Lesson (executed notebook) as a page of the web site.

    Attributes:
        title: title of the lesson.
        body: HTML of the page's content.
        headings: (level, id, text) of each heading in order, for the table of contents.
    """

    title: str
    body: str
    headings: list[tuple[int, str, str]] = field(default_factory=list)


def to_page(notebook: NotebookNode) -> Page:
    """Convert an executed notebook to a page of the web site."""
    words = _LessonRenderer()
    parts = [_cell(cell, words) for cell in notebook.cells if "colab" not in cell.metadata.get("tags", [])]
    body = _LESSON.sub(r"\1.html", "\n".join(parts))
    title = next((text for level, _, text in words.headings if level == 1), "")
    return Page(title, body, words.headings)


def code_block(source: str, language: str = "python") -> str:
    """Return source code as HTML with syntax highlighting in the theme's classes."""
    try:
        lexer = get_lexer_by_name(language)
    except ClassNotFound:
        lexer = get_lexer_by_name("text")
    return highlight(source, lexer, HtmlFormatter(cssclass="highlight", wrapcode=True))


def _cell(cell: NotebookNode, renderer: _LessonRenderer) -> str:
    if cell.cell_type == "markdown":
        return renderer.render_markdown(cell.source)
    if cell.cell_type != "code" or not cell.source:
        return ""
    outputs = "".join(_output(output, renderer) for output in _drawable(_merge_streams(cell.outputs)))
    outputs = f'<div class="outputs" data-search-exclude>{outputs}</div>' if outputs else ""
    code, tags = code_block(cell.source), cell.metadata.get("tags", [])
    if "solution" in tags:
        return f"<details><summary>Solution</summary>{code}{outputs}</details>"
    if cell.metadata.get("jupyter", {}).get("source_hidden"):  # plotting code: only its output matters
        code = f"<details><summary>Code</summary>{code}</details>"
    content = code + outputs
    return f'<div class="cell{" parameters" if "parameters" in tags else ""}">{content}</div>'


def _merge_streams(outputs: Sequence[NotebookNode]) -> list[NotebookNode]:
    """Join consecutive notebook outputs of the same stream, because timing decides how printed text is split."""
    merged: list[NotebookNode] = []
    for output in outputs:
        previous = merged[-1] if merged else None
        if previous and output.output_type == previous.output_type == "stream" and output.name == previous.name:
            merged[-1] = NotebookNode(previous | {"text": previous.text + output.text})
        else:
            merged.append(output)
    return merged


def _drawable(outputs: Sequence[NotebookNode]) -> list[NotebookNode]:
    """Return the outputs of a notebook cell without the widgets that are followed by a snapshot."""
    stills = [_SNAPSHOT_MARK in output.get("data", {}).get("text/html", "") for output in outputs]
    return [
        output
        for output, still_follows in zip(outputs, [*stills, False][1:], strict=True)
        if not (still_follows and _WIDGET in output.get("data", {}))
    ]


def _output(output: NotebookNode, renderer: _LessonRenderer) -> str:
    if output.output_type == "stream":
        return "" if output.name == "stderr" or not output.text.strip() else _plain(output.text.rstrip())
    if output.output_type == "error":
        return _plain("\n".join(output.traceback))
    data = output.data
    if _WIDGET in data and _BAR.search(data.get("text/plain", "")):
        return ""
    if _WIDGET in data and not {"text/html", "image/svg+xml", "image/png"} & set(data):
        return '<p class="control">Interactive control: run the notebook to use it.</p>'
    kind = next((kind for kind in _STATIC if kind in data), None)
    return _SHOW[kind](data[kind], renderer) if kind else ""


def _plain(text: str) -> str:
    return f"<pre><code>{html.escape(strip_ansi(text))}</code></pre>"


def _image(kind: str) -> Any:
    return lambda data, words: f'<img alt="" src="data:{kind};base64,{data.strip()}">'


_SHOW: dict[str, Any] = {
    "text/html": lambda data, words: f'<div class="rich">{data}</div>',
    "image/svg+xml": lambda data, words: f'<div class="rich">{data}</div>',
    "image/png": _image("image/png"),
    "image/jpeg": _image("image/jpeg"),
    "text/markdown": lambda data, renderer: renderer.render_markdown(data),
    "text/latex": lambda data, renderer: renderer.render_markdown(data),
    "text/plain": lambda data, words: _plain(data),
}


class _LessonRenderer(IPythonRenderer):
    """Markdown renderer for lessons: it collects headings, highlights code and converts LaTeX to MathML."""

    def __init__(self) -> None:
        super().__init__(escape=False)
        self.headings: list[tuple[int, str, str]] = []

    def render_markdown(self, markdown: str) -> str:
        """Return the HTML of a notebook's Markdown cell."""
        return str(MarkdownWithMath(renderer=self)(markdown))

    def heading(self, text: str, level: int, **attrs: Any) -> str:
        plain = html.unescape(re.sub(r"<[^>]*>", "", text)).strip()
        name = self._unique(re.sub(r"[^\w]+", "-", plain.lower()).strip("-") or "part")
        self.headings.append((level, name, plain))
        link = f'<a class="headerlink" href="#{name}" title="Link to this section">¶</a>'
        return f'<h{level} id="{name}">{text}{link if level > 1 else ""}</h{level}>\n'

    def block_code(self, code: str, info: str | None = None) -> str:
        return code_block(code, (info or "text").split()[0])

    def inline_math(self, body: str) -> str:
        return to_mathml(body)

    def block_math(self, body: str) -> str:
        return to_mathml(body, display="block")

    def latex_environment(self, name: str, body: str) -> str:
        return to_mathml(f"\\begin{{{name}}}{body}\\end{{{name}}}", display="block")

    def _unique(self, name: str) -> str:
        used = {name_used for _, name_used, _ in self.headings}
        return name if name not in used else next(f"{name}_{i}" for i in range(1, 1000) if f"{name}_{i}" not in used)
