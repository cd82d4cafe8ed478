"""Check the names of models, devices and methods, and whether they fit each other, without importing PyTorch."""

from __future__ import annotations

import errno
import json
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from workbench.core.errors import MethodUnavailableError, ModelError, TokenizerMismatchError, WorkbenchError
from workbench.kernels.devices import check_device, check_dtype
from workbench.methods import method_info
from workbench.methods.choice import choose
from workbench.models import converted_models, model_index
from workbench.models.local_models import path_of
from workbench.models.names import locate
from workbench.models.weight_files import weight_files
from workbench.service.choices import mismatch, static_reasons
from workbench.service.names import Names, Pair, check_name
from workbench.trace.files import read_regular


def check_models(
    target: str, drafter: str | None = "auto", device: str = "auto", dtype: str = "auto", drafter_dtype: str = "auto"
) -> Pair:
    """Refuse models, devices and number formats that cannot be used on this machine.

    The network is used only to check a Hub id.

    Returns:
        Names of the target and the draft model.

    Raises:
        ModelError: a model, device or format cannot be used; `option` names the argument.
    """
    options = {"device": (check_device, device), "target": (check_model, target)}
    if drafter not in (None, "", "auto", "none"):
        options["drafter"] = (check_model, str(drafter))
    for option, (check, value) in options.items():
        with set_error_option(option):
            check(value)
    for option, value in (("dtype", dtype), ("drafter-dtype", drafter_dtype)):
        with set_error_option(option):
            check_dtype(value, device)
    return Names(target, drafter, None).resolve_pair(None, drafter)


@contextmanager
def set_error_option(option: str) -> Iterator[None]:
    """Context manager that sets the attribute `option` of every `WorkbenchError` raised within it.

    The attribute names the command-line option with the wrong value.
    """
    try:
        yield
    except WorkbenchError as error:
        error.option = error.option or option
        raise


def check_model(name: str) -> None:
    """Refuse a name that is not a model: an unknown one, a folder without configuration or weights, or a trained head.

    Raises:
        ModelError: the name is not a model.
    """
    check_name(name)
    if model := model_index.MODEL_INDEX.get(name):
        return _check_published(model)
    if converted_models.is_gguf(name):
        return converted_models.check_gguf(path_of(name))
    folder = Path(locate(name))
    if not folder.is_dir():
        from workbench.service.hub import check  # imports the Hub's library, which other names do not need

        check(name)
        return
    try:
        config = json.loads(read_regular(folder / "config.json"))
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "it is damaged"
        raise ModelError(f"The config.json of {name} cannot be read: {reason}.", "Download the folder again.") from None
    if "workbench_head" in config:
        raise ModelError(
            f"{name} is a drafting head trained for {config.get('target')}, not a complete model.",
            f"Use {config.get('target')} as the target; methods find its heads automatically.",
        )
    if not weight_files(folder):
        raise ModelError(
            f"{folder} contains no *.safetensors file, the only supported format of weights.",
            "Download the weights in the safetensors format.",
        )


def _check_published(model: model_index.IndexedModel) -> None:
    """Refuse a published model that is neither on this machine nor on the Hub. The model is not downloaded."""
    if model_index.local_folder(model) or model_index.packaged_file(model):
        return
    from workbench.service.hub import check

    try:
        check(model.hub_id)
    except ModelError as error:
        raise model_index.unavailable_error(model, error.message) from error


def check_port(host: str, port: int) -> None:
    """Refuse a network address that this machine does not have, or a port that is in use.

    Args:
        host: address to listen on.
        port: port to listen on; 0: any free port.

    Raises:
        WorkbenchError: the address or the port cannot be used; the error's `option` is "host" or "port".
    """
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind) as trial:
            trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            trial.bind(address)
    except (OSError, OverflowError, UnicodeError) as error:
        reasons = {errno.EADDRINUSE: "is in use", errno.EACCES: "needs more privileges"}
        reason = reasons.get(getattr(error, "errno", None) or 0)
        with set_error_option("port" if reason else "host"):
            if reason:
                raise WorkbenchError(f"Port {port} {reason}.", "Choose another port, or 0 for any free port.") from None
            raise WorkbenchError(f"{host!r} is not an address of this machine.", "Use 127.0.0.1 or 0.0.0.0.") from None


def check_vocabulary(pair: Pair) -> None:
    """Refuse a draft model whose vocabulary differs from the target's. Only the models' files are compared.

    Raises:
        TokenizerMismatchError: the vocabularies differ.
    """
    if message := mismatch(*pair):
        raise TokenizerMismatchError(
            message,
            "Choose a draft model of the target's family, a method that needs no draft model, or the method "
            "omnidraft, which translates between vocabularies.",
        )


def check_method(name: str, values: Mapping[str, Any], pair: Pair) -> method_info.MethodInfo:
    """Check a method's name and parameters, and whether the files of the given models meet its requirements.

    Args:
        name: name of the method.
        values: values of parameters by name.
        pair: names of the target and the draft model.

    Returns:
        Description of the method from the registry of methods.

    Raises:
        UnknownNameError: there is no such method or parameter.
        ParameterError: a value is wrong.
        TokenizerMismatchError: the draft model has another vocabulary.
        MethodUnavailableError: the models lack something that the method needs.
    """
    with set_error_option("method"):
        method_info.get(name)
    with set_error_option("set"):
        method = method_info.check(name, values)
    if "drafter" in method.needs:
        with set_error_option("drafter"):
            check_vocabulary(pair)
    if reason := static_reasons(*pair)(method.needs):
        raise MethodUnavailableError(f"{method.title} cannot run: {reason}", runnable_methods_hint(pair))
    return method


def runnable_methods_hint(pair: Pair) -> str:
    """Return a sentence that lists the methods that can run with the given target and draft model."""
    reason = static_reasons(*pair)
    names = [m.name for m in method_info.methods() if not reason(m.needs) and m.promise != "simulation"]
    return f"These methods can run on {pair[0]}: {', '.join(names)}."


def choose_method(pair: Pair) -> tuple[str, str]:
    """Return the default method for a target and a draft model.

    The second value says why this is not the usual default method; it is empty if it is.
    """
    reason = static_reasons(*pair)
    return choose(lambda name: reason(method_info.get(name).needs))
