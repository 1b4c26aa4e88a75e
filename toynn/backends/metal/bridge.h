/* What toynn asks of Metal, in plain C. Everything Objective-C is in bridge.m.
 *
 * Names are toynn_metal_OBJECT_VERB. A handle is made by open, make, allocate, share, compile or
 * begin, belongs to the caller, and is given back by close or release; a null one is ignored there.
 * What can fail returns a null handle or a number other than 0, and says why in an error.
 *
 * One thread at a time.
 */
#pragma once
#include <stddef.h>
#include <stdint.h>

typedef struct toynn_metal_device toynn_metal_device;     /* a device and its queue */
typedef struct toynn_metal_buffer toynn_metal_buffer;     /* memory that both sides see */
typedef struct toynn_metal_library toynn_metal_library;   /* compiled shaders */
typedef struct toynn_metal_pipeline toynn_metal_pipeline; /* one function of them */
typedef struct toynn_metal_commands toynn_metal_commands; /* what is submitted at once */

typedef struct {
    char text[2048]; /* UTF-8, the device's own words */
} toynn_metal_error;

typedef struct {
    char name[128];
    char family[32];             /* the newest of Metal's that the device supports: "apple7" */
    int simdgroups;              /* it sums over simdgroups and multiplies their matrices */
    int unified_memory;          /* the CPU's memory is its own */
    uint64_t max_buffer_nbytes;
    uint64_t working_set_nbytes; /* of all buffers, that it recommends */
    uint64_t threadgroup_nbytes;
} toynn_metal_limits;

/* The default device; null, and no error, if this machine has none. */
toynn_metal_device *toynn_metal_device_open(toynn_metal_error *error);
void toynn_metal_device_close(toynn_metal_device *device);
void toynn_metal_device_describe(toynn_metal_device *device, toynn_metal_limits *limits);

/* Zeroed memory. Null if the device refuses. */
toynn_metal_buffer *toynn_metal_buffer_allocate(toynn_metal_device *device, size_t nbytes);
/* Memory of the caller's, whole pages of it, which must outlive the buffer; null if it refuses. */
toynn_metal_buffer *toynn_metal_buffer_share(toynn_metal_device *device, void *start, size_t nbytes);
void toynn_metal_buffer_release(toynn_metal_buffer *buffer);
/* Its bytes, for the CPU: only while no commands that use it are on their way. */
void *toynn_metal_buffer_contents(toynn_metal_buffer *buffer);

toynn_metal_library *toynn_metal_library_compile(toynn_metal_device *device, const char *source,
                                                 toynn_metal_error *error);
void toynn_metal_library_release(toynn_metal_library *library);

toynn_metal_pipeline *toynn_metal_pipeline_make(toynn_metal_device *device,
                                                toynn_metal_library *library, const char *function,
                                                toynn_metal_error *error);
void toynn_metal_pipeline_release(toynn_metal_pipeline *pipeline);
/* How many threads a group of it may have. */
size_t toynn_metal_pipeline_threads(toynn_metal_pipeline *pipeline);

/* Commands are begun, filled with dispatches that run one after the other, committed, waited for,
 * released. Commands that are committed run in that order. */
toynn_metal_commands *toynn_metal_commands_begin(toynn_metal_device *device);
void toynn_metal_commands_dispatch(toynn_metal_commands *commands, toynn_metal_pipeline *pipeline,
                                   int n_buffers, toynn_metal_buffer *const *buffers,
                                   const size_t *offsets, const uint32_t groups[3],
                                   const uint32_t threads[3]);
void toynn_metal_commands_commit(toynn_metal_commands *commands);
/* Return when they are done: 0, or another number if they failed. */
int toynn_metal_commands_wait(toynn_metal_commands *commands, toynn_metal_error *error);
double toynn_metal_commands_seconds(toynn_metal_commands *commands); /* on the device, when done */
void toynn_metal_commands_release(toynn_metal_commands *commands);
