"""A step that one can open: a tape as one HTML page, which needs no network and no other file.

    toynn.explorer.write(recipe, "step.html")
    toynn.explorer.page(session, values=True)       in a notebook: the page itself

The page shows the graph, folded by block; the arena over time; and, with ``values``, every call of
the step with the numbers before and after it. It is made from the tape alone (graph/described.py)
and from the kernels' own files (_kernels/source.py). explorer.js draws it, explorer.css dresses it.
"""

from toynn.explorer.page import Page, page, write
from toynn.explorer.values import unchanged

__all__ = ["Page", "page", "unchanged", "write"]
