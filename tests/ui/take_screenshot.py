"""Take the README's screenshot from a running app: `python app.py`, then `python tests/ui/take_screenshot.py`.

It shows the first screen as a new reader sees it, once the recorded race has ended.
"""

from __future__ import annotations

import io
import shutil
import sys
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright

OUT = Path(__file__).parents[2] / "assets" / "screenshot-live.webp"


def main(url: str = "http://127.0.0.1:7860") -> None:
    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page(viewport={"width": 1440, "height": 940}, color_scheme="light")
        page.set_default_timeout(60_000)
        page.goto(url)
        page.wait_for_selector(".wb[data-ready=true]")
        page.wait_for_selector(".wb-raceresult strong:has-text('faster')")
        page.mouse.move(1300, 20)
        page.wait_for_timeout(500)
        picture = Image.open(io.BytesIO(page.screenshot()))
        picture.convert("RGB").save(OUT, "WEBP", lossless=True, quality=100, method=6)  # a third of a PNG's bytes
        print(OUT, OUT.stat().st_size, "bytes;", page.inner_text(".wb-raceresult").replace("\n", " "))
        browser.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
