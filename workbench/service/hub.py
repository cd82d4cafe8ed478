"""Find the files of a model on this machine, or download them from the Hugging Face Hub. Imports no PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from huggingface_hub import HfApi, ModelInfo, constants, snapshot_download, try_to_load_from_cache
from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError
from huggingface_hub.utils import filter_repo_objects

from workbench.core.errors import CapacityError, ModelError, WorkbenchError
from workbench.models import converted_models, model_index
from workbench.models.downloads import FILES, download_files
from workbench.models.local_models import path_of
from workbench.models.model_index import SOON_S
from workbench.models.names import locate
from workbench.service.names import check_name, offline_models_hint
from workbench.service.progress import CONVERTING, DOWNLOADING, Progress, megabytes

PATIENCE_S = 5.0
"""Time limit for the Hub's first response, in seconds."""


def check(name: str) -> None:
    """Refuse a Hub id that cannot be loaded, without downloading the model.

    A model in the local cache is accepted without a request. If the Hub does not answer within `PATIENCE_S`, the id is
    accepted: `fetch` waits longer.

    Raises:
        ModelError: the model does not exist, is not accessible, or has no safetensors; or it is not in the cache and
            offline mode is on.
    """
    if isinstance(try_to_load_from_cache(name, "config.json"), str):
        return
    if constants.HF_HUB_OFFLINE:
        _cached(name)
        return
    info = _model_info(name, SOON_S)
    if info is not None:
        _sizes(name, info)


def fetch(name: str, progress: Progress, most_bytes: int) -> str:
    """Return the folder with a model's files, after downloading or converting them if necessary.

    Args:
        name: bundled or published name, folder, GGUF file, or Hub id.
        progress: progress to update with the stage and the bytes.
        most_bytes: maximum size of the weights to download, in bytes.

    Raises:
        ModelError: the model does not exist, is not accessible, has no safetensors, or there is no network.
        CapacityError: the weights are too large.
        WorkbenchError: the conversion failed.
    """
    if model := model_index.MODEL_INDEX.get(name):
        return str(
            model_index.obtain(model, lambda: Path(fetch(model.hub_id, progress, most_bytes)), _copying(progress))
        )
    if converted_models.is_gguf(name):
        return str(converted_models.convert(path_of(name), _copying(progress)))
    location = locate(name)
    if path_of(location).is_dir():
        return location
    check_name(name)
    info = _model_info(name, PATIENCE_S)
    if info is None:
        return _cached(name)
    files = _sizes(name, info)
    weights = sum(size for file, size in files.items() if file.endswith(".safetensors"))
    if weights > most_bytes:
        raise CapacityError(
            f"{name} has {megabytes(weights)} of weights, and the memory limit is {megabytes(most_bytes)}.",
            "Use a smaller model.",
        )
    progress.stage(DOWNLOADING, sum(files.values()))
    try:
        return download_files(name, progress.reach, etag_timeout=PATIENCE_S)
    except WorkbenchError:
        raise
    except Exception as error:  # the HTTP library's own errors and timeouts, a full disk
        raise ModelError(
            f"{name} could not be downloaded from the Hugging Face Hub.", f"Try again. {offline_models_hint()}"
        ) from error


def _sizes(name: str, info: ModelInfo) -> dict[str, int]:
    """Return the names of the Hub files that are needed to load a model, with their sizes in bytes."""
    sizes = {s.rfilename: s.size or 0 for s in info.siblings or []}
    files = {file: sizes[file] for file in filter_repo_objects(sizes, **FILES)}
    if not any(file.endswith(".safetensors") for file in files):
        raise ModelError(
            f"{name} has no safetensors files.", f"No other format of weights is supported. {offline_models_hint()}"
        )
    return files


def _model_info(name: str, patience_s: float) -> ModelInfo | None:
    """Return the Hub's information on a model; None if the Hub cannot be reached.

    Args:
        name: Hub id of the model.
        patience_s: time limit for the response, in seconds.
    """
    try:
        return HfApi().model_info(name, timeout=patience_s, files_metadata=True)
    except GatedRepoError as error:
        raise ModelError(
            f"The model {name} is gated on the Hugging Face Hub: its owners must grant you access.",
            f"Ask for access on the model's page, and set HF_TOKEN where the backend runs. {offline_models_hint()}",
        ) from error
    except RepositoryNotFoundError as error:
        raise ModelError(
            f"The Hugging Face Hub has no model {name}, or the model is private.",
            f"Check the spelling; for a private model set HF_TOKEN where the backend runs. {offline_models_hint()}",
        ) from error
    except Exception:  # errors of the HTTP library, time-outs, HF_HUB_OFFLINE: the Hub cannot be reached
        return None


def _cached(name: str) -> str:
    """Return the folder of a model that was downloaded earlier, for use without the Hub."""
    try:
        return snapshot_download(name, local_files_only=True, **FILES)
    except (OSError, ValueError) as error:
        raise ModelError(
            f"{name} is not on this machine, and the Hugging Face Hub cannot be reached.", offline_models_hint()
        ) from error


def _copying(progress: Progress) -> Callable[[int, int], None]:
    """Return a callback (converted bytes, total bytes) that updates `progress` during a conversion."""

    def update(done: int, total: int) -> None:
        if not done:
            progress.stage(CONVERTING, total)
        progress.reach(done)

    return update
