// Sum of two arrays, array times number, and the gradient of a bias.
//
//   add            y[i]  = a[i] + b[i]
//   scale          y[i]  = alpha x[i]
//   accumulate     g[i]  = x[i], or g[i] + x[i] if told to accumulate
//   bias_backward  db[c] = sum_n dy[n,c]
//
// n elements, one thread each; N rows, C channels, a group for LINE columns. In place: y may be a, b or x.
// db is overwritten, or added to.

kernel void elementwise_add(ELEMENTWISE_ADD, uint i [[thread_position_in_grid]])
{
    if (i < args.n) y[i] = a[i] + b[i];
}

kernel void elementwise_scale(ELEMENTWISE_SCALE, uint i [[thread_position_in_grid]])
{
    if (i < args.n) y[i] = args.alpha * x[i];
}

kernel void elementwise_accumulate(ELEMENTWISE_ACCUMULATE, uint i [[thread_position_in_grid]])
{
    if (i < args.n) g[i] = args.accumulate ? g[i] + x[i] : x[i];
}

kernel void elementwise_bias_backward(
    ELEMENTWISE_BIAS_BACKWARD, uint group [[threadgroup_position_in_grid]], uint tid [[thread_index_in_threadgroup]])
{
    threadgroup float part[GROUP];
    const uint c = group * LINE + tid % LINE;
    float sum = 0.0f;
    if (c < args.C) {
        for (uint n = tid / LINE; n < args.N; n += GROUP / LINE) sum += dy[n * args.C + c];
    }
    sum = column_sum(sum, part, tid);
    if (tid < LINE && c < args.C) db[c] = args.accumulate ? db[c] + sum : sum;
}
