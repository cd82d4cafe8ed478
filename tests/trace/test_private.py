"""Folders for files that run code must be private to this user."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from workbench.kernels.disk_cache import cache_folder, code_folder
from workbench.trace import private
from workbench.trace.private import make_private


def test_new_folder_is_private_and_stays_so(tmp_path: Path) -> None:
    place = tmp_path / "cache" / "code"
    assert make_private(place)
    assert place.stat().st_mode & 0o777 == 0o700
    assert make_private(place)


@pytest.mark.parametrize("fault", ["group", "everybody", "link", "owner", "above"])
def test_folder_writable_by_others_is_not_private_and_unchanged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    place = tmp_path / "shared" / "code"
    place.mkdir(parents=True, mode=0o700)
    if fault == "link":
        place.rename(tmp_path / "elsewhere")
        place.symlink_to(tmp_path / "elsewhere")
    modes = {"group": (place, 0o770), "everybody": (place, 0o777), "above": (place.parent, 0o777)}
    if fault in modes:
        modes[fault][0].chmod(modes[fault][1])
    if fault == "owner":
        mine = os.getuid()
        monkeypatch.setattr(os, "getuid", lambda: mine + 1)
    before = place.lstat().st_mode
    assert not make_private(place)
    assert place.lstat().st_mode == before


def test_world_writable_folder_with_sticky_bit_is_accepted(tmp_path: Path) -> None:
    (tmp_path / "tmp").mkdir()
    (tmp_path / "tmp").chmod(0o1777)
    assert make_private(tmp_path / "tmp" / "code")


def test_compiled_code_is_stored_in_a_private_folder_of_a_shared_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """numba's index files are pickles: a user who can write one can run code here."""
    monkeypatch.setenv("WORKBENCH_CACHE", str(tmp_path))
    own = code_folder("0123")
    assert own.is_relative_to(tmp_path)
    own.chmod(0o777)  # as another user may have created it before
    other = code_folder("0123")
    assert not other.is_relative_to(tmp_path)
    assert other.parent.parent.stat().st_mode & 0o077 == 0


def test_without_a_home_folder_caches_are_in_a_private_temporary_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another user may have created a folder with a fixed name in /tmp, with models or compiled code in it."""

    def fails(path: Path) -> Path:
        raise RuntimeError("Could not determine home directory.")

    for name in ("WORKBENCH_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(Path, "expanduser", fails)
    monkeypatch.setattr(private.tempfile, "tempdir", str(tmp_path))
    private.temporary_folder.cache_clear()
    try:
        for place in (cache_folder(), code_folder("0123")):
            own = tmp_path / place.relative_to(tmp_path).parts[0]
            assert own.stat().st_mode & 0o777 == 0o700
            assert re.fullmatch(r"workbench-\w{8}", own.name), "the name cannot be guessed"
    finally:
        private.temporary_folder.cache_clear()
