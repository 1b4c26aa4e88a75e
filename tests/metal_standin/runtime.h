/* A software device: what compiled shaders, the stand-in's API objects and the tests ask of it.
 *
 * A dispatch runs one kernel, threadgroup after threadgroup, each thread of a group as a fibre: it
 * runs until it waits at a barrier, and goes on when all of its group (or simdgroup) are there.
 */
#pragma once
#ifdef __cplusplus
extern "C" {
#endif

enum { SOFT_BUFFERS = 31, SOFT_LANES = 32, SOFT_THREADS = 1024, SOFT_THREADGROUP_BYTES = 32768 };

/* Where an argument of a kernel comes from: a buffer of that index, or a number of the thread. */
enum soft_source {
    SOFT_BUFFER,
    SOFT_THREAD_POSITION_IN_GRID,
    SOFT_THREAD_POSITION_IN_THREADGROUP,
    SOFT_THREADGROUP_POSITION_IN_GRID,
    SOFT_THREAD_INDEX_IN_THREADGROUP,
    SOFT_THREADS_PER_THREADGROUP,
    SOFT_THREADGROUPS_PER_GRID,
    SOFT_THREADS_PER_GRID,
    SOFT_THREAD_INDEX_IN_SIMDGROUP,
    SOFT_SIMDGROUP_INDEX_IN_THREADGROUP,
    SOFT_SIMDGROUPS_PER_THREADGROUP,
    SOFT_THREADS_PER_SIMDGROUP,
};

typedef struct { unsigned x, y, z; } soft_size;
typedef struct { int source, index; const char *name; } soft_argument;
typedef struct {
    const char *name; /* NULL ends a library's table, soft_kernels */
    void (*run)(void);
    int n_arguments;
    const soft_argument *arguments;
} soft_kernel;

typedef struct {
    const soft_kernel *kernel;
    void *buffers[SOFT_BUFFERS];
    unsigned long nbytes[SOFT_BUFFERS]; /* from there to the end of each */
    soft_size groups, threads;
} soft_dispatch;

/* Run; 0, or 1 and a message of what the kernel did wrong. `seed` != 0 shuffles groups, threads. */
int soft_run(const soft_dispatch *dispatch, unsigned long seed, char *message, unsigned long room);
void soft_stop_after(long threads); /* the next run: it fails when so many have ended; < 0: none does */

/* Memory that checked kernels may touch where it is bound (a buffer), or read at any time. */
void soft_memory_add(const void *start, unsigned long nbytes, int read_only);
void soft_memory_remove(const void *start);
void soft_library_add(const void *symbol); /* the constants of the shared object that has it */

/* What shaders call. `site` is the address of the call: threads must wait at the same one. */
enum { SOFT_DEVICE = 1, SOFT_THREADGROUP = 2 }; /* the memory that a barrier orders */
soft_size soft_number(int source);
void *soft_buffer(int index, unsigned long element);
void *soft_threadgroup(int id, unsigned long nbytes);
void soft_barrier(int memory, const void *site);
void soft_simd_barrier(int memory, const void *site);
unsigned soft_exchange(const void *mine, unsigned nbytes, void *all, const void *site);
unsigned soft_lane(void);
#ifdef __cplusplus
}
#endif
