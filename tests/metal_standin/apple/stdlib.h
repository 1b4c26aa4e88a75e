#include <stddef.h>
void *calloc(size_t count, size_t nbytes);
void free(void *memory);
