"""Memory of a running app over requests with large images.

    python app.py --public --port 7987
    python tests/server/measure_image_memory.py http://127.0.0.1:7987 PID 50

Each request brings eight images of 2048 x 2048 pixels, 128 MiB once decoded. Prints JSON: answers by status, resident
memory of the process before, after each ten requests and at the end, and the memory of traces that `/health` counts.
"""

from __future__ import annotations

import base64
import io
import json
import sys
import time
from collections import Counter
from typing import Any

import httpx
import psutil
from PIL import Image

SIDE, IMAGES = 2048, 8
SETTLE_S = 5.0


def body() -> dict[str, Any]:
    """Return a request with the largest images that are allowed."""
    file = io.BytesIO()
    Image.new("RGB", (SIDE, SIDE), (200, 30, 30)).save(file, "PNG")
    url = "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()
    parts = [{"type": "image_url", "image_url": {"url": url}}] * IMAGES
    content = [{"type": "text", "text": "Describe the picture."}, *parts]
    return {"model": "vision-target", "messages": [{"role": "user", "content": content}], "max_tokens": 4}


def main(url: str, pid: int, n: int) -> None:
    process, request = psutil.Process(pid), body()
    processes = [process, *process.children(recursive=True)]

    def resident_mb() -> int:
        return sum(p.memory_info().rss for p in processes) >> 20

    statuses: Counter[str] = Counter()
    with httpx.Client(base_url=url, timeout=300) as client:

        def ask(n_images: int) -> httpx.Response:
            content = request["messages"][0]["content"][: 1 + n_images]
            return client.post(
                "/v1/chat/completions", json=request | {"messages": [{"role": "user", "content": content}]}
            )

        first = ask(1)  # loads the model
        resident, counted = [resident_mb()], []
        for i in range(n):
            answer = ask(IMAGES)
            statuses[f"{answer.status_code} {answer.json().get('error', {}).get('message', '')[:80]}".strip()] += 1
            if i % 10 == 9:
                resident.append(resident_mb())
                counted.append(client.get("/health").json()["memory"]["traces"] >> 20)
        time.sleep(SETTLE_S)
        resident.append(resident_mb())
    report = {"first": first.status_code, "answers": dict(statuses), "resident_mb": resident, "traces_mb": counted}
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
