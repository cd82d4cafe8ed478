"""Serve the page over the synthetic client, to look at it by hand: `python tests/ui/serve_fake.py 7999`."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]


def main() -> None:
    from ui.fake_client import FakeWorkbench

    from workbench.ui import LAUNCH, build

    demo = build(FakeWorkbench(pace=float(sys.argv[2]) if len(sys.argv) > 2 else 0.03))
    demo.launch(server_port=int(sys.argv[1]), quiet=True, **LAUNCH)


if __name__ == "__main__":
    main()
