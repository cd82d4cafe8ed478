"""Open the files of a checkpoint (a configuration and safetensors), and read tensors by name. Pickles are refused."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError, safe_open

from workbench.core.errors import ModelError
from workbench.models.bundle import check_files
from workbench.models.weight_files import weight_files

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

PICKLES = (".pt", ".pth", ".bin", ".pkl", ".ckpt")
_CONVERT = (
    "python -c \"import torch; from safetensors.torch import save_file; w = torch.load('{old}', map_location='cpu', "
    "weights_only=True); save_file({{k: v.clone().contiguous() for k, v in w.items()}}, '{new}')\""
)


@dataclass(frozen=True, slots=True)
class CheckpointFiles:
    """Index of a checkpoint's files: configuration, tensor names and tensor shapes, without the values.

    Attributes:
        folder: folder of the files.
        config: contents of config.json; {} if the file does not exist.
        shapes: shape of each tensor, by name.
        files: file of each tensor, by name.
    """

    folder: Path
    config: dict[str, Any]
    shapes: Mapping[str, tuple[int, ...]]
    files: Mapping[str, Path]

    def array(self, name: str) -> np.ndarray:
        """Read a tensor of integers or booleans from the checkpoint, without PyTorch.

        Raises:
            ModelError: the tensor cannot be read.
        """
        with _opened(self.files[name], "np") as file:
            return file.get_tensor(name)

    def rows(self, name: str, indices: Iterable[int]) -> Tensor:
        """Read some rows of a tensor of the checkpoint; the other rows are not read.

        Raises:
            ModelError: the tensor cannot be read.
        """
        import torch

        with _opened(self.files[name], "pt") as file:
            tensor = file.get_slice(name)
            return torch.cat([tensor[index : index + 1] for index in indices])

    def tensors(self, names: Iterable[str]) -> dict[str, Tensor]:
        """Read several tensors of the checkpoint, and return them by name.

        Raises:
            ModelError: a tensor cannot be read.
        """
        tensors: dict[str, Tensor] = {}
        name_list = list(names)
        for path in sorted({self.files[name] for name in name_list}):
            with _opened(path, "pt") as file:
                tensors |= {name: file.get_tensor(name) for name in name_list if self.files[name] == path}
        return tensors


def open_checkpoint(place: Path) -> CheckpointFiles:
    """Open the checkpoint in a folder, or in one safetensors file with a config.json next to it.

    Raises:
        ModelError: the path does not exist; weights are pickles, truncated or in two files; or the configuration is
            damaged.
    """
    place = place.expanduser()
    if place.suffix in PICKLES and place.is_file():
        raise _pickled(place)
    if not place.exists():
        raise ModelError(f"There is no file or folder {place}.", "Give a folder with config.json and *.safetensors.")
    folder, single_file = (place, None) if place.is_dir() else (place.parent, place)
    check_files(folder)
    paths = weight_files(folder) if single_file is None else [single_file]
    if not paths:
        pickles = [path for path in sorted(folder.iterdir()) if path.suffix in PICKLES]
        if pickles:
            raise _pickled(pickles[0])
        raise ModelError(f"{folder} contains no *.safetensors file.", "Give the folder with the weights of the heads.")
    shapes: dict[str, tuple[int, ...]] = {}
    files: dict[str, Path] = {}
    for path in paths:
        with _opened(path, "np") as file:
            for name in file.keys():  # noqa: SIM118 (no mapping)
                if name in files:
                    raise ModelError(
                        f"The tensor {name} is in two files, {files[name].name} and {path.name}.",
                        "Give the path of the file that should be used.",
                    )
                shapes[name], files[name] = tuple(file.get_slice(name).get_shape()), path
    return CheckpointFiles(folder, _config(folder), shapes, files)


def _config(folder: Path) -> dict[str, Any]:
    path = folder / "config.json"
    if not path.is_file():
        return {}
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        config = None
    if not isinstance(config, dict):
        raise ModelError(f"{path} is damaged: it is not a JSON object.", "Download the folder again.")
    return config


class _opened:
    """Open a safetensors file in a context; convert the errors of `safe_open` to ModelError."""

    def __init__(self, path: Path, framework: str) -> None:
        self.path, self.framework = path, framework

    def __enter__(self) -> Any:
        try:
            self._file = safe_open(self.path, self.framework)
            return self._file.__enter__()
        except (SafetensorError, OSError) as error:
            raise _damaged(self.path, error) from None

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        self._file.__exit__(kind, error, traceback)
        if isinstance(error, (SafetensorError, OSError, TypeError)):
            raise _damaged(self.path, error) from None


def _damaged(path: Path, error: BaseException) -> ModelError:
    why = " ".join(str(error).split())[:200]
    return ModelError(f"{path} is truncated or damaged: {why}", "Download the file again.")


def _pickled(path: Path) -> ModelError:
    new = path.with_suffix(".safetensors")
    return ModelError(
        f"{path} is a pickle, which can run any program when it is opened; only safetensors are supported.",
        f"If you trust the file, convert it: {_CONVERT.format(old=path, new=new)}",
    )
