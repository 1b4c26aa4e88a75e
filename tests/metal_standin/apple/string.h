#include <stddef.h>
void *memset(void *memory, int byte, size_t nbytes);
