"""A real Chromium without a window, for the tests of the page and for its pictures in the docs."""

import shutil
import tempfile
from base64 import b64decode
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--disable-dev-shm-usage", "--hide-scrollbars", "--force-device-scale-factor=1",
)  # fmt: skip


def missing() -> str:
    """Why there is no browser, or nothing."""
    try:
        import selenium  # noqa: F401
    except ImportError:
        return "selenium is not installed"
    lacking = [name for name in ("chromium", "chromedriver") if shutil.which(name) is None]
    return f"no {' and no '.join(lacking)} on this machine" if lacking else ""


@contextmanager
def chromium() -> Iterator[Any]:
    """A driver of a browser with a profile of its own."""
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        options = webdriver.ChromeOptions()
        options.binary_location = shutil.which("chromium") or ""
        for flag in (*FLAGS, f"--user-data-dir={profile}"):
            options.add_argument(flag)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        driver = webdriver.Chrome(options, Service(shutil.which("chromedriver") or ""))
        try:
            yield driver
        finally:
            driver.quit()


def look(driver: Any, width: int, height: int, dark: bool = False, scale: float = 1.0) -> None:
    """Size of the screen, and whether it is dark."""
    size = {"width": width, "height": height, "deviceScaleFactor": scale, "mobile": width < 600}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})


def screenshot(driver: Any, path: Path, whole: bool = False) -> None:
    """What is seen, or the whole page."""
    options = {"format": "png", "captureBeyondViewport": whole}
    if whole:
        size = driver.execute_cdp_cmd("Page.getLayoutMetrics", {})["cssContentSize"]
        options["clip"] = {**size, "scale": 1}
    shot = driver.execute_cdp_cmd("Page.captureScreenshot", options)
    path.write_bytes(b64decode(shot["data"]))
