"""Serve the page with the synthetic client for manual inspection: `python tests/ui/serve_fake.py 7999 [pace [gate]]`.

`pace`: seconds per round; `gate`: the backend starts only when this file exists, which simulates importing PyTorch.
"""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]


def main() -> None:
    from ui.fake_client import FakeWorkbench

    from workbench.ui import LAUNCH, LazyClient, build

    port, pace, gate = (sys.argv[1:] + ["0.03", ""][len(sys.argv) - 2 :])[:3]
    client = LazyClient()

    def start() -> FakeWorkbench:
        while gate and not Path(gate).exists():
            time.sleep(0.1)
        return FakeWorkbench(pace=float(pace))

    threading.Thread(target=client.make, args=[start], daemon=True).start()
    build(client, can_save_runs=True).launch(server_port=int(port), quiet=True, **LAUNCH)


if __name__ == "__main__":
    main()
