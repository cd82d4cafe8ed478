"""Start the workbench: run `python app.py`, then open the printed URL.

This file is also the entry point of a Hugging Face Space.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from typing import Any

os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")


LIMITS = (
    ("--limit-runs-per-address", "runs_per_address", int, "maximum number of running and waiting runs per address"),
    ("--limit-requests-per-minute", "requests_per_minute", int, "maximum number of requests per minute and address"),
    (
        "--limit-tokens-per-minute",
        "tokens_per_minute",
        int,
        "maximum number of prompt and new tokens per minute and address",
    ),
    ("--request-timeout", "run_s", float, "time limit of a run in seconds"),
)
"""Command-line options that set limits of runs: option, field of `workbench.service.limits.Limits`, type, help."""


def arguments() -> argparse.Namespace:
    """Parse the command line of the app.

    The defaults of host and port come from Gradio's environment variables, which a Space sets.
    """
    parser = argparse.ArgumentParser(description="Start the Speculative Decoding Workbench in the browser.")
    host, port = os.environ.get("GRADIO_SERVER_NAME", "127.0.0.1"), os.environ.get("GRADIO_SERVER_PORT", "7860")
    parser.add_argument("--host", default=host, help="address to listen on")
    parser.add_argument("--port", type=int, default=port, help="port to listen on")
    parser.add_argument("--target", default="text-target", help="target: bundled name, local folder or Hub id")
    parser.add_argument("--drafter", default="auto", help="drafter, as for --target; auto: the target's default")
    parser.add_argument("--dtype", default="auto", help="auto, float64, float32, bfloat16 or float16")
    parser.add_argument("--behind", default=os.environ.get("WORKBENCH_BEHIND", "auto"), metavar="NAMES",
                        help="models to load after the first pair; auto: smollm2 if installed; none")  # fmt: skip
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda, …")
    parser.add_argument("--public", action="store_true", help="apply strict limits for public visitors")
    parser.add_argument(
        "--trusted-proxy",
        action="append",
        default=[],
        metavar="ADDRESS",
        help="proxy whose X-Forwarded-For header is trusted; repeatable",
    )
    parser.add_argument("--api-key", metavar="KEY", help="require this key; prefer the variable WORKBENCH_API_KEY")
    parser.add_argument("--allowed-host", metavar="NAME", action="append", default=[],
                        help="additional host name of this server, or *.example.org; repeatable")  # fmt: skip
    parser.add_argument("--allowed-origin", metavar="ORIGIN", action="append", default=[],
                        help="origin whose pages may send requests, as https://example.org; repeatable")  # fmt: skip
    parser.add_argument("--ssl-certfile", metavar="FILE", help="serve https with this certificate (PEM)")
    parser.add_argument(
        "--ssl-keyfile", metavar="FILE", help="private key, if it is in another file than the certificate"
    )
    for option, name, kind, text in LIMITS:
        parser.add_argument(option, dest=name, type=kind, metavar="N", help=text)
    args = parser.parse_args()
    refuse(parser, args)
    return args


def refuse(parser: argparse.ArgumentParser, args: argparse.Namespace) -> None:
    """Exit with an error message if an option is invalid or the port is in use, before PyTorch is imported."""
    from workbench.core.errors import WorkbenchError
    from workbench.server.access_control import make_access_control
    from workbench.server.tls import certificate
    from workbench.service import background
    from workbench.service.checks import check_models, check_port, set_error_option
    from workbench.ui import space

    args.place = space.detect(public=args.public)
    for option, name, _, _ in LIMITS:
        if (value := getattr(args, name)) is not None and not value > 0:
            parser.exit(2, f"error: {option}: {value} is invalid. Give a number above 0.\n")
    try:
        check_models(args.target, args.drafter, args.device, args.dtype)
        with set_error_option("behind"):
            background.parse_background_models(args.behind, fetches=False)
        args.https = certificate(args.ssl_certfile, args.ssl_keyfile)
        args.door = make_access_control(
            args.host,
            args.allowed_host,
            args.allowed_origin,
            args.api_key,
            args.trusted_proxy,
            public=args.place.public,
        )
        check_port(args.host, args.port)
    except WorkbenchError as error:
        parser.exit(2, f"error: --{error.option}: {error}\n")


def main() -> None:
    """Serve the app's pages, by default only on this machine. PyTorch is imported after the pages are available."""
    args = arguments()

    from workbench.core.startup import pause_and_freeze_gc
    from workbench.ui import LazyClient, build, space

    place = args.place
    if place.public:  # sweeps of public visitors must not be stored among this user's own
        os.environ[space.PUBLIC] = "true"
    for warning in args.door.warnings(args.host):
        sys.stderr.write(f"warning: {warning}\n")
    models: dict[str, Any] = {
        "target": args.target,
        "drafter": args.drafter,
        "device": args.device,
        "dtype": args.dtype,
        "background_models": args.behind,
    }
    models["limits"] = {name: getattr(args, name) for _, name, _, _ in LIMITS}
    models["has_other_users"] = args.door.is_for_others(args.host)
    client, demo = LazyClient(), None
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # `docker stop` has the effect of Ctrl-C
    try:
        with pause_and_freeze_gc():
            if place.mode is space.Mode.ZEROGPU:  # its package needs the models on the device before the launch
                client.make(lambda: space.client(place, **models))
            demo = build(client.client, can_save_runs=not place.public)
            behind = space.launch_options(client.client, args.door, place.public)
            # Gradio sends one request to itself, with a host name that the certificate may not contain
            demo.launch(server_name=args.host, server_port=args.port, ssl_verify=False, **args.https, **behind)
            if not client.ready:
                client.make(lambda: space.client(place, **models))
        demo.block_thread()
    except KeyboardInterrupt:
        if demo is not None:
            demo.close()
    finally:
        if client.ready:
            client.close()


if __name__ == "__main__":
    main()
