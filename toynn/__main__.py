"""``python -m toynn``: the command line."""

import sys

from toynn.cli import main

if __name__ == "__main__":
    sys.exit(main())
