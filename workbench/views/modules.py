"""JavaScript (ES) modules that draw the views. A browser loads them by URL; a notebook gets them as one text."""

from __future__ import annotations

import hashlib
import posixpath
import re
from functools import cache
from pathlib import Path

JS = Path(__file__).parent / "js"
STYLESHEET = Path(__file__).parent / "stage.css"
PAGES_STYLESHEET = Path(__file__).parent / "pages.css"
REPLAY = JS / "replay.html"
"""HTML template of a file that replays a recorded run; the page in the browser and Python use it."""

FIRST_MODULE = "live"
"""Name of the view that the app shows first."""
ENTRIES = {
    "live": "live/page",
    "vision": "vision/page",
    "compare": "compare/page",
    "tworuns": "compare/tworuns",
    "sweep": "sweep/page",
    "lab": "lab/page",
    "verifiers": "verifiers/page",
    "learn": "learn/page",
    "gallery": "learn/gallery",
    "methodcards": "learn/methods",
}
"""JavaScript entry module of each view. It imports the view's other modules and exports `mount(el, {host, …})`."""

_DOC = re.compile(r"^[ \t]*/\*\*(?:(?!\*/).)*\*/[ \t]*\n", re.MULTILINE | re.DOTALL)
_IMPORT = re.compile(r'^import (\* as \w+|\{[^}]*\}) from "(\.[^"]+)\.js";$', re.MULTILINE)
_EXPORT = re.compile(r"^export (?=(?:async )?function\*? (\w+)|const (\w+) =|class (\w+))", re.MULTILINE)
_OTHER = re.compile(r"^(import|export)\b.*", re.MULTILINE)


def module_names() -> list[str]:
    """Return the names of all JavaScript modules except tests: paths below `js/` without suffix (`live/tree`)."""
    paths = (path.relative_to(JS).as_posix() for path in JS.rglob("*.js") if not path.name.endswith(".test.js"))
    return sorted(name.removesuffix(".js") for name in paths)


def module_path(name: str) -> Path:
    """Return the path of the file of a JavaScript module."""
    return JS / f"{name}.js"


def module_text(name: str) -> str:
    """Return the source of a JavaScript module."""
    return module_path(name).read_text(encoding="utf-8")


@cache
def delivered_text(name: str) -> str:
    """Return the source of a JavaScript module without documentation comments, which a browser does not need."""
    return _DOC.sub("", module_text(name))


def direct_imports(name: str) -> list[str]:
    """Return the names of the modules that a JavaScript module imports directly."""
    return [_named(name, match[2]) for match in _IMPORT.finditer(module_text(name))]


def _named(importer: str, path: str) -> str:
    return posixpath.normpath(posixpath.join(posixpath.dirname(importer), path))


@cache
def dependency_order(entry: str) -> tuple[str, ...]:
    """Return a JavaScript module and all its dependencies, each after the modules that it imports.

    Raises:
        ValueError: there is a circular import.
    """
    ordered, ancestors = dict[str, None](), list[str]()

    def visit(name: str) -> None:
        if name in ancestors:
            raise ValueError(f"circular import: {' > '.join([*ancestors[ancestors.index(name) :], name])}")
        if name in ordered:
            return
        ancestors.append(name)
        for other in direct_imports(name):
            visit(other)
        ordered[ancestors.pop()] = None

    visit(entry)
    return tuple(ordered)


@cache
def inline_modules(entry: str) -> str:
    """Return a JavaScript module and all its dependencies as one text, for a notebook or an HTML file.

    Each module becomes the body of a function, in the order of `dependency_order`, and each import becomes a constant.

    Raises:
        ValueError: there is a circular import, or an import or export in a form that cannot be rewritten.
    """
    names = dependency_order(entry)
    scopes = {name: f"$$_{re.sub(r'[^A-Za-z0-9]', '_', name)}" for name in names}
    parts = [f"const {scopes[name]} = {_scope(name, scopes)};" for name in names]
    return "\n".join(
        [*parts, *(f"export const {export} = {scopes[entry]}.{export};" for export in _exported(entry)), ""]
    )


def _exported(name: str) -> list[str]:
    return [next(filter(None, match.groups())) for match in _EXPORT.finditer(module_text(name))]


def _scope(name: str, scopes: dict[str, str]) -> str:
    def constant(found: re.Match[str]) -> str:
        names = found[1].removeprefix("* as ").replace(" as ", ": ")
        return f"const {names} = {scopes[_named(name, found[2])]};"

    text = _EXPORT.sub("", _IMPORT.sub(constant, delivered_text(name)))
    if remainder := _OTHER.search(text):
        raise ValueError(f"{name}: this import or export cannot be inlined: {remainder[0]}")
    return f"(() => {{\n{text}\nreturn {{ {', '.join(_exported(name))} }};\n}})()"


def stylesheets(view: str = FIRST_MODULE) -> list[Path]:
    """Return the CSS stylesheets of a view, in the order in which they apply."""
    shared = {"measuring": ("compare", "sweep", "lab"), "methodmap": ("gallery", "methodcards")}
    names = [*(name for name, views in shared.items() if view in views), view]
    of_view = [STYLESHEET.with_name(f"{name}.css") for name in names]
    return [STYLESHEET, PAGES_STYLESHEET, *(path for path in of_view if path.is_file())]


def all_stylesheets() -> list[Path]:
    """Return the CSS stylesheets of all views."""
    return sorted(STYLESHEET.parent.glob("*.css"))


def fingerprint() -> str:
    """Return a hash of the modules, stylesheets and palette, so that a browser never mixes files of two versions."""
    digest = hashlib.sha256()
    scripts = [path for path in sorted(JS.rglob("*.js")) if not path.name.endswith(".test.js")]
    for path in [*scripts, *sorted(JS.rglob("*.html")), *all_stylesheets(), STYLESHEET.with_name("palette.json")]:
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]
