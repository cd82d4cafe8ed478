"""Everything put together: the sources of all pages, MkDocs run strictly, a search for foreign addresses."""

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
from workbench.site import methodpages, pairs, reference
from workbench.site.page import Page, to_page

os.environ.setdefault("NO_MKDOCS_2_WARNING", "true")  # Material's advertisement, which is no warning about this site

SOURCES = pairs.ROOT / ".site"
_LOADED = re.compile(
    r"""<(?:script|link|img|iframe|source|video|audio|object|embed|use|image)\b[^>]*?\b
        (?:src|href|data|srcset|xlink:href)\s*=\s*["']?\s*((?:https?:)?//[^"'\s>]+)""",
    re.VERBOSE | re.IGNORECASE,
)
_STYLED = re.compile(r"""(?:@import\s+|url\()\s*["']?\s*((?:https?:)?//[^"')\s]+)""", re.IGNORECASE)


def build(executed: Sequence[Path], out: Path, work: Path) -> list[Path]:
    """Build the site.

    Args:
        executed: notebooks with their outputs, in order.
        out: folder of the site; what is in it goes.
        work: folder for the pages' sources; what is in it goes.

    Returns:
        The pages that were built.

    Raises:
        WorkbenchError: MkDocs warned about something, a page loads something from another machine, or `out` holds
            something else.
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
        raise WorkbenchError(f"{out} holds something that is not a site built before.", "Choose an empty folder.")
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
        raise WorkbenchError(f"The site could not be built: {error}", "\n".join(warnings.said)) from error
    finally:
        logging.getLogger("mkdocs").removeHandler(warnings)
    if foreign := foreign_addresses(out):
        raise WorkbenchError(f"The site would load from other machines: {'; '.join(foreign[:5])}.")
    return sorted(out.rglob("*.html"))


class _Warnings(logging.Handler):
    """Keeps what MkDocs warns about, which in strict mode ends the build: the error has to say it."""

    def __init__(self, level: int) -> None:
        super().__init__(level)
        self.said: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.said.append(record.getMessage())


def foreign_addresses(site: Path) -> list[str]:
    """`page: address` of everything that a page would load from another machine; links to follow are not among them."""
    found = []
    for path in sorted(site.rglob("*")):
        if path.suffix not in (".html", ".css", ".svg"):
            continue
        text = path.read_text(encoding="utf-8")
        addresses = _STYLED.findall(text) + (_LOADED.findall(text) if path.suffix != ".css" else [])
        found += [f"{path.relative_to(site)}: {address}" for address in addresses]
    return found


def _write_sources(lessons: dict[str, Page], work: Path) -> None:
    shutil.rmtree(work, ignore_errors=True)
    for name, text in (methodpages.pages() | reference.pages()).items():
        path = work / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    (work / "lessons").mkdir()
    for name, page in lessons.items():
        (work / "lessons" / f"{name}.md").write_text(f"# {page.title}\n", encoding="utf-8")
        for source in (pairs.FOLDER / f"{name}.ipynb", pairs.FOLDER / f"{name}.py"):
            if source.is_file():
                shutil.copy(source, work / "lessons")
    (work / "lessons" / "index.md").write_text(_contents(lessons), encoding="utf-8")
    for name in ("index.md", "site.css"):
        shutil.copy(SOURCES / name, work)
    shutil.copy(pairs.ROOT / "assets" / "screenshot-live.webp", work)


def _contents(lessons: dict[str, Page]) -> str:
    lines = [
        "# Lessons",
        "",
        f"{len(lessons)} notebooks, executed as they are tested: in FAST mode, on the bundled models, on a CPU. "
        "Widgets stand here as pictures; open a notebook with `workbench lab` to use them.",
        "",
    ]
    for name, page in lessons.items():
        lines.append(f"- [{page.title}]({name}.md)")
    return "\n".join(lines)


def _plugin(lessons: dict[str, Page]) -> Any:
    """A plugin of MkDocs that puts the lessons' HTML and headings where their Markdown has only the title."""
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
    """Headings as MkDocs's table of contents wants them: each with those below it as children."""
    top: list[dict[str, Any]] = []
    above: list[dict[str, Any]] = []
    for level, name, text in headings:
        words = html.escape(text)
        token = {"level": level, "id": name, "name": words, "html": words, "data-toc-label": "", "children": []}
        while above and above[-1]["level"] >= level:
            above.pop()
        (above[-1]["children"] if above else top).append(token)
        above.append(token)
    return top
