/* TN_GNU: whether the compiler has GCC's extensions (vectors, attributes, builtins). clang has them
   too, even as clang-cl, which does not define __GNUC__. */
#ifndef TOYNN_COMPILER_H
#define TOYNN_COMPILER_H

#if defined(__GNUC__) || defined(__clang__)
#define TN_GNU 1
#else
#define TN_GNU 0
#endif

#endif
