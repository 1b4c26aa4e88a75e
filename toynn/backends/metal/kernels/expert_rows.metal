// Where each copy of a row goes when all copies are sorted by expert.
//
//   offsets[e]   = how many (n,j) have experts[n,j] < e                     e = 0..E
//   slots[n,j]   = offsets[e] + how many (n',j') before (n,j) go to e       e = experts[n,j]
//   even: offsets[e] = M e
//
// N rows, each sent to K of E experts. A thread for each expert, and one for the end. It goes over all copies to
// find where its expert begins, and once more to number its expert's copies.

kernel void expert_rows_forward(EXPERT_ROWS_FORWARD, uint at [[thread_position_in_grid]])
{
    const uint copies = args.N * args.K;
    const int e = int(at);
    if (at > args.E) return;
    int slot = 0;
    for (uint i = 0; i < copies; ++i) slot += experts[i] < e ? 1 : 0;
    offsets[at] = slot;
    for (uint i = 0; i < copies; ++i) {
        if (experts[i] == e) slots[i] = slot++;
    }
}

kernel void expert_rows_even(EXPERT_ROWS_EVEN, uint at [[thread_position_in_grid]])
{
    if (at <= args.E) offsets[at] = int(at * args.M);
}
