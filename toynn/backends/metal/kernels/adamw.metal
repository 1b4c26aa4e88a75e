// AdamW: one step on one parameter, whatever its shape.
//
//   g'[i] = g[i] scale
//   m[i]  = beta1 m[i] + (1 - beta1) g'[i]
//   v[i]  = beta2 v[i] + (1 - beta2) g'[i]^2
//   w[i]  = w[i] (1 - lr weight_decay) - lr (c1 m[i]) / (sqrt(c2 v[i]) + eps)
//
// hp = [lr, beta1, beta2, eps, weight_decay, c1, c2]. scale comes from grad_norm; if it is not finite, w, m
// and v stay untouched. n elements, one thread each; w, m and v are updated in place.
// Source: Loshchilov & Hutter 2019, arXiv:1711.05101, algorithm 2.

kernel void adamw_step(ADAMW_STEP, uint i [[thread_position_in_grid]])
{
    const float factor = *scale;
    if (i >= args.n || isnan(factor) || isinf(factor)) return;
    const float lr = hp[0], beta1 = hp[1], beta2 = hp[2], eps = hp[3], c1 = hp[5], c2 = hp[6];
    const float keep = 1.0f - lr * hp[4];
    const float grad = g[i] * factor;
    const float m_i = beta1 * m[i] + (1.0f - beta1) * grad;
    const float v_i = beta2 * v[i] + (1.0f - beta2) * grad * grad;
    m[i] = m_i;
    v[i] = v_i;
    w[i] = w[i] * keep - lr * (c1 * m_i) / (precise::sqrt(c2 * v_i) + eps);
}
