"""`workbench serve`: serve the OpenAI-compatible API over HTTP, without the app's pages."""

from __future__ import annotations

import dataclasses
import sys
from typing import Annotated

import typer

from workbench.cli import output
from workbench.cli.options import (
    DEFAULT_DRAFTER,
    DEFAULT_TARGET,
    Debug,
    Device,
    Drafter,
    Dtype,
    Head,
    Target,
    use_heads,
)
from workbench.client.keys import KEY
from workbench.models.local_models import short_name
from workbench.service.checks import check_model, check_models, check_port, choose_method, set_error_option


def serve(
    host: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0: all interfaces.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0: any free port.")] = 8000,
    target: Target = DEFAULT_TARGET,
    drafter: Drafter = DEFAULT_DRAFTER,
    head: Head = None,
    dtype: Dtype = "auto",
    device: Device = "auto",
    max_rows: Annotated[
        int, typer.Option(min=1, help="Maximum number of sequences in a batch; further requests wait.")
    ] = 16,
    limit_runs: Annotated[int, typer.Option(min=1, help="Maximum number of running and waiting runs.")] = 64,
    limit_runs_per_user: Annotated[
        int | None,
        typer.Option(
            min=1, help="Maximum number of running and waiting runs of one client address; by default --limit-runs."
        ),
    ] = None,
    limit_new_tokens: Annotated[int, typer.Option(min=1, help="Maximum number of new tokens per run.")] = 4096,
    limit_prompt_tokens: Annotated[int, typer.Option(min=1, help="Maximum number of tokens per prompt.")] = 4096,
    limit_requests_per_minute: Annotated[
        int | None, typer.Option(min=1, help="Maximum number of requests per minute of one client address.")
    ] = None,
    limit_tokens_per_minute: Annotated[
        int | None,
        typer.Option(min=1, help="Maximum number of prompt tokens and new tokens per minute of one client address."),
    ] = None,
    request_timeout: Annotated[float | None, typer.Option(min=0.1, help="Time limit of a run, in seconds.")] = None,
    allow_model: Annotated[
        list[str] | None, typer.Option(help="Further model that requests may use; repeatable.")
    ] = None,
    trusted_proxy: Annotated[
        list[str] | None, typer.Option(help="Address of a proxy whose X-Forwarded-For header is trusted; repeatable.")
    ] = None,
    api_key: Annotated[
        str | None,
        typer.Option(
            envvar=KEY,
            show_envvar=True,
            help="Require this API key from clients; the environment variable is safer than the option.",
        ),
    ] = None,
    allowed_host: Annotated[
        list[str] | None, typer.Option(help="Additional host name under which clients reach this server; repeatable.")
    ] = None,
    allowed_origin: Annotated[
        list[str] | None,
        typer.Option(help="Origin whose pages may call the API, for example https://example.org; repeatable."),
    ] = None,
    ssl_certfile: Annotated[
        str | None, typer.Option(help="Serve https with this certificate file, in PEM format.")
    ] = None,
    ssl_keyfile: Annotated[
        str | None, typer.Option(help="File of the certificate's private key, if it is a separate file.")
    ] = None,
    debug: Debug = False,
) -> None:
    """Serve an OpenAI-compatible API: /v1/completions, /v1/chat/completions, /v1/models, /health, /ready, /metrics.

    Example: curl localhost:8000/v1/completions -H content-type:application/json
    -d '{"model": "text-target", "prompt": "Once upon a time", "speculation": {"method": "draft-tree"}}'
    """
    use_heads(head, target)
    pair = check_models(target, drafter, device, dtype)
    for name in allow_model or ():
        with set_error_option("allow-model"):
            check_model(name)
    from workbench.server.access_control import make_access_control  # imports Starlette, which no other command needs
    from workbench.server.tls import certificate

    https = certificate(ssl_certfile, ssl_keyfile)
    access = make_access_control(host, allowed_host or (), allowed_origin or (), api_key, trusted_proxy or ())
    check_port(host, port)
    from workbench.cli.loading import loading_progress, silence_transformers
    from workbench.client import Workbench
    from workbench.server.app import serve as run
    from workbench.service.limits import Limits
    from workbench.service.logs import write_plain_logs

    silence_transformers()
    write_plain_logs()
    limits = dataclasses.replace(
        Limits(),
        runs=limit_runs,
        runs_per_user=limit_runs_per_user or limit_runs,
        runs_per_address=limit_runs_per_user or limit_runs,
        max_new_tokens=limit_new_tokens,
        prompt_tokens=limit_prompt_tokens,
        requests_per_minute=limit_requests_per_minute,
        tokens_per_minute=limit_tokens_per_minute,
        run_s=request_timeout,
    )
    options = {"max_sequences": max_rows, "limits": limits, "allow_models": tuple(allow_model or ()), "folders": False}
    for warning in access.warnings(host):
        print(f"warning: {warning}", file=sys.stderr)
    with Workbench(target=target, drafter=drafter, device=device, dtype=dtype, **options) as bench:
        with loading_progress(bench, target, drafter):
            bench.load()
        if not output.is_quiet():
            default_method = choose_method(pair)[0]
            url = f"{'https' if https else 'http'}://{host}:{port}/v1"
            print(
                f"Serving {short_name(target)} on {url}; default method: {default_method}", file=sys.stderr, flush=True
            )
        run(bench, host, port, access, **https)
