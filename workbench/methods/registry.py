"""Registry of all decoding methods. Code that lists, describes, runs or tests methods reads this registry."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import os
import pkgutil
import sys
import threading
import zlib
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import Any

from workbench.core.errors import UnknownNameError, WorkbenchError
from workbench.core.promise import Promise
from workbench.decoders.declarations import Head
from workbench.decoders.method import Method
from workbench.methods import GROUP, OWN_METHODS

_methods: dict[str, Method] = {}
_places: dict[str, str] = {}
_of_file: dict[str, list[str]] = {}
_LOADING = threading.RLock()
_is_loaded = False


def register(entry: Method, replace: bool = False) -> Method:
    """Add a decoding method to the registry, and return it.

    Packages of `workbench.methods` need not call this: the registry adds their `METHOD`.

    Args:
        entry: the method.
        replace: whether to replace a method of that name, for a notebook cell that is run repeatedly.

    Raises:
        ValueError: the name is taken (the message names the files of both methods); or another method has a different
            net for the same type of head; or the method's drafter, verifier, policies and tree builders do not give the
            promised output.
    """
    current = inspect.currentframe()  # inspect.stack() reads every file of the stack: 0.1 s per method
    assert current is not None
    frame = current.f_back
    assert frame is not None
    return _register(entry, f"{frame.f_code.co_filename}:{frame.f_lineno}", replace)


def _register(entry: Method, place: str, replace: bool = False) -> Method:
    if entry.name in _methods and not replace:
        raise ValueError(f"Method {entry.name!r} is registered twice: {_places[entry.name]} and {place}.")
    for registered in () if replace else _methods.values():
        if (
            (head := entry.head)
            and (other_head := registered.head)
            and head.kind == other_head.kind
            and head.net is not other_head.net
        ):
            raise ValueError(
                f"The methods {entry.name} and {registered.name} declare different networks for heads of one kind, "
                f"{head.kind!r}."
            )
    _ = entry.params  # a clash of parameter names fails at import
    judges = {Promise.EXACT: entry.verifiers[:1], Promise.SIMULATION: entry.verifiers}.get(entry.promise, ())
    for reason in filter(None, map(entry.unsound_reason, judges)):
        raise ValueError(
            f"Method {entry.name!r} declares promise={entry.promise.value}, which its parts do not keep. {reason}"
        )
    _methods[entry.name], _places[entry.name] = entry, place
    return entry


def _load_catalogue() -> tuple[str, ...]:
    """Load the decoding methods that come with the workbench, once for all threads, and return their names."""
    with _LOADING:
        return _catalogue()


@cache
def _catalogue() -> tuple[str, ...]:
    """Import the packages of `workbench.methods`, register each `METHOD`, and return the methods' names in order."""
    found = pkgutil.iter_modules([str(Path(__file__).parent)], f"{__package__}.")
    modules = [importlib.import_module(info.name) for info in found if info.ispkg]
    modules = sorted((m for m in modules if hasattr(m, "METHOD")), key=lambda module: module.METHOD.order)
    return tuple(_register(module.METHOD, str(module.__file__)).name for module in modules)


def _take(found: Any, place: str) -> None:
    """Register a decoding method, or the `METHOD` of a module, unless it is registered already.

    Args:
        found: a method or a module.
        place: file or module that is named in error messages.
    """
    entry = found if isinstance(found, Method) else getattr(found, "METHOD", None)
    if isinstance(entry, Method) and _methods.get(entry.name) is not entry:
        _register(entry, place)


def _load() -> None:
    """Load all decoding methods once.

    If a file lists the methods while it is being loaded, it gets the methods loaded so far.
    """
    global _is_loaded
    with _LOADING:
        if not _is_loaded:
            _is_loaded = True
            try:
                _load_all()
            except BaseException:
                _is_loaded = (
                    False  # the file may be corrected and loaded again; files before it then replace their own methods
                )
                raise


def _load_all() -> None:
    _load_catalogue()
    for point in entry_points(group=GROUP):
        _take(point.load(), point.value)
    for place in os.environ.get(OWN_METHODS, "").split(os.pathsep):
        if place.strip():
            load(place.strip())


def load(place: str | Path) -> list[str]:
    """Run a file or import a module of user-defined methods. Reloading a file replaces its methods.

    The file or module defines `METHOD` or calls `register`.

    On failure the registry is unchanged. A module runs once per process, even if it is named several times.

    Args:
        place: a path that ends in .py, or the name of a module.

    Returns:
        Names of the methods that the file or module registered.

    Raises:
        WorkbenchError: the file or module does not exist, or fails.
    """
    _load_catalogue()
    path = Path(place).expanduser()
    is_file = path.suffix == ".py"
    source = str(path.resolve()) if is_file else str(place)
    if not is_file and source in _of_file and source in sys.modules:
        return list(_of_file[source])
    tables: list[dict[str, Any]] = [_methods, _places, _of_file]
    snapshot = [dict(table) for table in tables]
    modules = dict(sys.modules)
    try:
        for name in _of_file.pop(source, ()):
            del _methods[name], _places[name]
        old_names = set(_methods)
        if is_file:
            _run(Path(source))
        else:
            _take(importlib.import_module(source), source)
    except BaseException as error:
        for table, copy in zip(tables, snapshot, strict=True):
            table.clear()
            table.update(copy)
        _forget(_module_name(Path(source)) if is_file else source, modules)
        if not isinstance(error, (Exception, SystemExit)):
            raise
        reason = f"{type(error).__name__}: {error}"
        raise WorkbenchError(
            f"The methods of {place} cannot be loaded: {reason}", f"Correct the file, or remove it from {OWN_METHODS}."
        ) from error
    _of_file[source] = [name for name in _methods if name not in old_names]
    return list(_of_file[source])


def _run(file: Path) -> None:
    """Run a file of user-defined methods as a module, and register its `METHOD`."""
    name = _module_name(file)
    spec = importlib.util.spec_from_file_location(name, file.resolve(strict=True))
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)  # dataclasses look the module up there
    spec.loader.exec_module(module)
    _take(module, str(file))


def _module_name(file: Path) -> str:
    """Return a module name for a file of user-defined methods.

    The name depends on the folder, so that files with equal names do not collide.
    """
    return f"workbench_methods_{file.stem}_{zlib.crc32(str(file).encode()):08x}"


def _forget(name: str, modules: Mapping[str, ModuleType]) -> None:
    """Undo a failed import of user-defined methods.

    Submodules that loaded are removed too, so that the next import runs them again.

    Args:
        name: name of the module whose import failed.
        modules: `sys.modules` before the import.
    """
    for loaded in [m for m in sys.modules if m == name or m.startswith(f"{name}.")]:
        del sys.modules[loaded]
    sys.modules.update({m: module for m, module in modules.items() if m == name or m.startswith(f"{name}.")})


def names() -> list[str]:
    """Return the names of all decoding methods, in the order of the catalogue."""
    _load()
    return list(_methods)


def get(name: str) -> Method:
    """Return the decoding method with the given name.

    Raises:
        UnknownNameError: no method has this name; the message lists the nearest known names.
    """
    _load()
    if name not in _methods:
        raise UnknownNameError.of("method", name, _methods)
    return _methods[name]


def methods() -> Iterator[Method]:
    """Yield all decoding methods, in the order of the catalogue."""
    _load()
    yield from _methods.values()


def heads() -> dict[str, Head]:
    """Return the trained heads that methods or their policies and verifiers need, the first declared of each type."""
    by_kind: dict[str, Head] = {}
    for method in methods():
        for head in (method.head, *(part.head for part in method.parts)):
            if head is not None:
                by_kind.setdefault(head.kind, head)
    return by_kind


def catalogue_methods() -> Iterator[Method]:
    """Yield the decoding methods that come with the workbench, without user-defined ones."""
    yield from (_methods[name] for name in _load_catalogue())
