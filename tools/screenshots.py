"""Images of the page of a comparison, taken in a real Chromium.

    ld3 compare --methods ... --out compare             # docs/compare.md has the whole command
    python tools/screenshots.py compare/report.html

writes docs/images/report.png (what is seen first) and docs/images/report-dark.png (dark, further
down). With --whole FOLDER it writes the whole page as desktop, phone and dark instead, of
any page. README.md is shown in a style like that of code hosts:

    python tools/screenshots.py README.md --whole looked-at
    python tools/screenshots.py build/docs/tutorials/first-plan.html --whole looked-at
"""

import argparse
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.append(str(ROOT / "tests"))

from browser import chromium, look, missing, screenshot  # noqa: E402

IMAGES = ROOT / "docs" / "images"
STYLE = """
body { max-width: 980px; margin: auto; padding: 2rem; font: 16px/1.5 sans-serif; }
pre { background: #f6f8fa; padding: 1rem; overflow: auto; }
code { background: #eff1f3; padding: 0.1em 0.3em; font-size: 85%; }
img { max-width: 100%; }
table { border-collapse: collapse; display: block; overflow: auto; }
td, th { border: 1px solid #d1d9e0; padding: 6px 13px; }
@media (max-width: 40rem) { body { padding: 1rem; } }
"""


def rendered(page: Path, folder: Path) -> Path:
    """A page of Markdown as HTML; other pages as they are."""
    if page.suffix != ".md":
        return page.resolve()
    from markdown_it import MarkdownIt

    body = MarkdownIt("commonmark").enable("table").render(page.read_text("utf-8"))
    head = f'<meta charset="utf-8"><base href="{page.resolve().parent.as_uri()}/">'
    head += '<meta name="viewport" content="width=device-width">'
    made = folder / "page.html"
    made.write_text(f"<!doctype html>{head}<style>{STYLE}</style>{body}", "utf-8")
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("report", type=Path, help="report.html, or any page with --whole")
    parser.add_argument("--whole", type=Path, help="folder for images of the whole page")
    args = parser.parse_args()
    if missing():
        sys.exit(f"screenshots: {missing()}")
    with tempfile.TemporaryDirectory() as folder, chromium() as driver:
        page = rendered(args.report, Path(folder)).as_uri()
        if args.whole is not None:
            args.whole.mkdir(parents=True, exist_ok=True)
            for name, width, dark in (
                ("desktop", 1200, False),
                ("phone", 390, False),
                ("dark", 1200, True),
            ):
                look(driver, width, 900, dark)
                driver.get(page)
                screenshot(driver, args.whole / f"{args.report.stem}-{name}.png", whole=True)
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
