"""Which models are meant by what a user said, and whether they may be used here."""

from __future__ import annotations

from collections.abc import Sequence

from workbench.core.errors import ModelError
from workbench.engine.bundle import bundled
from workbench.engine.converted import is_gguf
from workbench.engine.names import own_drafter
from workbench.engine.placed import HubId, named, path_of
from workbench.engine.published import PUBLISHED, here

Pair = tuple[str, str | None]
"""A target and the draft model beside it."""


class Names:
    """Turns what a user said into names of models.

    Args:
        target: used when none is named.
        drafter: used with that target when none is named; "auto": the bundled one, if the target is.
        allow: names that may be used besides the bundled and published ones and these two; None: any name, folder, GGUF
            file or Hub id.
        folders: whether other names than the default ones may be those of folders and files of this machine; False
            where strangers say them: those are of the Hub then, and nobody learns what lies here, nor by which path the
            target and what is allowed were named.

    Attributes:
        target: the name of the default target; folders go by their names, see `workbench.engine.placed`.
        allowed: what `allow` says, in its order.
    """

    def __init__(self, target: str, drafter: str | None, allow: Sequence[str] | None, folders: bool = True) -> None:
        self.folders = folders
        self.target, self.drafter = named(target), drafter and named(drafter)
        self.allowed = tuple(map(named, allow or ()))
        typed = {*(allow or ()), target, drafter} if folders else set()  # paths, which strangers must not guess
        self._allow = None if allow is None else {*typed, *self.allowed, self.target, self.drafter}

    @property
    def restricted(self) -> bool:
        """Whether only certain models may be used."""
        return self._allow is not None

    def pair(self, target: str | None, drafter: str | None, blind: bool = False) -> Pair:
        """The models that are meant.

        Args:
            target: None is the default one.
            drafter: None is the one that belongs to the target, "none" is none.
            blind: the method leaves pictures out, so one that was trained without them suits it better.

        Raises:
            ModelError: this is no name of a model, or one that may not be used here.
        """
        target = self.name(target or self.target)
        if drafter in (None, "", "auto"):
            drafter = self.drafter if target == self.target else None
        if drafter in ("auto", None):
            drafter = own_drafter(target, blind)
        if drafter in (None, "none"):
            return target, None
        return target, self.name(drafter)

    def name(self, said: str) -> str:
        """The name of a model, from what a user said.

        Raises:
            ModelError: this is no name of a model, or one that may not be used here.
        """
        own = {*bundled(), *PUBLISHED, *self.allowed, self.target, self.drafter}
        if not self.folders and isinstance(said, str) and said not in own:
            said = HubId(said)
        self._check(said)
        return named(said)

    def may_use(self, name: str) -> bool:
        """Return whether a model may be used here: strangers may not have one made from a package of this machine."""
        return self._allow is None or name in self._allow or name in bundled() or name in _at_hand()

    def _check(self, name: str) -> None:
        """Before anything is looked up: a name that is not allowed must not reach the file system."""
        if not self.may_use(name):
            known = [*bundled(), *_at_hand()]
            raise ModelError("This model may not be used here.", f"Use one of: {', '.join(known)}.")
        check_name(name)


def _at_hand() -> list[str]:
    """Published models that are on this machine: strangers make it fetch and convert none."""
    return [name for name, model in PUBLISHED.items() if here(model)]


def check_name(name: str) -> None:
    """Refuse what can be neither a bundled name, nor a folder, nor a Hub id. Opens no connection.

    Raises:
        ModelError: with the form a name has.
    """
    if not isinstance(name, str) or not name or "\0" in name or len(name) > 400:
        raise ModelError("This is not the name of a model.", offer())
    problem = f"{name!r} is not the name of a model."
    try:
        if _is_local(name):
            return
    except (OSError, RuntimeError) as error:  # a path may be too long, or of an unknown user
        raise ModelError(problem, f"A Hub id is owner/name. {offer()}") from error
    from huggingface_hub.errors import HFValidationError  # half a second that local names need not wait for
    from huggingface_hub.utils import validate_repo_id

    try:
        validate_repo_id(name)
    except HFValidationError as error:
        raise ModelError(problem, f"A Hub id is owner/name. {offer()}") from error


def _is_local(name: str) -> bool:
    return (
        name in bundled()
        or name in PUBLISHED
        or is_gguf(name)
        or path_of(name).is_dir()
        or name.startswith((".", "/", "~"))
    )


def offer() -> str:
    """Models that can be had without a network, in a sentence."""
    names = ", ".join(bundled())
    return f"These need no network: {names}." if names else "A local folder needs no network."
