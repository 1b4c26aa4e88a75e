// Class token and positions: how the patches of a picture become a sequence.
//
//   y[b,0,c] = cls[c] + pos[0,c]
//   y[b,t,c] = x[b,t-1,c] + pos[t,c]           t = 1..T-1
//
//   dx[b,t-1,c] = dy[b,t,c]                    t = 1..T-1
//   dpos[t,c]   = sum_b dy[b,t,c]              dcls[c] = sum_b dy[b,0,c]
//
// B pictures, T - 1 patches each, C channels; one thread per element of y, dx and dpos. dx is overwritten; dcls
// and dpos are overwritten, or added to.
// Source: Dosovitskiy et al. 2020, An Image is Worth 16x16 Words, arXiv:2010.11929, equation 1.

kernel void class_token_forward(CLASS_TOKEN_FORWARD, uint i [[thread_position_in_grid]])
{
    const uint T = args.T, C = args.C;
    if (i >= args.B * T * C) return;
    const uint c = i % C, t = i / C % T, b = i / C / T;
    y[i] = (t == 0 ? cls[c] : x[(b * (T - 1) + t - 1) * C + c]) + pos[t * C + c];
}

kernel void class_token_backward_x(CLASS_TOKEN_BACKWARD, uint i [[thread_position_in_grid]])
{
    const uint T = args.T, C = args.C;
    if (i >= args.B * (T - 1) * C) return;
    const uint c = i % C, t = i / C % (T - 1) + 1, b = i / C / (T - 1);
    dx[i] = dy[(b * T + t) * C + c];
}

kernel void class_token_backward_w(CLASS_TOKEN_BACKWARD, uint i [[thread_position_in_grid]])
{
    const uint each = args.T * args.C;
    if (i >= each) return;
    float sum = 0.0f;
    for (uint b = 0; b < args.B; ++b) sum += dy[b * each + i];
    if (args.has_dpos) dpos[i] = args.accumulate ? dpos[i] + sum : sum;
    if (args.has_dcls && i < args.C) dcls[i] = args.accumulate ? dcls[i] + sum : sum;
}
