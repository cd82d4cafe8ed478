"""Take the README's screenshot from a running app: `python app.py`, then `python tests/ui/take_screenshot.py`.

It shows a real run: a measured baseline, nine single steps, a switch of method during the run.
"""

from __future__ import annotations

import io
import shutil
import sys
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright

OUT = Path(__file__).parents[2] / "assets" / "screenshot-live.webp"
PICK = """() => {
  const parts = ['.wb-ghost.is-rejected', '.wb-token.is-corrected', '.wb-token.is-accepted'];
  const shown = [...document.querySelectorAll('.wb-round')].filter((e) => parts.every((s) => e.querySelector(s)));
  return shown[Math.floor(shown.length * 0.7)]?.dataset.round ?? null;
}"""


def main(url: str = "http://127.0.0.1:7860") -> None:
    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page(viewport={"width": 1440, "height": 1150}, color_scheme="light")
        page.set_default_timeout(40_000)
        page.goto(f"{url}/?pace=0")  # at full speed
        page.wait_for_selector(".wb[data-ready=true]")
        page.locator("[data-param=temperature] input[type=number]").fill("0.7")
        page.keyboard.press("Tab")
        page.click("[data-press=baseline]")
        page.wait_for_selector("[data-press=baseline]:has-text('✓')")
        for n in range(1, 10):
            page.click("[data-press=step]")
            page.wait_for_function(f"Number(document.querySelector('.wb-where').textContent.split(' of ')[1]) >= {n}")
        page.select_option("[data-what=method]", "draft-tree-sampled")
        page.wait_for_timeout(600)
        page.click("[data-press=pause]")
        page.wait_for_selector(".wb-badge[data-state=finished]")
        page.wait_for_timeout(300)
        chosen = page.evaluate(PICK)
        if chosen:
            page.locator(f".wb-round[data-round='{chosen}'] .wb-ghost.is-rejected").first.click()
        page.mouse.move(1300, 20)
        page.evaluate("document.querySelector('.wb-ribbon').scrollTop = 0")
        page.wait_for_timeout(300)
        picture = Image.open(io.BytesIO(page.screenshot()))
        picture.convert("RGB").save(OUT, "WEBP", lossless=True, quality=100, method=6)  # a third of a PNG's bytes
        print(OUT, OUT.stat().st_size, "bytes;", page.inner_text(".wb-figures").replace("\n", " "))
        browser.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
