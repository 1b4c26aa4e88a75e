"""Take the pictures of a step in looking.md: ``python docs/explorer.py``.

It writes docs/explorer.png and docs/explorer-memory.png. It needs Chromium, selenium and Pillow:
see tests/helpers/chromium.py.
"""

import sys
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "helpers")]

from chromium import opened  # noqa: E402
from PIL import Image  # noqa: E402

from toynn import GPT2Config, RecipeOptions, explorer  # noqa: E402
from toynn.recipes import GPT2  # noqa: E402

WIDE, HIGH, COLORS = 1180, 700, 64


def recorded(**options):
    """Return an engine with the step of a small GPT-2, which takes no memory."""
    engine = GPT2().engine
    engine.declare(GPT2Config(256, 128, 4, 512, 4, 128), RecipeOptions(t_batch=8, **options))
    engine.step_memory()
    return engine


def main():
    """Record a step of a small GPT-2; show a block and a product of its backward."""
    engine, other = recorded(), recorded(checkpointing=True)
    nodes = engine.session.tape.nodes
    call = next(i for i, n in enumerate(nodes) if n.block == "blk.1" and n.phase == "B")
    with TemporaryDirectory() as folder:
        page = Path(folder, "step.html")
        beside = {"checkpointing": other}
        explorer.write(engine, page, title="toynn train gpt2", beside=beside)
        with opened(Path(folder, "profile"), WIDE, HIGH) as browser:
            size = {"width": WIDE, "height": HIGH, "deviceScaleFactor": 1, "mobile": False}
            browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
            browser.get(f"{page.as_uri()}#graph&unfold=2&node={call + 1}")
            save(browser, "explorer.png")
            browser.get("about:blank")
            browser.get(f"{page.as_uri()}#memory")
            browser.execute_script("document.querySelectorAll('[name=tape]')[1].click()")
            save(browser, "explorer-memory.png")


def save(browser, name):
    """Write what the browser shows, in few colors."""
    picture = Image.open(BytesIO(browser.get_screenshot_as_png())).convert("RGB")
    picture.quantize(COLORS).save(ROOT / "docs" / name, optimize=True)


if __name__ == "__main__":
    main()
