"""Start the workbench: `python app.py`, then open the address it prints. The same file is the entry of a Space."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from typing import Any

os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")


LIMITS = (
    ("--limit-runs-per-address", "runs_per_address", int, "runs of one address that run or wait"),
    ("--limit-requests-per-minute", "requests_per_minute", int, "requests of one address"),
    ("--limit-tokens-per-minute", "tokens_per_minute", int, "tokens of one address, of prompts and new"),
    ("--request-timeout", "run_s", float, "seconds after which a run is ended"),
)
"""Options that are fields of `workbench.service.limits.Limits`."""


def arguments() -> argparse.Namespace:
    """What the command line says; Gradio's variables, which a Space sets, are the defaults of host and port."""
    parser = argparse.ArgumentParser(description="Speculative Decoding Workbench: the live page.")
    host, port = os.environ.get("GRADIO_SERVER_NAME", "127.0.0.1"), os.environ.get("GRADIO_SERVER_PORT", "7860")
    parser.add_argument("--host", default=host, help="address to listen on")
    parser.add_argument("--port", type=int, default=port, help="port to listen on")
    parser.add_argument("--target", default="text-target", help="bundled name, local folder or Hub id")
    parser.add_argument("--drafter", default="auto", help="the same; auto: the one that belongs to the target")
    parser.add_argument("--dtype", default="auto", help="auto, float64, float32, bfloat16 or float16")
    parser.add_argument("--behind", default=os.environ.get("WORKBENCH_BEHIND", "auto"), metavar="NAMES",
                        help="models to load behind the first pair; auto: smollm2 where it is here; none")  # fmt: skip
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda, …")
    parser.add_argument("--public", action="store_true", help="strangers may reach it: see workbench/ui/space.py")
    parser.add_argument(
        "--trusted-proxy", action="append", default=[], metavar="ADDRESS", help="it may say who asks; repeatable"
    )
    parser.add_argument("--api-key", metavar="KEY", help="ask everybody for it; better set as WORKBENCH_API_KEY")
    parser.add_argument("--allowed-host", metavar="NAME", action="append", default=[],
                        help="a further name this server is reached by, or *.example.org; repeatable")  # fmt: skip
    parser.add_argument("--allowed-origin", metavar="ORIGIN", action="append", default=[],
                        help="pages of it may ask too, as https://example.org; repeatable")  # fmt: skip
    parser.add_argument("--ssl-certfile", metavar="FILE", help="serve https with this certificate (PEM)")
    parser.add_argument("--ssl-keyfile", metavar="FILE", help="the certificate's key, where it is another file")
    for option, name, kind, text in LIMITS:
        parser.add_argument(option, dest=name, type=kind, metavar="N", help=text)
    args = parser.parse_args()
    refuse(parser, args)
    return args


def refuse(parser: argparse.ArgumentParser, args: argparse.Namespace) -> None:
    """End with a line where a name is wrong or the port is taken: before anything is imported or served."""
    from workbench.core.errors import WorkbenchError
    from workbench.server.door import door
    from workbench.server.tls import certificate
    from workbench.service import background
    from workbench.service.checks import about, check_models, check_port
    from workbench.ui import space

    args.place = space.detect(public=args.public)
    for option, name, _, _ in LIMITS:
        if (value := getattr(args, name)) is not None and not value > 0:
            parser.exit(2, f"error: {option}: {value} is not more than 0.\n")
    try:
        check_models(args.target, args.drafter, args.device, args.dtype)
        with about("behind"):
            background.named(args.behind, fetches=False)
        args.https = certificate(args.ssl_certfile, args.ssl_keyfile)
        args.door = door(
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
    """Serve the page on this machine only, unless told otherwise; import PyTorch once it is being served."""
    args = arguments()

    from workbench.ui import Later, build, space
    from workbench.ui.start import uncollected

    place = args.place
    if place.public:  # sweeps of strangers do not go among this user's own
        os.environ[space.PUBLIC] = "true"
    for warning in args.door.warnings(args.host):
        sys.stderr.write(f"warning: {warning}\n")
    models: dict[str, Any] = {
        "target": args.target,
        "drafter": args.drafter,
        "device": args.device,
        "dtype": args.dtype,
        "behind": args.behind,
    }
    models["limits"] = {name: getattr(args, name) for _, name, _, _ in LIMITS}
    models["others"] = args.door.is_for_others(args.host)
    client, demo = Later(), None
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # `docker stop` ends it as Ctrl-C does
    try:
        with uncollected():
            if place.mode is space.Mode.ZEROGPU:  # its package wants the models in their places before the launch
                client.make(lambda: space.client(place, **models))
            demo = build(client.client, keeps=not place.public)
            behind = space.launch_options(client.client, args.door, place.public)
            # Gradio asks itself once, under a name that no certificate needs to have
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
