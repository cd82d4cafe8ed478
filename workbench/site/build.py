"""Build the static web site: write the pages' sources, run MkDocs in strict mode, check for external resources."""

from __future__ import annotations

import html
import logging
import os
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import nbformat

from workbench.core.errors import WorkbenchError
from workbench.site import methodpages, notebook_pairs, reference
from workbench.site.page import Page, to_page

os.environ.setdefault("NO_MKDOCS_2_WARNING", "true")  # Material's advertisement, not a problem of this site

SOURCES = notebook_pairs.ROOT / ".site"
_LOADED = re.compile(
    r"""<(?:script|link|img|iframe|source|video|audio|object|embed|use|image)\b[^>]*?\b
        (?:src|href|data|srcset|xlink:href)\s*=\s*["']?\s*((?:https?:)?//[^"'\s>]+)""",
    re.VERBOSE | re.IGNORECASE,
)
_STYLED = re.compile(r"""(?:@import\s+|url\()\s*["']?\s*((?:https?:)?//[^"')\s]+)""", re.IGNORECASE)


def build(executed: Sequence[Path], out: Path, work: Path) -> list[Path]:
    """Build the static web site from executed notebooks.

    Args:
        executed: notebooks with their outputs, in order.
        out: folder of the site; its contents are deleted.
        work: folder for the sources of the pages; its contents are deleted.

    Returns:
        Paths of the HTML pages.

    Raises:
        WorkbenchError: MkDocs reported a warning, a page loads a resource from another machine, or `out` contains
            files that are not an earlier site.
    """
    from mkdocs.commands.build import build as mkdocs_build
    from mkdocs.config import load_config
    from mkdocs.exceptions import MkDocsException

    lessons = {path.stem: to_page(nbformat.read(path, as_version=4)) for path in executed}
    _write_sources(lessons, work)
    navigation: list[Any] = [
        {"Home": "index.md"},
        {"Lessons": ["lessons/index.md", *(f"lessons/{name}.md" for name in lessons)]},
        {"Methods": methodpages.navigation()},
        {"API reference": reference.navigation()},
    ]
    if out.exists() and any(out.iterdir()) and not (out / "search" / "search_index.json").is_file():
        raise WorkbenchError(
            f"{out} contains files that an earlier build of the site did not write.", "Choose an empty folder."
        )
    shutil.rmtree(out, ignore_errors=True)
    warnings = _Warnings(logging.WARNING)
    logging.getLogger("mkdocs").addHandler(warnings)
    try:
        config = load_config(
            str(SOURCES / "mkdocs.yml"), docs_dir=str(work), site_dir=str(out), nav=navigation, strict=True
        )
        config.plugins["lessons"] = _plugin(lessons)
        mkdocs_build(config)
    except MkDocsException as error:
        raise WorkbenchError(f"The site could not be built: {error}", "\n".join(warnings.messages)) from error
    finally:
        logging.getLogger("mkdocs").removeHandler(warnings)
    if foreign := external_addresses(out):
        raise WorkbenchError(f"The site would load resources from other machines: {'; '.join(foreign[:5])}.")
    return sorted(out.rglob("*.html"))


class _Warnings(logging.Handler):
    """Log handler that collects MkDocs' warnings for the error message; in strict mode they end the build."""

    def __init__(self, level: int) -> None:
        super().__init__(level)
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())


def external_addresses(site: Path) -> list[str]:
    """Return "page: address" for every resource that a page would load from another machine, hyperlinks excluded."""
    foreign = []
    for path in sorted(site.rglob("*")):
        if path.suffix not in (".html", ".css", ".svg"):
            continue
        text = path.read_text(encoding="utf-8")
        addresses = _STYLED.findall(text) + (_LOADED.findall(text) if path.suffix != ".css" else [])
        foreign += [f"{path.relative_to(site)}: {address}" for address in addresses]
    return foreign


def _write_sources(lessons: dict[str, Page], work: Path) -> None:
    shutil.rmtree(work, ignore_errors=True)
    for name, text in (methodpages.pages() | reference.pages()).items():
        path = work / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    (work / "lessons").mkdir()
    for name, page in lessons.items():
        (work / "lessons" / f"{name}.md").write_text(f"# {page.title}\n", encoding="utf-8")
        for source in (notebook_pairs.FOLDER / f"{name}.ipynb", notebook_pairs.FOLDER / f"{name}.py"):
            if source.is_file():
                shutil.copy(source, work / "lessons")
    (work / "lessons" / "index.md").write_text(_contents(lessons), encoding="utf-8")
    for name in ("index.md", "site.css"):
        shutil.copy(SOURCES / name, work)
    shutil.copy(notebook_pairs.ROOT / "assets" / "screenshot-live.webp", work)


def _contents(lessons: dict[str, Page]) -> str:
    lines = [
        "# Lessons",
        "",
        f"{len(lessons)} notebooks, executed on a CPU with the bundled models and FAST = True (shorter measurements). "
        "Widgets are shown as static images; open a notebook with `workbench lab` to use them.",
        "",
    ]
    for name, page in lessons.items():
        lines.append(f"- [{page.title}]({name}.md)")
    return "\n".join(lines)


def _plugin(lessons: dict[str, Page]) -> Any:
    """Return an MkDocs plugin that inserts each lesson's HTML and headings; its Markdown source has only the title."""
    from mkdocs.plugins import BasePlugin
    from mkdocs.structure.toc import get_toc

    class Lessons(BasePlugin):
        def on_page_content(self, body: str, *, page: Any, **rest: Any) -> str:
            folder, _, name = page.file.src_uri.removesuffix(".md").rpartition("/")
            if folder != "lessons" or name not in lessons:
                return body
            page.toc = get_toc(_nested(lessons[name].headings))
            return _downloads(name) + lessons[name].body

    return Lessons()


def _downloads(name: str) -> str:
    return (
        f'<p class="downloads">This page is <a href="{name}.ipynb" download>{name}.ipynb</a>, executed '
        f'(<a href="{name}.py" download>as Python</a>).</p>'
    )


def _nested(headings: Sequence[tuple[int, str, str]]) -> list[Any]:
    """Return a list of headings as a tree, in the format of MkDocs' table of contents."""
    top: list[dict[str, Any]] = []
    ancestors: list[dict[str, Any]] = []
    for level, name, text in headings:
        label = html.escape(text)
        token = {"level": level, "id": name, "name": label, "html": label, "data-toc-label": "", "children": []}
        while ancestors and ancestors[-1]["level"] >= level:
            ancestors.pop()
        (ancestors[-1]["children"] if ancestors else top).append(token)
        ancestors.append(token)
    return top
