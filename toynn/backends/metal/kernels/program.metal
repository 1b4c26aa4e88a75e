// What a program runs between its kernels.

struct Limit { uint word; uint per_row; uint first; uint rows; };

// The device has counted the valid rows. Of `rows` rows from `first` on, 0 or more are valid. Write their size into
// the arguments of the kernel that runs next, for the first micro-batch and for later ones.
kernel void program_limit(device uint*       first [[buffer(0)]],
                          device uint*       later [[buffer(1)]],
                          device const int*  count [[buffer(2)]],
                          constant Limit&    limit [[buffer(3)]])
{
    const int behind = count[0] - int(limit.first);
    const uint valid = uint(clamp(behind, 0, int(limit.rows)));
    first[limit.word] = limit.per_row * valid;
    later[limit.word] = limit.per_row * valid;
}

// The undo log (undo_log.py): copy n pieces of 16 bytes, a thread each.
kernel void program_copy(device uint4*        to   [[buffer(0)]],
                         device const uint4*  from [[buffer(1)]],
                         constant uint&       n    [[buffer(2)]],
                         uint i [[thread_position_in_grid]])
{
    if (i < n) to[i] = from[i];
}

// Mark that the undo log is complete.
kernel void program_mark(device uint*  mark [[buffer(0)]])
{
    *mark = 1;
}
