// The labelled rows: their label is not -100. In order:
//
//   rows[k] = n of the k-th labelled row     picked[k] = labels[rows[k]]     count = how many
//
// After the first `count`, rows holds 0 and picked -100. One group: it takes GROUP labels at a time, and each
// thread finds how many labels before its own are not -100.

kernel void valid_rows_forward(VALID_ROWS_FORWARD, uint tid [[thread_index_in_threadgroup]])
{
    threadgroup uint counts[GROUP];
    uint found = 0;  // labelled rows so far; the same in each thread
    for (uint start = 0; start < args.N; start += GROUP) {
        const uint n = start + tid;
        const int label = n < args.N ? labels[n] : -100;
        counts[tid] = label != -100 ? 1 : 0;
        threadgroup_barrier(mem_flags::mem_threadgroup);
        uint before = 0, all = 0;
        for (uint i = 0; i < GROUP; ++i) {
            before += i < tid ? counts[i] : 0;
            all += counts[i];
        }
        if (label != -100) {
            rows[found + before] = int(n);
            picked[found + before] = label;
        }
        found += all;
        threadgroup_barrier(mem_flags::mem_threadgroup);
    }
    if (tid == 0) *count = int(found);
    for (uint n = found + tid; n < args.N; n += GROUP) {
        rows[n] = 0;
        picked[n] = -100;
    }
}
