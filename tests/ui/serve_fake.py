"""Serve the page over the synthetic client, to look at it by hand: `python tests/ui/serve_fake.py 7999 [pace [gate]]`.

`pace`: seconds a round; `gate`: a file without which the backend does not start, as before PyTorch is there.
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
