// Mean pooling: one row for each text of a packed batch, the mean of its rows.
//
//   y[s,c]  = sum of x[n,c] over n = bounds[s] .. bounds[s+1]-1, divided by their number
//   dx[n,c] = dy[s,c] / number of rows of s, for the s that holds row n; 0 if none does
//
// forward: a thread for each number of y adds its rows in order. backward: one for each number of dx finds its text.
// Source: Reimers & Gurevych 2019 (Sentence-BERT), arXiv:1908.10084, section 3.

kernel void pooling_forward(POOLING_FORWARD, uint i [[thread_position_in_grid]])
{
    const uint C = args.C, s = i / max(C, 1u), c = i % max(C, 1u);
    if (s >= args.S || C == 0) return;
    const uint first = uint(bounds[s]), end = min(uint(bounds[s + 1]), uint(args.N));
    float sum = 0.0f;
    for (uint n = first; n < end; ++n) sum += x[n * C + c];
    y[i] = end > first ? sum / float(end - first) : 0.0f;
}

kernel void pooling_backward(POOLING_BACKWARD, uint i [[thread_position_in_grid]])
{
    const uint C = args.C, n = i / max(C, 1u), c = i % max(C, 1u);
    if (n >= args.N || C == 0) return;
    float found = 0.0f;
    for (uint s = 0; s < args.S; ++s) {
        const uint first = uint(bounds[s]), end = min(uint(bounds[s + 1]), uint(args.N));
        if (n >= first && n < end) found = dy[s * C + c] / float(end - first);
    }
    dx[i] = found;
}
