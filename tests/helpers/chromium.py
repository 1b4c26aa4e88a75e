"""Headless Chromium, from Debian's packages: what a page does, and how it looks."""

import shutil
from contextlib import contextmanager

__all__ = ["absent", "opened"]

FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-sync "
    "--disable-background-networking --disable-component-update --hide-scrollbars"
)


def absent():
    """Why there is no browser here; None if there is one."""
    try:
        import selenium  # noqa: F401
    except ImportError:
        return "selenium is not installed (pip install --group test)"
    if shutil.which("chromium") is None or shutil.which("chromedriver") is None:
        return "Chromium is not installed (Debian: chromium, chromium-driver)"
    return None


@contextmanager
def opened(folder, wide=1280, high=900):
    """Start a browser with a profile in a folder; it ends with the block."""
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium")
    for flag in FLAGS.split():
        options.add_argument(flag)
    options.add_argument(f"--user-data-dir={folder}")
    options.add_argument(f"--window-size={wide},{high}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options, Service(shutil.which("chromedriver")))
    try:
        yield driver
    finally:
        driver.quit()
