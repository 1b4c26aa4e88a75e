"""Draw the pictures of these pages: ``python docs/pictures.py`` writes docs/pictures/*.svg.

Each picture is a function of one Drawing. Colors follow the reader's light or dark setting.
"""

import math
import re
import runpy
import sys
from html import escape
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "docs" / "pictures"
STYLE = """
text { font: 13px sans-serif; fill: #1f2328 }
.small { font-size: 11px } .mono { font-family: monospace }
rect { stroke: #57606a } line, path { stroke: #57606a; fill: none } .tip { fill: #57606a }
.a { fill: #ddf4ff } .b { fill: #fff8c5 } .c { fill: #dafbe1 } .d { fill: #ffebe9 }
.e { fill: #f6f8fa } .none { fill: none; stroke-dasharray: 3 3 }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3 } rect, line, path { stroke: #8b949e } .tip { fill: #8b949e }
  .a { fill: #0c2d6b } .b { fill: #4b2900 } .c { fill: #033a16 } .d { fill: #67060c }
  .e { fill: #21262d }
}
"""


class Drawing:
    """Boxes with words, arrows and lines of text, from the top left, in pixels."""

    def __init__(self, width, height, title):
        self.width, self.height, self.title, self.parts = width, height, title, []

    def box(self, x, y, width, height, words="", kind="e", small=False):
        """Draw a box of a kind with its words in the middle, a line for each line."""
        self.parts.append(
            f'<rect class="{kind}" x="{x}" y="{y}" width="{width}" height="{height}" rx="3"/>'
        )
        lines = words.split("\n") if words else []
        step = 14 if small else 17
        for k, line in enumerate(lines):
            down = y + height / 2 + 4.5 + (k - (len(lines) - 1) / 2) * step
            self.text(x + width / 2, down, line, "middle", small)

    def text(self, x, y, words, anchor="start", small=False):
        """Write a line of text."""
        kind = ' class="small"' if small else ""
        self.parts.append(
            f'<text{kind} x="{x:g}" y="{y:g}" text-anchor="{anchor}">{escape(words)}</text>'
        )

    def arrow(self, x1, y1, x2, y2):
        """Draw an arrow, level or upright."""
        level = y1 == y2
        sign = 1 if (x2 - x1 if level else y2 - y1) > 0 else -1
        back, side = -7 * sign, 3.5
        ends = [(back, side), (back, -side)] if level else [(side, back), (-side, back)]
        tip = " ".join(f"{x2 + dx:g},{y2 + dy:g}" for dx, dy in [(0, 0), *ends])
        self.parts.append(f'<line x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}"/>')
        self.parts.append(f'<polygon class="tip" points="{tip}"/>')

    def svg(self):
        """Return the picture."""
        head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {self.height}"'
        size = f'width="{self.width}" height="{self.height}" role="img"'
        title = f"<title>{escape(self.title)}</title>"
        style = f"<style>{STYLE}</style>"
        return "\n".join([f"{head} {size}>", title, style, *self.parts, "</svg>\n"])


def step():
    """Draw the life of a step: what happens once, and what happens in each step."""
    d = Drawing(760, 270, "The life of a step")
    d.text(10, 22, "once")
    once = [
        ("record", "ops become\nnodes of a tape"),
        ("differentiate", "the tape is walked\nback, node by node"),
        ("plan", "one arena for all\nactivations"),
        ("compile", "an array of\nkernel calls"),
    ]
    for k, (name, what) in enumerate(once):
        d.box(10 + 190 * k, 32, 165, 76, f"{name}\n{what}", "a", small=True)
        if k:
            d.arrow(10 + 190 * k - 25, 70, 10 + 190 * k - 2, 70)
    d.text(10, 150, "each step")
    each = [
        ("upload", "ids, labels,\nlearning rate", "b", 105),
        ("forward", "saves what\nbackward needs", "c", 120),
        ("loss", "cross-entropy", "c", 95),
        ("backward", "a gradient for\neach weight", "c", 120),
        ("AdamW", "updates each\nweight in place", "c", 120),
        ("download", "one float:\nthe loss", "b", 105),
    ]
    x = 10
    for k, (name, what, kind, width) in enumerate(each):
        d.box(x, 160, width, 76, f"{name}\n{what}", kind, small=True)
        if k:
            d.arrow(x - 13, 198, x - 1, 198)
        x += width + 15
    d.parts.append('<path d="M130 242 v8 h495 v-8"/>')
    d.text(377, 264, "one program: a loop over kernel calls, without Python in it", "middle", True)
    return d


def packing():
    """Draw examples of natural lengths in rows of 16 tokens: one each, and packed."""
    d = Drawing(760, 250, "Packing examples into rows")
    lengths, side = {"A": 7, "B": 4, "C": 9, "D": 5, "E": 6}, 20
    kinds = dict(zip("ABCDE", "abcde", strict=True))

    def row(y, names):
        at = 0
        for name in names:
            for k in range(lengths[name]):
                d.box(x0 + (at + k) * side, y, side, side, name, kinds[name], small=True)
            at += lengths[name]
        if at < 16:
            words = "padding" if at < 13 else ""
            d.box(x0 + at * side, y, (16 - at) * side, side, words, "none", small=True)

    x0 = 10
    d.text(x0, 20, "--no-packing: five rows, 39 % of the tokens are examples'")
    for k, name in enumerate("ABCDE"):
        row(30 + 26 * k, name)
    x0 = 400
    d.text(x0, 20, "packed: two rows, 97 %")
    row(30, "ABD")
    row(56, "CE")
    d.text(x0, 108, "A token attends to earlier tokens of its own example")
    d.text(x0, 126, "only, and positions count from 0 in each example:")
    at = 0
    for name, length in (("A", 7), ("B", 4), ("D", 5)):
        points = f"{x0 + at * 7},{138 + at * 7} {x0 + at * 7},{138 + (at + length) * 7}"
        points += f" {x0 + (at + length) * 7},{138 + (at + length) * 7}"
        d.parts.append(f'<polygon class="{kinds[name]}" points="{points}" stroke="#57606a"/>')
        at += length
    d.parts.append(f'<rect class="none" x="{x0}" y="138" width="112" height="112"/>')
    d.text(x0 + 125, 170, "row ABD: queries from the top,", small=True)
    d.text(x0 + 125, 186, "keys from the left; what is", small=True)
    d.text(x0 + 125, 202, "not colored is not computed", small=True)
    return d


def q4_k():
    """Draw the 144 bytes of a block of Q4_K."""
    d = Drawing(760, 235, "A block of Q4_K")
    d.text(10, 20, "256 weights in 144 bytes: 4.5 bits a weight")
    d.box(10, 32, 50, 50, "d\n2", "a", small=True)
    d.box(60, 32, 50, 50, "m\n2", "a", small=True)
    d.box(110, 32, 150, 50, "scales\n12 bytes", "b", small=True)
    d.box(260, 32, 490, 50, "codes: 128 bytes, two of 4 bits in each", "c", small=True)
    d.text(10, 102, "two float16", small=True)
    d.text(110, 102, "8 scales a[s] and 8 minima b[s],", small=True)
    d.text(110, 117, "6 bits each: one of both for 32 weights", small=True)
    d.text(10, 150, "bytes 32 k to 32 k + 31 of the codes hold two sub-blocks:")
    for k in range(4):
        x = 10 + 185 * k
        d.box(x, 162, 90, 34, f"sub-block {2 * k}\nlower 4 bits", "c", small=True)
        d.box(x + 90, 162, 90, 34, f"sub-block {2 * k + 1}\nupper 4 bits", "c", small=True)
    d.text(10, 224, "weight j of sub-block s:   w = d a[s] q[j] - m b[s],   q[j] from 0 to 15")
    return d


def loops():
    """Draw the five loops of a matrix product, from the outside in, and the cache of each piece."""
    d = Drawing(760, 300, "The five loops of a matrix product")
    rows = [
        ("LOOP 5", "slices of the resident side", "a packed slice stays in L3"),
        ("LOOP 4", "passes: KC terms of the sums", "all threads pack the resident slice"),
        ("LOOP 3", "groups of streamed panels, dealt to threads", "a packed group stays in L2"),
        ("LOOP 2", "panels of the resident slice", "a panel stays in L1"),
        ("LOOP 1", "panels of the streamed group", "each meets the panel in L1"),
    ]
    for k, (name, over, what) in enumerate(rows):
        d.box(10 + 24 * k, 12 + 48 * k, 400 - 24 * k, 40, f"{name}: {over}", "abcde"[k], small=True)
        d.arrow(410, 32 + 48 * k, 470, 32 + 48 * k)
        d.text(480, 36 + 48 * k, what)
    d.box(130, 256, 280, 36, "a tile of C (+)= panel times panel", "none", small=True)
    d.arrow(410, 274, 470, 274)
    d.text(480, 278, "in registers, for KC terms")
    return d


def layers():
    """Draw the packages of toynn by layer, as the test of imports has them."""
    rows = runpy.run_path(str(ROOT / "tests" / "structure" / "layers.py"))["LAYERS"]
    d = Drawing(760, 40 * len(rows) + 30, "The layers of the package")
    for k, row in enumerate(rows):
        names = sorted(row)
        width = 660 / len(names)
        for i, name in enumerate(names):
            d.box(10 + i * width, 10 + 40 * k, width - 8, 30, name, "abcde"[k % 5])
    d.arrow(705, 12, 705, 40 * len(rows))
    d.text(718, 30, "imports", small=True)
    d.text(718, 44, "point", small=True)
    d.text(718, 58, "down", small=True)
    return d


def bars(title, times):
    """Draw times by name as bars, on a logarithmic scale."""
    d = Drawing(760, 26 * len(times) + 40, title)
    d.text(10, 20, title)
    ends = [math.log10(time) for time in times.values()]
    low, high = math.floor(min(ends)), math.ceil(max(ends))
    for k, (name, end) in enumerate(zip(times, ends, strict=True)):
        width = round(380 * (end - low) / max(1, high - low))
        d.text(240, 48 + 26 * k, name, "end", small=True)
        d.box(250, 34 + 26 * k, max(2, width), 20, kind="a" if "toynn" in name else "c")
        d.text(258 + width, 48 + 26 * k, f"{times[name]:.4g} ms", small=True)
    return d


def ladder():
    """Draw the first table of docs/performance.md's ladder."""
    page = (ROOT / "docs" / "performance.md").read_text()
    rows = re.search(r"^\| rung, one thread .*\n\|[-|]+\n((?:\|.*\n)+)", page, re.M)[1]
    cells = [row.split(" | ") for row in rows.splitlines()]
    times = {row[0].removeprefix("| "): float(row[1]) for row in cells}
    return bars("One product, ms, on a logarithmic scale: a shorter bar is faster", times)


def rewards():
    """Draw the held-out rewards of docs/grpo.md's table: a line for each seed of a task."""
    page = (ROOT / "docs" / "grpo.md").read_text()
    head, rows = re.search(r"^\| (task \| seed .*)\n\|[-|]+\n((?:\|.*\n)+)", page, re.M).groups()
    names = [name.strip() for name in head.split("|")]
    at = [int(name.removeprefix("step ").replace("before", "0")) for name in names[2:8]]
    d, x, y, ends = Drawing(760, 320, "Rewards of held-out prompts"), 3.6, 280, set()
    for tenth in range(0, 11, 2):
        d.text(32, y - 26 * tenth + 4, f"{tenth / 10:g}", "end", small=True)
        d.parts.append(f'<path d="M40 {y - 26 * tenth} h648" stroke-opacity="0.2"/>')
    for step in at:
        d.text(40 + x * step, y + 18, str(step), "middle", small=True)
    d.text(364, y + 36, "step; a line for each seed", "middle", small=True)
    for row in rows.splitlines():
        task, seed, *cells = (cell.strip() for cell in row.strip("| ").split("|"))
        said = zip(at, cells, strict=False)
        points = [(40 + x * step, y - 260 * float(cell)) for step, cell in said if cell]
        way = " ".join(f"{a:g} {b:.1f}" for a, b in points)
        d.parts.append(f'<path d="M{way}" stroke-width="2"/>')
        if seed == "1":
            a, b = points[-1]
            b -= 14 * any(a == c and abs(b - e) < 14 for c, e in ends)  # not over another name
            ends.add((a, b))
            d.text(a + 8, b + 4, task)
    return d


def _grid(d, x, y, rows, columns, side, kinds):
    """Draw a matrix of cells, each of the kind that ``kinds(row, column)`` says."""
    for i in range(rows):
        for j in range(columns):
            d.box(x + j * side, y + i * side, side, side, kind=kinds(i, j))


def tile():
    """Draw one k of a register tile: 14 numbers of A times two vectors of B, added to 28 sums."""
    d = Drawing(760, 330, "One step of a register tile")
    d.text(10, 20, "for one k: two vectors of B (32 numbers) and 14 numbers of A are loaded")
    for v in range(2):
        d.box(
            130 + 200 * v, 34, 190, 24, f"row k of B, columns {16 * v} .. {16 * v + 15}", "b", True
        )
    for i in range(14):
        d.box(40, 70 + 17 * i, 60, 15, f"A[{i},k]", "a", small=True)
        for v in range(2):
            words = f"sum[{i}][{v}] += A[{i},k] b{v}" if i < 2 or i == 13 else ""
            d.box(130 + 200 * v, 70 + 17 * i, 190, 15, words, "c", small=True)
    d.text(545, 90, "28 registers hold the sums", small=True)
    d.text(545, 108, "of 14 x 32 elements of C,", small=True)
    d.text(545, 126, "2 hold B, 1 holds a number of A:", small=True)
    d.text(545, 144, "31 of AVX-512's 32", small=True)
    d.text(545, 180, "28 multiply-adds of vectors", small=True)
    d.text(545, 198, "= 448 of numbers,", small=True)
    d.text(545, 216, "for 46 numbers loaded", small=True)
    d.text(130, 324, "C is read and written once, after all k", small=True)
    return d


def panels():
    """Draw the memory of B and A before packing, and a panel of each: numbers tell the order."""
    d = Drawing(760, 320, "Memory before and after packing")
    d.text(10, 20, "B as stored: a tile needs 4 of its 12 columns (here), k = 0, 1, 2, ...")
    for k in range(4):
        for n in range(12):
            own = n < 4
            d.box(
                10 + 28 * n, 30 + 22 * k, 28, 22, str(4 * k + n) if own else "", "b" if own else "e"
            )
    d.text(360, 60, "each k is a jump of a whole row:", small=True)
    d.text(360, 78, "another line, often another page", small=True)
    d.text(
        10, 144, "A as stored: 3 of its rows (here); a step needs one number of each", small=False
    )
    for i in range(3):
        for k in range(12):
            own = k < 4
            d.box(
                10 + 28 * k,
                154 + 22 * i,
                28,
                22,
                str(3 * k + i) if own else "",
                "a" if own else "e",
            )
    d.text(360, 184, "three streams, a row apart", small=True)
    d.text(10, 246, "packed: panels in the order of reading, one stream each")
    for n in range(16):
        d.box(10 + 28 * n, 256, 28, 22, str(n), "b")
    d.text(468, 271, "panel of B: k = 0, then 1, ...", small=True)
    for n in range(12):
        d.box(10 + 28 * n, 286, 28, 22, str(n), "a")
    d.text(468, 301, "panel of A: it was transposed", small=True)
    return d


def operands():
    """Draw A, B and C with panels and a tile, and the cache in which each stays."""
    d = Drawing(760, 330, "A, B and C, their panels, and the cache that holds each")
    d.text(10, 20, "A (M,K)")
    d.box(10, 28, 200, 200, kind="e")
    d.box(60, 28, 50, 200, kind="a")
    d.box(60, 100, 50, 28, "panel", "c", small=True)
    d.text(60, 244, "256 terms", small=True)
    d.text(250, 20, "B (K,N)")
    d.box(250, 28, 220, 200, kind="e")
    d.box(250, 78, 220, 50, kind="b")
    d.box(330, 78, 32, 50, "panel", "c", small=True)
    d.text(476, 106, "256", small=True)
    d.text(520, 20, "C (M,N)")
    d.box(520, 28, 220, 200, kind="e")
    d.box(600, 100, 32, 28, "tile", "d", small=True)
    rows = [
        ("d", "a tile of C: in registers, 14 x 32 sums, while k goes through 256 terms"),
        (
            "c",
            "a panel of B (32 KB): in L1, while all panels of A meet it, one (14 KB) after another",
        ),
        ("a", "all panels of A for these 256 terms: in L2, until all panels of B have met them"),
        (
            "b",
            "B is packed a panel at a time, just before its use; C comes back for the next terms",
        ),
    ]
    for k, (kind, words) in enumerate(rows):
        d.box(10, 254 + 19 * k, 16, 14, kind=kind)
        d.text(34, 266 + 19 * k, words, small=True)
    return d


def online():
    """Draw a row of scores in three blocks, and what online softmax keeps after each."""
    blocks = [[1, 3], [2, 5], [4, 0]]
    d = Drawing(760, 250, "Online softmax over three blocks of keys")
    d.text(10, 20, "one query, six keys in blocks of two; v[j] = j")
    m, total, a = -math.inf, 0.0, 0.0
    for k, scores in enumerate(blocks):
        x = 10 + 250 * k
        for n, score in enumerate(scores):
            d.box(x + 62 * n, 32, 60, 26, f"s = {score}", "a", small=True)
        top = max(m, *scores)
        shrink = math.exp(m - top)
        total = total * shrink + sum(math.exp(score - top) for score in scores)
        a = a * shrink + sum(math.exp(score - top) * (2 * k + n) for n, score in enumerate(scores))
        told = "begin" if k == 0 else "m stays: 1" if shrink == 1 else f"e^(m - m') = {shrink:.3f}"
        d.arrow(x + 60, 60, x + 60, 84)
        d.text(x + 72, 76, told, small=True)
        d.box(x, 86, 220, 66, f"m = {top:g}\nl = {total:.3f}\na = {a:.3f}", "c", small=True)
        if k < 2:
            d.arrow(x + 222, 119, x + 248, 119)
        m = top
    weights = [math.exp(s) for block in blocks for s in block]
    whole = sum(w * j for j, w in enumerate(weights)) / sum(weights)
    d.text(
        10,
        182,
        f"at the end  o = a / l = {a / total:.3f},  lse = m + log l = {m + math.log(total):.3f}",
    )
    d.text(
        10, 204, f"with all six scores at once  o = sum_j e^s[j] v[j] / sum_j e^s[j] = {whole:.3f}"
    )
    d.text(
        10,
        230,
        "where m grows, l and a shrink by e^(m - m'): as if m had been known from the start",
    )
    return d


def loops_rows():
    """Draw rows dealt to threads."""
    d = Drawing(760, 190, "Rows, dealt to threads")
    _grid(d, 10, 30, 8, 14, 18, lambda i, j: "abcd"[i // 2])
    d.text(10, 20, "N rows of C channels")
    for k, kind in enumerate("abcd"):
        d.box(300, 30 + 36 * k, 110, 30, f"thread {k}", kind, small=True)
        d.arrow(268, 48 + 36 * k - 3, 298, 48 + 36 * k - 3)
    d.text(440, 60, "A thread has whole rows, one beside another.", small=True)
    d.text(440, 80, "What a row needs (a maximum, a sum) is", small=True)
    d.text(440, 100, "computed by one thread: the same bits on any.", small=True)
    d.text(440, 120, "A row stays in cache between its passes.", small=True)
    return d


def loops_columns():
    """Draw the two loops of a backward: rows for dx, blocks of columns for the weights."""
    d = Drawing(760, 210, "Rows for dx, columns for the weights")
    _grid(d, 10, 30, 8, 14, 18, lambda i, j: "abcd"[i // 2])
    d.text(10, 20, "1. y and dx: threads have rows")
    _grid(d, 400, 30, 8, 14, 18, lambda i, j: "abcd"[j // 4])
    d.text(400, 20, "2. dw: threads have blocks of 64 columns")
    d.box(400, 182, 252, 18, "dw: sums over all rows", "none", small=True)
    for k in range(4):
        d.arrow(
            436 + 72 * k - (18 if k == 3 else 0), 175, 436 + 72 * k - (18 if k == 3 else 0), 181
        )
    d.text(280, 80, "all rows are read", small=True)
    d.text(280, 96, "a second time,", small=True)
    d.text(280, 112, "rows ascending", small=True)
    return d


def loops_elements():
    """Draw elements in blocks of 4096."""
    d = Drawing(760, 130, "Elements, in blocks of 4096")
    for k in range(12):
        d.box(10 + 61 * k, 30, 61, 34, f"{4096 * k}", "abcd"[k // 3], small=True)
    d.text(10, 20, "n elements, whatever their shape")
    for k, kind in enumerate("abcd"):
        d.box(10 + 183 * k, 76, 183, 26, f"thread {k}", kind, small=True)
    d.text(
        10,
        122,
        "A thread begins at a multiple of 4096. Each element depends on itself alone.",
        small=True,
    )
    return d


def loops_sums():
    """Draw a sum in fixed tasks."""
    d = Drawing(760, 190, "A sum in tasks that do not depend on threads")
    for k in range(8):
        d.box(
            10 + 92 * k, 30, 84, 34, f"task {k}" if k < 7 else "... 255", "abcd"[k % 4], small=True
        )
        d.arrow(52 + 92 * k, 64, 52 + 92 * k, 92)
        d.box(10 + 92 * k, 94, 84, 26, "its sum", "e", small=True)
    d.text(10, 20, "rows or elements, cut into tasks: the number is fixed, threads take any")
    d.parts.append('<path d="M52 120 v14 h644 v-14"/>')
    d.arrow(374, 134, 374, 148)
    d.box(264, 150, 220, 28, "one thread adds them, in order", "c", small=True)
    return d


def loops_attention():
    """Draw the blocks of scores that attention visits."""
    d = Drawing(760, 240, "Blocks of scores")
    shown = lambda i, j: "none" if j > i else "b" if i == j else "a"  # noqa: E731
    _grid(d, 10, 30, 6, 6, 32, shown)
    d.text(10, 20, "keys, in blocks of 64")
    d.arrow(205, 126, 240, 126)
    d.text(
        250, 60, "forward: a block of 64 keys meets up to 8 blocks of queries, from the left to the"
    )
    d.text(
        250, 78, "diagonal; each row keeps its largest score m, the sum l, the unfinished result a"
    )
    d.box(
        250,
        92,
        490,
        30,
        "s = q k^T;  m' = max(m, s);  l, a shrink by e^(m - m');  a += e^(s - m') v",
        "a",
        small=True,
    )
    d.text(
        250,
        150,
        "backward: a block of 64 queries meets up to 4 blocks of keys, each again from lse",
    )
    d.box(
        250,
        160,
        490,
        30,
        "p = e^(s - lse);  dv += p^T do;  ds = p (do v^T - delta);  dk += ds^T q;  dq += ds k",
        "c",
        small=True,
    )
    d.text(
        250,
        212,
        "dashed: never visited; on the diagonal a part; no T x T matrix exists",
        small=True,
    )
    return d


def loops_scan():
    """Draw a state that goes through the rows, and is saved now and then."""
    d = Drawing(760, 200, "A state that goes through the rows")
    for k in range(8):
        d.box(10 + 92 * k, 60, 62, 40, f"row {k}", "b" if k % 4 == 0 else "e", small=True)
        if k < 7:
            d.arrow(72 + 92 * k, 80, 100 + 92 * k, 80)
        if k % 4 == 0:
            d.arrow(41 + 92 * k, 60, 41 + 92 * k, 40)
            d.box(6 + 92 * k, 14, 70, 24, "S saved", "b", small=True)
    d.text(
        10,
        130,
        "forward: S goes from row to row; before every 32nd row it is saved (here every 4th)",
    )
    d.arrow(745, 150, 10, 150)
    d.text(
        10,
        176,
        "backward: 32 states are computed again from the saved one, then dL/dS goes through them",
    )
    return d


def loops_chunks():
    """Draw a state that goes from chunk to chunk, and what each chunk computes."""
    d = Drawing(760, 200, "A state that goes from chunk to chunk")
    for k in range(4):
        d.box(10 + 186 * k, 60, 150, 40, f"rows {64 * k} .. {64 * k + 63}", "e", small=True)
        d.text(85 + 186 * k, 118, "W U + m (C S)", "middle", small=True)
        if k < 3:
            d.arrow(160 + 186 * k, 80, 196 + 186 * k, 80)
            d.text(178 + 186 * k, 72, "S", "middle", small=True)
    d.text(
        10, 34, "forward: a thread takes heads, and goes from chunk to chunk, each a few products"
    )
    d.arrow(745, 150, 10, 150)
    d.text(
        10,
        176,
        "backward: S and dL/dS of all chunks by heads; then threads take chunks, with all heads",
    )
    return d


def loops_once():
    """Draw a kernel of one thread."""
    d = Drawing(760, 100, "One thread, once through a few numbers")
    for k in range(16):
        d.box(10 + 34 * k, 30, 34, 34, kind="a")
    d.arrow(10, 80, 554, 80)
    d.text(570, 50, "one thread, in order: a few", small=True)
    d.text(570, 66, "numbers, no sum to share", small=True)
    return d


PICTURES = (
    *(step, packing, q4_k, loops, layers, loops_rows, loops_columns, loops_elements),
    *(loops_sums, loops_attention, loops_scan, loops_chunks, loops_once, ladder, rewards),
    *(tile, panels, operands, online),
)


def main():
    """Write the files."""
    FOLDER.mkdir(exist_ok=True)
    for draw in PICTURES:
        (FOLDER / f"{draw.__name__}.svg").write_text(draw().svg())


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    main()
