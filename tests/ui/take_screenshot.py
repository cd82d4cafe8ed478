"""Take the README's screenshots from a running app: `python app.py`, then `python tests/ui/take_screenshot.py`.

They show the first screen as a new reader sees it, once the recorded race has ended, and the Vision page with its
recorded run at the end.
"""

from __future__ import annotations

import io
import shutil
import sys
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright

ASSETS = Path(__file__).parents[2] / "assets"
PAGES = {
    "screenshot-live": ("", ".wb-firstraceresult strong:has-text('faster')"),
    "screenshot-vision": ("?tab=vision", ".wb:visible :text('finished: end-of-sequence token')"),
}
"""Address of each page by file name, and the selector of an element that appears once the recording has ended."""


def main(url: str = "http://127.0.0.1:7860") -> None:
    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox", "--disable-gpu"])
        for name, (address, ended) in PAGES.items():
            page = browser.new_page(viewport={"width": 1440, "height": 940}, color_scheme="light")
            page.set_default_timeout(60_000)
            page.goto(f"{url}/{address}")
            page.wait_for_selector(".wb[data-ready=true]:visible")
            page.wait_for_selector(ended)
            page.mouse.move(1300, 20)
            page.wait_for_timeout(500)
            picture, file = Image.open(io.BytesIO(page.screenshot())), ASSETS / f"{name}.webp"
            picture.convert("RGB").save(file, "WEBP", lossless=True, quality=100, method=6)  # a third of a PNG's bytes
            print(file, file.stat().st_size, "bytes")
            page.close()
        browser.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
