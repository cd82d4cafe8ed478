"""Start the workbench: `python app.py [--host H] [--port P]`, then open the address it prints."""

from __future__ import annotations

import argparse
import os

os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")


def main() -> None:
    """Build the page and serve it on this machine only, unless told otherwise."""
    parser = argparse.ArgumentParser(description="Speculative Decoding Workbench: the live page.")
    parser.add_argument("--host", default=os.environ.get("WORKBENCH_HOST", "127.0.0.1"), help="address to listen on")
    parser.add_argument("--port", type=int, default=int(os.environ.get("WORKBENCH_PORT", "7860")), help="port")
    args = parser.parse_args()

    from workbench.client import Workbench
    from workbench.ui import build

    demo = build(Workbench())
    demo.queue().launch(
        server_name=args.host,
        server_port=args.port,
        share=False,
        ssr_mode=False,
        run_history=False,
        footer_links=[],
        show_error=True,
    )


if __name__ == "__main__":
    main()
