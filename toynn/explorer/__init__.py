"""A training step to explore: a tape as one HTML page that needs no network and no other file.

    toynn.explorer.write(recipe, "step.html")
    toynn.explorer.page(session, values=True)       in a notebook: the page itself

The page shows the graph, folded by block, and the arena over time. With ``values`` it also shows
the numbers before and after every call. It is made from the tape (graph/described.py) and from the
kernels' source files (_kernels/source.py). explorer.js draws the page, explorer.css styles it.
"""

from toynn.explorer.page import Page, page, write
from toynn.explorer.values import unchanged

__all__ = ["Page", "page", "unchanged", "write"]
