"""How the pictures of the notebooks look: transparent, in colors that read in light and dark."""

import matplotlib.pyplot as plt
from matplotlib_inline.backend_inline import set_matplotlib_formats

GREY = "#808890"
COLORS = ["#3b82f6", "#f97316", "#10b981", "#a855f7", "#ef4444", "#eab308"]

set_matplotlib_formats("svg")
plt.rcParams.update(
    {
        "figure.figsize": (7, 3.2),
        "figure.constrained_layout.use": True,
        "savefig.transparent": True,
        "svg.hashsalt": "toynn",
        "svg.fonttype": "none",
        "axes.prop_cycle": plt.cycler(color=COLORS),
        "axes.grid": True,
        "grid.alpha": 0.25,
        "legend.framealpha": 0,
        "image.cmap": "viridis",
    }
)
plt.rcParams.update(
    dict.fromkeys(
        ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"), GREY
    )
)
plt.rcParams.update({"axes.facecolor": "none", "figure.facecolor": "none", "grid.color": GREY})
