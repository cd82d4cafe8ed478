"""Files of a model: on this machine, or fetched from the Hugging Face Hub first. Brings no PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from huggingface_hub import HfApi, ModelInfo, constants, snapshot_download, try_to_load_from_cache
from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError
from huggingface_hub.utils import filter_repo_objects

from workbench.core.errors import CapacityError, ModelError, WorkbenchError
from workbench.engine import converted, published
from workbench.engine.downloads import FILES, fetched
from workbench.engine.names import locate
from workbench.engine.placed import path_of
from workbench.engine.published import SOON_S
from workbench.service.names import check_name, offer
from workbench.service.progress import CONVERTING, DOWNLOADING, Progress, megabytes

PATIENCE_S = 5.0
"""Seconds to wait for the Hub's first answer."""


def check(name: str) -> None:
    """Refuse a Hub id of which it is known before anything is loaded that `fetch` would refuse it; downloads nothing.

    An earlier download is not asked after. A Hub that does not answer soon refuses nothing: `fetch` waits longer.

    Raises:
        ModelError: not found, not open to us, no safetensors; or not on this machine, and the Hub may not be asked.
    """
    if isinstance(try_to_load_from_cache(name, "config.json"), str):
        return
    if constants.HF_HUB_OFFLINE:
        _kept(name)
        return
    info = _ask(name, SOON_S)
    if info is not None:
        _sizes(name, info)


def fetch(name: str, progress: Progress, most_bytes: int) -> str:
    """The folder with a model's files, fetched or made unless it is here already; progress is told.

    Args:
        name: bundled or published name, folder, GGUF file, or Hub id.
        progress: told the stage and the bytes.
        most_bytes: refuse a download whose weights alone are larger.

    Raises:
        ModelError: not found, not open to us, no safetensors, or no network.
        CapacityError: too large.
        WorkbenchError: a copy that is needed cannot be made.
    """
    if model := published.PUBLISHED.get(name):
        return str(published.obtain(model, lambda: Path(fetch(model.hub_id, progress, most_bytes)), _copying(progress)))
    if converted.is_gguf(name):
        return str(converted.convert(path_of(name), _copying(progress)))
    place = locate(name)
    if path_of(place).is_dir():
        return place
    check_name(name)
    info = _ask(name, PATIENCE_S)
    if info is None:
        return _kept(name)
    files = _sizes(name, info)
    weights = sum(size for file, size in files.items() if file.endswith(".safetensors"))
    if weights > most_bytes:
        raise CapacityError(
            f"{name} has {megabytes(weights)} of weights; {megabytes(most_bytes)} may be used.", "Use a smaller model."
        )
    progress.stage(DOWNLOADING, sum(files.values()))
    try:
        return fetched(name, progress.reach, etag_timeout=PATIENCE_S)
    except WorkbenchError:
        raise
    except Exception as error:  # the HTTP library's own errors and timeouts, a full disk
        raise ModelError(f"{name} could not be fetched from the Hub.", f"Try again. {offer()}") from error


def _sizes(name: str, info: ModelInfo) -> dict[str, int]:
    """The files that a model needs, with their bytes."""
    sizes = {s.rfilename: s.size or 0 for s in info.siblings or []}
    files = {file: sizes[file] for file in filter_repo_objects(sizes, **FILES)}
    if not any(file.endswith(".safetensors") for file in files):
        raise ModelError(f"{name} has no safetensors files.", f"Only these are opened here. {offer()}")
    return files


def _ask(name: str, patience_s: float) -> ModelInfo | None:
    """What the Hub knows of a model; None when the Hub cannot be reached."""
    try:
        return HfApi().model_info(name, timeout=patience_s, files_metadata=True)
    except GatedRepoError as error:
        raise ModelError(
            f"{name} is open only to those its owners let in.",
            f"Ask for access on its page and set HF_TOKEN where the backend runs. {offer()}",
        ) from error
    except RepositoryNotFoundError as error:
        raise ModelError(
            f"The Hub has no model {name}, or it is private.",
            f"Check the spelling; for a private one set HF_TOKEN where the backend runs. {offer()}",
        ) from error
    except Exception:  # the HTTP library's own errors, timeouts, HF_HUB_OFFLINE: the Hub is out of reach
        return None


def _kept(name: str) -> str:
    """An earlier download, when the Hub is out of reach."""
    try:
        return snapshot_download(name, local_files_only=True, **FILES)
    except (OSError, ValueError) as error:
        raise ModelError(
            f"{name} is not on this machine, and the Hugging Face Hub cannot be reached.", offer()
        ) from error


def _copying(progress: Progress) -> Callable[[int, int], None]:
    """What tells `progress` how far a copy is."""

    def told(done: int, total: int) -> None:
        if not done:
            progress.stage(CONVERTING, total)
        progress.reach(done)

    return told
