// Contiguous columns of a matrix.
//
//   y[n,c]     = x[n,K+c]                          c = 0 .. C-1
//   dx[n,K+c]  = dy[n,c], and 0 elsewhere; if told to accumulate: dx[n,K+c] += dy[n,c]
//   place: y[n,K+c] = x[n,c], and elsewhere y stays as it is
//
// N rows of X columns, of which C from column K on are copied; a thread for each element of y, or of dx.
// Formulas: columns.pyx.

kernel void columns_forward(COLUMNS_FORWARD, uint at [[thread_position_in_grid]])
{
    if (at >= args.N * args.C) return;
    y[at] = x[at / args.C * args.X + args.K + at % args.C];
}

kernel void columns_backward(COLUMNS_BACKWARD, uint at [[thread_position_in_grid]])
{
    if (at >= args.N * args.X) return;
    const uint n = at / args.X, c = at % args.X;
    const bool mine = c >= args.K && c < args.K + args.C;
    const float d = mine ? dy[n * args.C + c - args.K] : 0.0f;
    if (mine || !args.accumulate) dx[at] = args.accumulate ? dx[at] + d : d;
}

kernel void columns_place(COLUMNS_PLACE, uint at [[thread_position_in_grid]])
{
    const uint n = at / args.X, c = at % args.X;
    if (n < args.N && c >= args.K && c < args.K + args.C) y[at] = x[n * args.C + c - args.K];
}
