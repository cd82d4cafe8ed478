"""Certificate files for https, checked before the server starts."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Any

from workbench.core.errors import WorkbenchError
from workbench.service.checks import set_error_option


def certificate(certfile: str | None, keyfile: str | None) -> dict[str, Any]:
    """Check the certificate files, and return options for https, which both uvicorn and Gradio accept.

    Without a certificate there are no options.

    Args:
        certfile: PEM file with the certificate and its chain.
        keyfile: PEM file with the private key; None: it is in `certfile`.

    Raises:
        WorkbenchError: a file cannot be read, or the key does not match; `option` names the option.
    """
    if certfile is None:
        if keyfile is not None:
            with set_error_option("ssl-certfile"):
                raise WorkbenchError("A private key for https needs the matching certificate.", "Give --ssl-certfile.")
        return {}
    for option, name in (("ssl-certfile", certfile), ("ssl-keyfile", keyfile)):
        if name is not None and not Path(name).is_file():
            with set_error_option(option):
                raise WorkbenchError(f"There is no file {name}.", "Give a file in PEM format.")
    with set_error_option("ssl-certfile"):
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certfile, keyfile, password=_no_password)
        except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
            reason = getattr(error, "reason", None) or getattr(error, "strerror", None) or str(error)
            raise WorkbenchError(
                f"The certificate cannot be used: {reason}.", "Give the certificate and its private key in PEM format."
            ) from None
    return {"ssl_certfile": certfile, "ssl_keyfile": keyfile or certfile}


def _no_password() -> str:
    raise ValueError("the private key is protected by a password")
