"""Opens every page of the site in Chromium, narrow and wide, light and dark.

    python tools/site/look.py [--pictures FOLDER]

Fails if a page is wider than its window, shows a picture of the other theme or one that does not
load, prints an error to the console, or loads anything from another server. --pictures saves what
was seen.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from itertools import product
from pathlib import Path

from selenium import webdriver
from selenium.webdriver.chrome.service import Service

SITE = Path(__file__).resolve().parent.parent.parent / "build" / "site" / "html"
WIDTHS = {"narrow": 390, "wide": 1400}
THEMES = ("light", "dark")

# Returns what is wrong with the page, as a list of sentences.
LOOK = """
const [width, theme, server] = arguments;
const wrong = [];
const page = document.documentElement;
if (page.scrollWidth > width) wrong.push(`is ${page.scrollWidth} pixels wide`);
if (document.body.dataset.mdColorScheme !== {light: "default", dark: "slate"}[theme])
  wrong.push(`is not ${theme}`);
for (const image of document.images) {
  if (!image.checkVisibility()) continue;
  if (image.naturalWidth === 0) wrong.push(`does not load ${image.src}`);
  const other = image.currentSrc.match(/-(light|dark)\\.svg/);
  if (other && other[1] !== theme) wrong.push(`shows ${image.currentSrc}`);
}
for (const {name} of performance.getEntriesByType("resource"))
  if (!name.startsWith(server)) wrong.push(`loads ${name}`);
return wrong;
"""


class QuietHandler(SimpleHTTPRequestHandler):
    def log_message(self, *arguments: object) -> None:
        pass


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """Serve a folder, and yield its URL."""
    handler = partial(QuietHandler, directory=str(folder))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


@contextmanager
def chromium() -> Iterator[webdriver.Chrome]:
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or "chromium"
    # Root may only run it without a sandbox; /dev/shm is small in containers.
    for option in ("headless", "no-sandbox", "disable-dev-shm-usage", "hide-scrollbars"):
        options.add_argument(f"--{option}")
    options.set_capability("goog:loggingPrefs", {"browser": "SEVERE"})
    driver = webdriver.Chrome(options, Service(shutil.which("chromedriver")))
    try:
        yield driver
    finally:
        driver.quit()


def look(driver: webdriver.Chrome, server: str, page: str, size: str, theme: str) -> list[str]:
    """Open a page, and return what is wrong with it."""
    # An open page would note that the theme changes, for the pages after it.
    driver.get("about:blank")
    driver.execute_cdp_cmd("Storage.clearDataForOrigin", {"origin": server, "storageTypes": "all"})
    metrics = {"width": WIDTHS[size], "height": 900, "deviceScaleFactor": 1, "mobile": False}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    scheme = {"name": "prefers-color-scheme", "value": theme}
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
    driver.get(server + page)
    wrong: list[str] = driver.execute_script(LOOK, WIDTHS[size], theme, server)
    return wrong + [entry["message"] for entry in driver.get_log("browser")]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pictures", type=Path, help="where to save pictures of the pages")
    pictures: Path | None = parser.parse_args().pictures
    pages = sorted(path.relative_to(SITE).as_posix() for path in SITE.rglob("*.html"))
    pages = [page for page in pages if not page.startswith(("assets/", "404"))]
    if not pages:
        sys.exit("there is no site: run `make site`")
    failed = False
    with served(SITE) as server, chromium() as driver:
        for page, size, theme in product(pages, WIDTHS, THEMES):
            for sentence in look(driver, server, page, size, theme):
                print(f"{page} ({size}, {theme}) {sentence}", file=sys.stderr)
                failed = True
            if pictures:
                name = page.removesuffix(".html").replace("/", "-")
                pictures.mkdir(parents=True, exist_ok=True)
                driver.save_screenshot(str(pictures / f"{name}-{size}-{theme}.png"))
    if failed:
        sys.exit(1)


if __name__ == "__main__":
    main()
