"""Make the pictures of docs/report.md from a run's folder, in headless Chromium:

    python -m tests.report.web.pictures RUN [--into docs/images]

report.png is the page on a desktop, report-phone.png three screens of it on a dark phone.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from PIL import Image

from edgegossip.report.web.page import write_page
from tests.report.web.chromium import Chromium, show

IMAGES = Path(__file__).parents[3] / "docs" / "images"
DESKTOP, PHONE = (1200, 1760), (360, 760)  # CSS pixels; a desktop's window has a frame
SCREENS = ("top", "parts", "gantt")  # what stands at the top of each of the phone's
GAP, BETWEEN = 10, "#808080"
TO = "document.documentElement.style.scrollBehavior = 'auto'; const card = document.getElementById(arguments[0]); "
TO += "scrollTo(0, card ? card.getBoundingClientRect().top + scrollY - 1 : 0); return true"


def save(picture: Image.Image, into: Path) -> None:
    """In 128 colours, a third of the bytes."""
    picture.quantize(128).save(into, optimize=True)


def desktop(page: Path, into: Path) -> None:
    """The page from its top on."""
    with Chromium(*DESKTOP) as browser:
        show(browser, page)
        with Image.open(browser.picture(into)) as screen:
            save(screen.convert("RGB"), into)


def phone(page: Path, into: Path) -> None:
    """Three screens beside each other."""
    width, height = PHONE
    whole = Image.new("RGB", (len(SCREENS) * (width + GAP) - GAP, height), BETWEEN)
    with Chromium(width, height, phone=True, dark=True) as browser, tempfile.TemporaryDirectory() as folder:
        show(browser, page)
        for k, card in enumerate(SCREENS):
            browser.run(TO, card)
            with Image.open(browser.picture(Path(folder) / "screen.png")) as screen:
                whole.paste(screen.convert("RGB").resize(PHONE, Image.Resampling.LANCZOS), (k * (width + GAP), 0))
    save(whole, into)


def main() -> None:
    """Make both."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--into", type=Path, default=IMAGES)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        page = write_page([options.run], Path(folder) / "page.html")
        desktop(page, options.into / "report.png")
        phone(page, options.into / "report-phone.png")


if __name__ == "__main__":
    main()
