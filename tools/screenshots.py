"""Images of the page of a comparison, taken in a real Chromium.

    ld3 compare --methods ... --out compare             # docs/compare.md has the whole command
    python tools/screenshots.py compare/report.html

writes docs/images/report.png (what is seen first) and docs/images/report-dark.png (dark, further
down). With --whole FOLDER it writes the whole page as desktop, phone and dark instead.
"""

import argparse
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.append(str(ROOT / "tests"))

from browser import chromium, look, missing, screenshot  # noqa: E402

IMAGES = ROOT / "docs" / "images"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("report", type=Path)
    parser.add_argument("--whole", type=Path, help="folder for images of the whole page")
    args = parser.parse_args()
    if missing():
        sys.exit(f"screenshots: {missing()}")
    with chromium() as driver:
        page = args.report.resolve().as_uri()
        if args.whole is not None:
            args.whole.mkdir(parents=True, exist_ok=True)
            for name, width, dark in (
                ("desktop", 1200, False),
                ("phone", 390, False),
                ("dark", 1200, True),
            ):
                look(driver, width, 900, dark)
                driver.get(page)
                screenshot(driver, args.whole / f"{name}.png", whole=True)
            return
        look(driver, 1120, 900)
        driver.get(page)
        screenshot(driver, IMAGES / "report.png")
        look(driver, 1120, 900, dark=True)
        driver.get(page)
        driver.execute_script("document.getElementById('curves-title').scrollIntoView()")
        driver.execute_script("scrollBy(0, -70)")
        screenshot(driver, IMAGES / "report-dark.png")


if __name__ == "__main__":
    main()
