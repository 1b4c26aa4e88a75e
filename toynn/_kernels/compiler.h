/* Whether the compiler has GCC's extensions: vectors, attributes, builtins. So has clang, as clang-cl
   too, which does not say that it is GCC. */
#ifndef TOYNN_COMPILER_H
#define TOYNN_COMPILER_H

#if defined(__GNUC__) || defined(__clang__)
#define TN_GNU 1
#else
#define TN_GNU 0
#endif

#endif
