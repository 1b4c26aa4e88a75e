"""Quantized blocks to float32, and float32 to Q8_0 and Q4_0.

    dequantize       y[j] = d q[j], and the like: see _blocks.pxd and _superblocks.pxd

    quantize Q8_0    d = max_j |x[j]| / 127;     q[j] = round(x[j] / d), halves away from zero
    quantize Q4_0    d = x[k] / -8, k the first where |x| is largest;  q[j] = floor(x[j] / d + 8.5)
                     and 15 at most

x / d is computed as x (1 / d), in float32; the block then stores d rounded to float16.
raw: bytes, whole blocks; y, x: float32. Types have GGUF's numbers. The output is overwritten.
Results equal the gguf library's bit for bit. Exceptions are the sign and payload of a NaN, and
blocks so small that 1 / d overflows, which become zeros here. Denormals are not flushed: bfloat16
has them. A block with a NaN, or too large for float16, gets a scale that is not finite; the caller
must check it.
Source: ggml-common.h and quantize_row_*_ref of ggml-quants.c in ggml; the GGUF specification.
"""
cimport cython
from libc.math cimport fabsf, isfinite
from libc.stdint cimport int8_t, uint8_t, uint16_t, uint32_t
from libc.string cimport memcpy, memset

from toynn._kernels.quants._blocks cimport RUN
from toynn._kernels.base._address cimport at1
from toynn._kernels.base._parallel cimport deal
from toynn._kernels.quants._types cimport F32, Type, dequantize as dequantize_row, type_of

from toynn._kernels.base import codebooks
from toynn._kernels.base._check import check

cdef enum:
    TASK = 16384  # elements of a task: a multiple of every block

cdef union _Bits:
    float f
    int i
    uint32_t u

# The blocks' bytes, x, the number of blocks.
ctypedef void (*squeeze_fn)(uint8_t*, const float*, Py_ssize_t) noexcept nogil


@cython.overflowcheck(False)
cdef inline uint16_t _to_half(float x) noexcept nogil:
    """The bits of x as float16, rounded to nearest, ties to even; infinity from 65520 on."""
    cdef _Bits bits
    bits.f = x
    cdef uint32_t sign = (bits.u >> 16) & 0x8000, a = bits.u & 0x7FFFFFFF
    if a > 0x7F800000:
        return <uint16_t>(sign | 0x7E00)
    if a >= 0x477FF000:
        return <uint16_t>(sign | 0x7C00)
    if a < 0x38800000:  # below 2^-14: adding 0.5 rounds to multiples of 2^-24
        bits.f = fabsf(x) + <float>0.5
        return <uint16_t>(sign | (bits.u - (126 << 23)))
    return <uint16_t>(sign | ((a - (112 << 23) + 0xFFF + ((a >> 13) & 1)) >> 13))


cdef inline int _largest(const float* x) noexcept nogil:
    """The bits of max |x[j]|. As integers, bits have the order of the numbers; NaN is largest."""
    cdef _Bits bits
    cdef int j, a, most = 0
    for j in range(RUN):
        bits.f = x[j]
        a = bits.i & 0x7FFFFFFF
        most = a if a > most else most
    return most


cdef inline float _start(uint8_t* raw, float d) noexcept nogil:
    """Write the scale d of a block; return 1 / d, or 0 if that is not finite."""
    cdef uint16_t h = _to_half(d)
    cdef float inverse = <float>1.0 / d
    memcpy(raw, &h, 2)
    return inverse if isfinite(inverse) else 0


cdef void _squeeze_q8_0(uint8_t* raw, const float* x, Py_ssize_t n) noexcept nogil:
    cdef int8_t q[RUN]
    cdef _Bits most
    cdef float inverse
    cdef Py_ssize_t i
    cdef int j, twice
    for i in range(n):
        most.i = _largest(x + i * RUN)
        inverse = _start(raw + i * 34, most.f / <float>127.0)
        memset(q, 0, RUN)
        if isfinite(most.f):
            for j in range(RUN):
                # floor(2 |v|) decides the rounding; adding 1/2 to v itself could round wrongly.
                twice = <int>(2 * (x[i * RUN + j] * inverse))
                q[j] = <int8_t>((twice + (twice > 0) - (twice < 0)) / 2)
        memcpy(raw + i * 34 + 2, q, RUN)


cdef void _squeeze_q4_0(uint8_t* raw, const float* x, Py_ssize_t n) noexcept nogil:
    cdef uint8_t q[RUN]
    cdef _Bits bits
    cdef float inverse, v
    cdef Py_ssize_t i
    cdef int j, most
    for i in range(n):
        most = _largest(x + i * RUN)
        for j in range(RUN):
            bits.f = x[i * RUN + j]
            if (bits.i & 0x7FFFFFFF) == most:
                break
        inverse = _start(raw + i * 18, bits.f / -8)
        memset(q, 8, RUN)
        if isfinite(bits.f):
            for j in range(RUN):
                # The minimum keeps product and sum apart: fused they would round only once.
                v = x[i * RUN + j] * inverse
                q[j] = <uint8_t>((v if v < 7 else <float>7.0) + <float>8.5)
        for j in range(16):
            raw[i * 18 + 2 + j] = q[j] | (q[j + 16] << 4)


cdef squeeze_fn _squeeze(int type) noexcept:
    if type == 2:
        return _squeeze_q4_0
    if type == 8:
        return _squeeze_q8_0
    return NULL


cdef struct Blocks:
    Type type
    float* values    # written by dequantize, read by quantize
    uint8_t* raw     # the other way round
    Py_ssize_t n     # values
    squeeze_fn squeeze


cdef void _dequantize_tasks(void* blocks, Py_ssize_t first, Py_ssize_t last) noexcept nogil:
    cdef Blocks* x = <Blocks*>blocks
    cdef Py_ssize_t t, i
    for t in range(first, last):
        i = t * TASK
        dequantize_row(&x.type, x.values + i, x.raw, i, min(<Py_ssize_t>TASK, x.n - i))


cdef void _quantize_tasks(void* blocks, Py_ssize_t first, Py_ssize_t last) noexcept nogil:
    cdef Blocks* x = <Blocks*>blocks
    cdef Py_ssize_t t, b, step = TASK // RUN
    for t in range(first, last):
        b = t * step
        x.squeeze(
            x.raw + b * x.type.nbytes, x.values + b * RUN, min(step, x.n // RUN - b)
        )


cdef inline void* _bytes(const uint8_t[::1] raw) noexcept:
    return <void*>&raw[0] if raw.shape[0] else NULL


def dequantize(float[::1] y, const uint8_t[::1] raw, int type, int n_threads=1):
    """Overwrite y (n,) with the elements of the blocks in raw.

    Raises ValueError for a type without blocks, and for n elements that are not those of raw.
    """
    cdef Blocks x = Blocks(
        type_of(type), <float*>at1(y), <uint8_t*>_bytes(raw), y.shape[0], NULL
    )
    codebooks.fill()
    if x.type.values == 0 or x.type.number == F32:
        raise ValueError(
            f"quants.dequantize: needs the GGUF number of a type other than F32; got {type}"
        )
    cdef Py_ssize_t blocks = x.n // x.type.values
    check("quants.dequantize", f"type {type}, y ({x.n},)", n_threads,
          y=(y, (blocks * x.type.values,)), raw=(raw, (blocks * x.type.nbytes,)))
    with nogil:
        deal(_dequantize_tasks, &x, (x.n + TASK - 1) // TASK, n_threads, 1, False)


def quantize(uint8_t[::1] raw, const float[::1] x, int type, int n_threads=1):
    """Overwrite raw with the blocks of x (n,): Q8_0 (type 8) or Q4_0 (type 2).

    Raises ValueError for another type, and for x that is not as many whole blocks as raw.
    """
    cdef Blocks b = Blocks(
        type_of(type), <float*>at1(x), <uint8_t*>_bytes(raw), x.shape[0], _squeeze(type)
    )
    cdef Py_ssize_t blocks = b.n // RUN
    if b.squeeze == NULL:
        raise ValueError(f"quants.quantize: needs type 2 (Q4_0) or 8 (Q8_0); got {type}")
    check("quants.quantize", f"type {type}, x ({b.n},)", n_threads,
          x=(x, (blocks * RUN,)), raw=(raw, (blocks * b.type.nbytes,)))
    with nogil:
        deal(_quantize_tasks, &b, (b.n + TASK - 1) // TASK, n_threads, 1, False)
