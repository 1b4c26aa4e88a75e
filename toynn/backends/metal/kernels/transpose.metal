// Swap two neighbouring axes.
//
//   y[a,m,n,b] = x[a,n,m,b]
//
// A thread for each element of y. Formulas: transpose.pyx.

kernel void transpose_forward(TRANSPOSE_FORWARD, uint at [[thread_position_in_grid]])
{
    if (at >= args.A * args.M * args.N * args.B) return;
    const uint b = at % args.B, n = at / args.B % args.N;
    const uint m = at / args.B / args.N % args.M, a = at / args.B / args.N / args.M;
    y[at] = x[((a * args.N + n) * args.M + m) * args.B + b];
}
