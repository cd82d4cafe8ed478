"""Resolve the model names that users enter, and check whether users may use these models."""

from __future__ import annotations

from collections.abc import Sequence

from workbench.core.errors import ModelError
from workbench.models.bundle import bundled
from workbench.models.converted_models import is_gguf
from workbench.models.local_models import HubId, path_of, short_name
from workbench.models.model_index import MODEL_INDEX, local_folder
from workbench.models.names import bundled_drafter

Pair = tuple[str, str | None]
"""Names of a target and its draft model."""


class Names:
    """Resolve and check the model names that users enter.

    Args:
        target: default target.
        drafter: default draft model of the default target; "auto": the draft model bundled for it.
        allow: models that may be used besides `target`, `drafter` and the bundled and published ones; None: any name,
            folder, GGUF file or Hub id.
        folders: whether users may name folders and files of this machine. For a public server it is False: a name that
            is not listed is then read as a Hub id, so that users cannot find out which files exist or where allowed
            models lie.

    Attributes:
        target: name of the default target; for a local folder, the short name from `workbench.models.local_models`.
        allowed: names of the models in `allow`, in the same order.
    """

    def __init__(self, target: str, drafter: str | None, allow: Sequence[str] | None, folders: bool = True) -> None:
        self.folders = folders
        self.target, self.drafter = short_name(target), drafter and short_name(drafter)
        self.allowed = tuple(map(short_name, allow or ()))
        paths = (
            {*(allow or ()), target, drafter} if folders else set()
        )  # clients of a remote server must not learn these paths
        self._allow = None if allow is None else {*paths, *self.allowed, self.target, self.drafter}

    @property
    def restricted(self) -> bool:
        """Return whether users may use only listed models."""
        return self._allow is not None

    def resolve_pair(self, target: str | None, drafter: str | None, blind: bool = False) -> Pair:
        """Resolve the names of a target and a draft model.

        Args:
            target: name of the target; None: the default.
            drafter: name of the draft model; None: the default draft model of the target; "none": no draft model.
            blind: whether the method's drafter ignores images; then a draft model that was trained without images is
                preferred.

        Raises:
            ModelError: a name is invalid, or the model is not allowed.
        """
        target = self.resolve(target or self.target)
        if drafter in (None, "", "auto"):
            drafter = self.drafter if target == self.target else None
        if drafter in ("auto", None):
            drafter = bundled_drafter(target, blind)
        if drafter in (None, "none"):
            return target, None
        return target, self.resolve(drafter)

    def resolve(self, name: str) -> str:
        """Check the model name that a user entered, and return the model's name, shortened for a local folder.

        Raises:
            ModelError: the name is invalid, or the model is not allowed.
        """
        known_names = {*bundled(), *MODEL_INDEX, *self.allowed, self.target, self.drafter}
        if not self.folders and isinstance(name, str) and name not in known_names:
            name = HubId(name)
        self._check(name)
        return short_name(name)

    def may_use(self, name: str) -> bool:
        """Return whether users may use a model. A restricted server does not convert models from installed packages."""
        return self._allow is None or name in self._allow or name in bundled() or name in _ready_published_models()

    def _check(self, name: str) -> None:
        """Refuse the name of a model that users may not use, before the file system is searched for it."""
        if not self.may_use(name):
            allowed = [*bundled(), *_ready_published_models()]
            raise ModelError("This server does not allow the requested model.", f"Use one of: {', '.join(allowed)}.")
        check_name(name)


def _ready_published_models() -> list[str]:
    """Return the names of the published models whose files are ready on this machine."""
    return [name for name, model in MODEL_INDEX.items() if local_folder(model)]


def check_name(name: str) -> None:
    """Refuse a name that cannot be a bundled model, a folder, a GGUF file or a Hub id. Needs no network.

    Raises:
        ModelError: the name is invalid; the error's remedy shows the form of a valid name.
    """
    if not isinstance(name, str) or not name or "\0" in name or len(name) > 400:
        raise ModelError("The given value is not the name of a model.", offline_models_hint())
    problem = f"{name!r} is not the name of a model."
    try:
        if _is_local(name):
            return
    except (OSError, RuntimeError) as error:  # a path may be too long, or of an unknown user
        raise ModelError(problem, f"A Hub id has the form owner/name. {offline_models_hint()}") from error
    from huggingface_hub.errors import HFValidationError  # takes half a second, which local names do not need
    from huggingface_hub.utils import validate_repo_id

    try:
        validate_repo_id(name)
    except HFValidationError as error:
        raise ModelError(problem, f"A Hub id is owner/name. {offline_models_hint()}") from error


def _is_local(name: str) -> bool:
    return (
        name in bundled()
        or name in MODEL_INDEX
        or is_gguf(name)
        or path_of(name).is_dir()
        or name.startswith((".", "/", "~"))
    )


def offline_models_hint() -> str:
    """Return a sentence that lists the models that can be used without a network."""
    names = ", ".join(bundled())
    return f"These models need no network: {names}." if names else "A model in a local folder needs no network."
