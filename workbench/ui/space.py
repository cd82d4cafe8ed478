"""Detect the platform of the app (localhost, or a Hugging Face Space on CPU, GPU or ZeroGPU) and its rules."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from workbench.client import Client
    from workbench.server.access_control import AccessControl

from workbench.service.limits import Limits

MAX_FILE_SIZE = 1
"""Maximum file size in bytes for Gradio's upload code, in case a request gets past `no_uploads`.

Uploads are not needed: the pages read files in the browser, and no call of the API takes a file.
"""
LISTED = "WORKBENCH_ALLOW_MODELS"
"""Environment variable with the Hub models that a public app may use besides the bundled ones, comma-separated."""
PUBLIC = "WORKBENCH_PUBLIC"
"""Environment variable that says whether the app is public, for all code that depends on it.

The option `--public` sets this variable.
"""
PUBLIC_LIMITS: dict[str, Any] = {
    "runs_per_user": 2,
    "runs_per_address": 8,
    "max_new_tokens": 1024,
    "prompt_tokens": 2048,
    "requests_per_minute": 120,
    "tokens_per_minute": 30_000,
    "call_seconds_per_minute": 10.0,
    "run_s": 900.0,
    "prompt_chars": 20_000,
    "runs": 32,
    "paused_s": 120.0,
    "kept_runs": 64,
    "trace_bytes": 256 << 20,
}
"""Limits of a public app; see `workbench.service.limits.Limits`."""
_TRUE = ("1", "t", "true")  # values that the `spaces` package accepts as true


class Mode(str, Enum):
    """Platform on which the app runs, such as localhost or a Hugging Face Space."""

    LOCAL = "local"
    SPACE_CPU = "space-cpu"
    SPACE_GPU = "space-gpu"
    ZEROGPU = "zerogpu"


@dataclass(frozen=True)
class Platform:
    """Platform on which the app runs, and its rules for visitors.

    Attributes:
        mode: platform on which the app runs.
        public: whether anybody may reach the app. If so, limits are lower, and only the Hub models in an allow-list may
            be used.
        allow_models: models that may be used besides the bundled ones; None: any model of the Hub. The app may
            use only the local folders that it was started with.
    """

    mode: Mode
    public: bool
    allow_models: tuple[str, ...] | None


def detect(env: Mapping[str, str] | None = None, public: bool = False) -> Platform:
    """Detect the platform from environment variables, without importing PyTorch. Every Space counts as public.

    Args:
        env: environment variables; by default those of this process.
        public: whether to treat localhost as public, too.
    """
    env = os.environ if env is None else env
    if env.get("SPACES_ZERO_GPU", "").lower() in _TRUE:
        mode = Mode.ZEROGPU
    elif env.get("SPACE_ID"):
        mode = Mode.SPACE_GPU if _has_gpu(env) else Mode.SPACE_CPU
    else:
        mode = Mode.LOCAL
    public = public or mode is not Mode.LOCAL or env.get(PUBLIC, "").lower() in _TRUE
    allowed_names = tuple(name.strip() for name in env.get(LISTED, "").split(",") if name.strip())
    return Platform(mode, public, allowed_names if public or allowed_names else None)


def _has_gpu(env: Mapping[str, str]) -> bool:
    accelerator = env.get("ACCELERATOR", "").lower()
    return accelerator not in ("", "none", "cpu") or Path("/proc/driver/nvidia/gpus").is_dir()


def limits_of(platform: Platform, overrides: Mapping[str, Any] | None = None) -> Limits:
    """Return the limits for visitors of an app on a platform.

    Args:
        platform: platform and rules of the app.
        overrides: values that replace limits of the platform, by name of the limit; None: the platform's value.
    """
    given_limits = {name: value for name, value in (overrides or {}).items() if value is not None}
    return Limits(**((PUBLIC_LIMITS if platform.public else {}) | given_limits))


def client(
    platform: Platform,
    target: str,
    drafter: str,
    device: str,
    dtype: str,
    limits: Mapping[str, Any] | None = None,
    has_other_users: bool = False,
    background_models: str = "auto",
) -> Client:
    """Return the client for a platform, with its models loaded (ZeroGPU) or being loaded. Imports PyTorch.

    Args:
        platform: platform and rules of the app.
        target: bundled name, local folder or Hub id.
        drafter: draft model: bundled name, local folder or Hub id; "auto": the default one of the target.
        device: device of all models: auto, cpu, cuda, …
        dtype: number format of the target: auto, float64, …
        limits: limits that replace those of the platform; see `limits_of`.
        background_models: names of published models to load after the target and its draft model, comma-separated;
            "auto": published models on this machine, and on a Space also those on the Hub; "none": no models.
        has_other_users: whether users of other machines may send requests. If so, the log must not contain texts, as in
            every public app.

    Raises:
        WorkbenchError: a model of the command line cannot be loaded (ZeroGPU).
        UnknownNameError: `background_models` contains a name that is not in the model index.
    """
    if platform.mode is Mode.ZEROGPU:
        os.environ["TOKENIZERS_PARALLELISM"] = "false"  # processes are forked from here on
        import spaces  # before PyTorch: it changes what PyTorch reports about CUDA

        from workbench.service.zerogpu import ZeroGpuBackend

        _write_logs(platform, has_other_users)
        names = dict.fromkeys([*(platform.allow_models or ()), target])
        return ZeroGpuBackend(
            spaces.GPU, isolated=True, names=list(names), dtype=dtype, limits=limits_of(platform, limits)
        )

    from workbench.client import Workbench
    from workbench.service import background

    _write_logs(platform, has_other_users)
    names = background.parse_background_models(background_models, fetches=platform.mode is not Mode.LOCAL)
    allowed = None if platform.allow_models is None else (*platform.allow_models, *names)  # loaded at the start
    workbench = Workbench(
        target=target, drafter=drafter, device=device, dtype=dtype, limits=limits_of(platform, limits),
        allow_models=allowed, folders=False,
    )  # fmt: skip
    workbench.preload(names)
    return workbench


def _write_logs(platform: Platform, has_other_users: bool) -> None:
    """Configure logs without prompts, for an app that users of other machines may reach.

    The logs of a public app are JSON Lines, those of any other such app plain lines. Otherwise nothing is configured.
    """
    from workbench.service.logs import write_json_logs, write_plain_logs

    if platform.public:
        write_json_logs()
    elif has_other_users:
        write_plain_logs()


def launch_options(client: Client, access_control: AccessControl | None = None, public: bool = False) -> dict[str, Any]:
    """Return Gradio's launch options: `LAUNCH`, no uploads, the HTTP API on the same port, and access control.

    The routes of the HTTP API are passed when Gradio's app is created, so that they precede Gradio's routes. The
    middleware `Guard` runs before all routes. The access control also runs before Gradio's middleware, which would
    allow pages of other origins to read answers.

    Args:
        client: a `workbench.client.Workbench`, or anything with the same methods.
        access_control: access control of the server; by default it admits only pages and programs on this machine.
        public: whether anybody may reach the app. If so, the size limit for calls from pages is lower.
    """
    from gradio.routes import App, ORJSONResponse
    from starlette.middleware import Middleware
    from starlette.responses import JSONResponse
    from starlette.routing import Route

    from workbench.server.access_control import AccessControl
    from workbench.server.callers import UVICORNS
    from workbench.server.connections import install_header_timeout
    from workbench.server.guard import CALL_BYTES, Guard
    from workbench.server.large_requests import LargeRequests, make_admit_request
    from workbench.server.pagecalls import PageCalls, make_charge_call
    from workbench.server.routes import router
    from workbench.ui.launching import LAUNCH

    access = access_control or AccessControl()

    class Behind(App):
        """ASGI application that runs Gradio's app inside the middleware of the access control."""

        def build_middleware_stack(self) -> Any:
            return access.wrap(super().build_middleware_stack())

    async def no_uploads(_: Any) -> JSONResponse:
        return JSONResponse({"error": {"message": "This app does not accept uploads.", "remedy": ""}}, 403)

    install_header_timeout()
    os.environ[UVICORNS] = ""  # otherwise uvicorn trusts proxy headers from this machine
    app = Behind(
        routes=[Route("/gradio_api/upload", no_uploads, methods=["POST"]), *router(client).routes],
        middleware=[
            Middleware(Guard, call_bytes=CALL_BYTES if public else None),
            Middleware(LargeRequests, admit_request=make_admit_request(client)),
            Middleware(PageCalls, charge_call=make_charge_call(client)),
            *LAUNCH["app_kwargs"]["middleware"],
        ],
        default_response_class=ORJSONResponse,
    )
    return {**LAUNCH, "max_file_size": MAX_FILE_SIZE, "app_kwargs": {}, "_app": app, "prevent_thread_lock": True}
