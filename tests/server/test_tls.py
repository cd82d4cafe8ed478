"""https with certificate files that are checked before the server starts."""

from __future__ import annotations

import ssl
import subprocess
from pathlib import Path

import httpx
import pytest
import serving
from ui.fake_client import FakeWorkbench

from workbench.core.errors import WorkbenchError
from workbench.server.access_control import AccessControl
from workbench.server.tls import certificate
from workbench.ui import build, space


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a certificate for localhost, its key, and a key that does not match."""
    folder = tmp_path_factory.mktemp("tls")
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
               "-days", "2", "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]  # fmt: skip
    try:
        for key, cert in (("key.pem", "cert.pem"), ("other.pem", "unused.pem")):
            subprocess.run([*command, "-keyout", folder / key, "-out", folder / cert], check=True, capture_output=True)
    except FileNotFoundError:
        pytest.skip("no openssl here")
    return folder


def test_the_app_serves_https_and_its_cookie_is_secure(files: Path) -> None:
    https = certificate(str(files / "cert.pem"), str(files / "key.pem"))
    demo, port = build(FakeWorkbench()), serving.free_port()
    options = space.launch_options(FakeWorkbench(), AccessControl(key="a key of some length"))
    demo.launch(server_port=port, quiet=True, ssl_verify=False, **https, **options)
    try:
        trusted = ssl.create_default_context(cafile=str(files / "cert.pem"))
        with httpx.Client(base_url=f"https://localhost:{port}", verify=trusted) as http:
            assert http.get("/health").json() == {"status": "ok"}
            assert http.get("/config").status_code == 401
            let_in = http.post("/", data={"key": "a key of some length"}, headers={"origin": str(http.base_url)})
            assert "secure" in let_in.headers["set-cookie"].lower()
            assert http.get("/config").status_code == 200
    finally:
        demo.close()


@pytest.mark.parametrize(("cert", "key", "option", "said"), [
    (None, "key.pem", "ssl-certfile", "needs the matching certificate"),
    ("nowhere.pem", "key.pem", "ssl-certfile", "There is no file"),
    ("cert.pem", "nowhere.pem", "ssl-keyfile", "There is no file"),
    ("cert.pem", "other.pem", "ssl-certfile", "cannot be used"),
    ("cert.pem", None, "ssl-certfile", "cannot be used"),
    ("key.pem", "key.pem", "ssl-certfile", "cannot be used"),
])  # fmt: skip
def test_files_that_cannot_serve_https_are_refused(
    files: Path, cert: str | None, key: str | None, option: str, said: str
) -> None:
    with pytest.raises(WorkbenchError, match=said) as caught:
        certificate(cert and str(files / cert), key and str(files / key))
    assert caught.value.option == option


def test_without_files_there_is_no_https() -> None:
    assert certificate(None, None) == {}
