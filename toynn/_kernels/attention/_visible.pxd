"""Which keys a query sees, and which scores are computed: blocks, strips and windows.

Scores are computed in blocks: BLOCK queries against BLOCK keys. A block on the diagonal is computed
in strips of STRIP queries, so that fewer invisible scores are computed. Here blocks are drawn 8
wide and strips 4 high, for causal attention with a window of 6. A # is visible; a - is computed,
then hidden; a blank is not computed:

           keys
           0 1 2 3 4 5 6 7   8 . . .
         0 # - - -
         1 # # - -
         2 # # # -
         3 # # # #
         4 # # # # # - - -
         5 # # # # # # - -
         6 - # # # # # # -       row 6 of this block: visible_begin = 1, visible_end = 7,
         7 - - # # # # # #                            strip_end = 8

         8 - - - # # # # #   # - - -
         9 - - - - # # # #   # # - -
        10 - - - - - # # #   # # # -
        11 - - - - - - # #   # # # #
        12 - - - - - - - #   # # # # # - - -
        13 - - - - - - - -   # # # # # # - -
        14 - - - - - - - -   - # # # # # # -
        15 - - - - - - - -   - - # # # # # #

Queries from 16 on begin at the second column of blocks: first_key is 8 for them. Without a window
all keys before the diagonal are #. Without causal all are #, or with a window also the keys as far
on the other side: a row sees W - 1 keys on each side, and its own. A last block may then be TAIL
longer.

Examples are like separate sequences: blocks begin where examples start. Examples of 5 and 11 rows
have their blocks at rows 0, 5 and 13:

           0 . . . 4 5 . . . . . . 12 13 . 15
           [ block ] [    block     ] [block]
"""
from toynn._kernels.gemm._product cimport Form, blocks_of

cdef enum:
    BLOCK = 64  # queries, and keys, per block: two blocks of scores take 40 KB
    TAIL = 16   # up to this many rows at the end join the last block
    WIDTH = BLOCK + TAIL  # floats from one row of a block of scores to the next

cdef extern from "rows.h" nogil:
    enum: STRIP "TN_STRIP"  # queries of a block on the diagonal that are multiplied at once

# One sequence or example, and one head. A 0 or NULL means: none.
cdef struct Sizes:
    Py_ssize_t B, T, H, KV, D, E
    Py_ssize_t S       # keys
    Py_ssize_t past    # keys before the first query's own; causal only
    Py_ssize_t window  # keys that a query sees up to its own, and if not causal from it on; 0: all
    Py_ssize_t hidden  # first keys that no query sees, fewer than BLOCK; if not causal
    Py_ssize_t ldq, ldk, ldv, ldo  # floats from one row to the next
    bint causal
    bint cached  # k[j,d] is at j // BLOCK * BLOCK * D + d * BLOCK + j % BLOCK, and ldk = D
    bint shared  # v is k: values are the first E columns of keys; cached only
    const Form* rounded  # the form in which factors of products are packed; NULL: not rounded
    float scale
    float cap          # cap of scaled scores
    const float* sink  # one more score, for a key without a value

# Queries i .. i + rows - 1 against keys j .. j + columns - 1.
cdef struct Block:
    Py_ssize_t i, rows, j, columns


cdef inline Py_ssize_t _tail(const Sizes* s) noexcept nogil:
    """Rows by which a last block may be longer than BLOCK.

    0 if causal: then sums over keys are cut in the same places, whatever rows come later.
    """
    return 0 if s.causal or s.cached else TAIL


cdef inline Py_ssize_t block_count(const Sizes* s, Py_ssize_t rows) noexcept nogil:
    return max(1, blocks_of(rows - _tail(s), BLOCK))


cdef inline Py_ssize_t block_size(const Sizes* s, Py_ssize_t i, Py_ssize_t rows) noexcept nogil:
    """Rows of the block that begins at i, of ``rows`` in all."""
    return rows - i if rows - i <= BLOCK + _tail(s) else BLOCK


cdef inline Py_ssize_t first_key(const Sizes* s, Py_ssize_t query) noexcept nogil:
    """Where the first block begins that has keys which a query sees."""
    return max(0, s.past + query + 1 - s.window) // BLOCK * BLOCK if s.window > 0 else 0


cdef inline Py_ssize_t key_blocks(const Sizes* s, Py_ssize_t i, Py_ssize_t rows) noexcept nogil:
    """Count the blocks of keys up to the last that one of the queries i .. i + rows - 1 sees."""
    cdef Py_ssize_t count = block_count(s, s.past + i + rows if s.causal else s.S)
    if s.causal or s.window <= 0:
        return count
    return min(count, (i + rows + s.window - 2) // BLOCK + 1)


cdef inline Py_ssize_t visible_begin(const Sizes* s, const Block* b, Py_ssize_t r) noexcept nogil:
    """The first key of a block that row r of the block sees."""
    cdef Py_ssize_t key = s.past + b.i + r + 1 - s.window if s.window > 0 else s.hidden
    return max(0, min(b.columns, key - b.j))


cdef inline Py_ssize_t visible_end(const Sizes* s, const Block* b, Py_ssize_t r) noexcept nogil:
    """The key after the last one of a block that row r of the block sees."""
    if s.causal:
        return max(0, min(b.columns, s.past + b.i + r + 1 - b.j))
    return max(0, min(b.columns, b.i + r + s.window - b.j)) if s.window > 0 else b.columns


cdef inline Py_ssize_t strip_end(const Sizes* s, const Block* b, Py_ssize_t r) noexcept nogil:
    """The key after the last one of a block that the strip of row r is multiplied with."""
    if not s.causal:
        return b.columns
    return visible_end(s, b, min(b.rows, (r // STRIP + 1) * STRIP) - 1)


cdef inline Py_ssize_t strip_size(const Sizes* s, const Block* b) noexcept nogil:
    """Rows, or keys, of a block that are multiplied at once: all, except on the diagonal."""
    return STRIP if s.causal and s.past + b.i < b.j + BLOCK else WIDTH
