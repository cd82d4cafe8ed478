"""Serve the page over the synthetic client, to look at it by hand: `python tests/ui/serve_fake.py 7999`."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "views"), str(ROOT / "tests" / "ui")]


def main() -> None:
    from fake_client import FakeWorkbench

    from workbench.ui import build

    demo = build(FakeWorkbench(pace=float(sys.argv[2]) if len(sys.argv) > 2 else 0.03))
    demo.queue().launch(
        server_port=int(sys.argv[1]), ssr_mode=False, run_history=False, footer_links=[], share=False, quiet=True
    )


if __name__ == "__main__":
    main()
