"""Files for https, checked before anything is served."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Any

from workbench.core.errors import WorkbenchError
from workbench.service.checks import about


def certificate(certfile: str | None, keyfile: str | None) -> dict[str, Any]:
    """Options for https as uvicorn and Gradio name them; empty where no file is named.

    Args:
        certfile: the certificate and those that lead to it, in PEM format.
        keyfile: its key; None: it is in the same file.

    Raises:
        WorkbenchError: the files cannot be read, or do not belong together; `option` says which.
    """
    if certfile is None:
        if keyfile is not None:
            with about("ssl-certfile"):
                raise WorkbenchError("A key for https needs its certificate.", "Give --ssl-certfile.")
        return {}
    for option, name in (("ssl-certfile", certfile), ("ssl-keyfile", keyfile)):
        if name is not None and not Path(name).is_file():
            with about(option):
                raise WorkbenchError(f"There is no file {name}.", "Give a file in PEM format.")
    with about("ssl-certfile"):
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certfile, keyfile, password=_no_password)
        except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
            why = getattr(error, "reason", None) or getattr(error, "strerror", None) or str(error)
            raise WorkbenchError(f"The certificate cannot be used: {why}.", "Give it and its key in PEM.") from None
    return {"ssl_certfile": certfile, "ssl_keyfile": keyfile or certfile}


def _no_password() -> str:
    raise ValueError("the key has a password")
