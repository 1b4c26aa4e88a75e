"""Real files for tests: `shared/data` beside the checkout, or the folder in TOYNN_TEST_DATA."""

import os
from pathlib import Path

DATA = Path(os.environ.get("TOYNN_TEST_DATA", Path(__file__).parents[3] / "shared" / "data"))
STORIES = DATA / "stories260K.gguf"
