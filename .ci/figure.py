"""Compare the validation loss of a run of `toynn train gpt2` with the figure in README.md.

The text is the language reference that ships with Python. It differs from version to version, and
so does the loss: README's 1.5090 is that of Python 3.11.7, with 3.11.2 it is 1.4627. Each level of
the instruction set adds in its own order, and the training ends elsewhere: 1.5265 at avx2.
"""

import json
import re
import sys
import tomllib
from pathlib import Path

#: The hash of Python 3.11.7's text, and how near the loss must be at the figure's level and others.
TEXT = "d1292362aabd294bfc08e4006dc87abc6d6e5e36d9ea065f3b922f09adfb90f1"
NEAR, ELSEWHERE = {"avx512": 0.01}, 0.03


def wrong(folder: Path) -> str | None:
    """Return what is wrong with the loss of a run, or None; print the loss."""
    readme = (Path(__file__).parents[1] / "README.md").read_text()
    figure = re.search(r"^\| main job .*validation loss ([\d.]+)", readme, re.MULTILINE)[1]
    text = tomllib.loads((folder / "config.toml").read_text())["data"]["sha256"]
    level = json.loads((folder / "run.json").read_text())["machine"]["ISA level in use"]
    loss = json.loads((folder / "metrics.jsonl").read_text().splitlines()[-1])["val_loss"]
    print(f"validation loss {loss:.4f} at {level}; README has {figure}")
    if text != TEXT:
        print("not compared: the text is another, and README's is that of Python 3.11.7")
    elif abs(loss - float(figure)) > (allowed := NEAR.get(level, ELSEWHERE)):
        return (
            f"{folder}: README has {figure}, and the loss is {loss:.4f}: more than {allowed} away"
        )
    return None


if __name__ == "__main__":
    sys.exit(wrong(Path(sys.argv[1])))
