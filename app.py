"""Start the workbench: `python app.py [--host H] [--port P]`, then open the address it prints."""

from __future__ import annotations

import argparse
import os

os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")


def backend() -> object:
    """The client over a backend in this process, with the bundled models on their way."""
    from workbench.client import Workbench

    workbench = Workbench()
    workbench.preload()
    return workbench


def main() -> None:
    """Serve the page on this machine only, unless told otherwise; import PyTorch once it is being served."""
    parser = argparse.ArgumentParser(description="Speculative Decoding Workbench: the live page.")
    host, port = os.environ.get("GRADIO_SERVER_NAME", "127.0.0.1"), int(os.environ.get("GRADIO_SERVER_PORT", "7860"))
    parser.add_argument("--host", default=host, help="address to listen on")
    parser.add_argument("--port", type=int, default=port, help="port to listen on")
    args = parser.parse_args()

    from workbench.ui import LAUNCH, Later, build

    client = Later()
    demo = build(client)
    demo.launch(server_name=args.host, server_port=args.port, prevent_thread_lock=True, **LAUNCH)
    client.make(backend)
    demo.block_thread()


if __name__ == "__main__":
    main()
