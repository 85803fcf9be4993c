"""A headless Chromium, as a reader would open the report with."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from typing import Any

from selenium import webdriver
from selenium.webdriver.chrome.service import Service

_SWITCHES = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage",
    "--host-resolver-rules=MAP * ~NOTFOUND",
)  # fmt: skip


def found() -> bool:
    return bool(shutil.which("chromium") and shutil.which("chromedriver"))


@contextmanager
def opened(page: Path, width: int = 1280, height: int = 900, dark: bool = False) -> Iterator[webdriver.Chrome]:
    """Open a file without any network; what it writes to the console is kept."""
    options = webdriver.ChromeOptions()
    options.binary_location = str(shutil.which("chromium"))
    for switch in (*_SWITCHES, f"--window-size={width},{height}"):
        options.add_argument(switch)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options, Service(str(shutil.which("chromedriver"))))
    try:
        scheme = "dark" if dark else "light"
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
        driver.get(page.resolve().as_uri())
        yield driver
    finally:
        driver.quit()


def until(condition: Callable[[], Any], what: str, patience: float = 30.0) -> Any:
    """Wait for something that the page does by itself."""
    end = time.monotonic() + patience
    while not (value := condition()):
        assert time.monotonic() < end, f"never: {what}"
        time.sleep(0.05)
    return value


def violations(driver: webdriver.Chrome) -> list[str]:
    """Return what axe-core finds on the page that is serious or critical: the rule, and where."""
    driver.set_script_timeout(100)
    driver.execute_script(files("axe_playwright_python").joinpath("axe.min.js").read_text())
    found = driver.execute_async_script(
        "axe.run(document, {resultTypes: ['violations'], preload: false}).then(arguments[0])"
    )
    return [
        f"{each['id']} ({each['impact']}): {len(each['nodes'])} x, {each['nodes'][0]['html'][:160]}"
        for each in found["violations"]
        if each["impact"] in ("serious", "critical")
    ]
