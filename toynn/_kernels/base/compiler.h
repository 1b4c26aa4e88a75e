/* TN_GNU: whether the compiler has GCC's extensions (vectors, attributes, builtins). clang has them
   too, even as clang-cl, which does not define __GNUC__. */
#ifndef TOYNN_COMPILER_H
#define TOYNN_COMPILER_H

#if defined(__GNUC__) || defined(__clang__)
#define TN_GNU 1
#else
#define TN_GNU 0
#endif

#include <stddef.h>

/* Prefetch bytes that will be read soon; they need not exist. */
static inline void tn_prefetch(const void* x, ptrdiff_t nbytes) {
#if TN_GNU
    for (ptrdiff_t i = 0; i < nbytes; i += 64) __builtin_prefetch((const char*)x + i);
#endif
}

#endif
