/* The part of Metal that toynn uses, in plain C. All Objective-C is in bridge.m.
 *
 * Names are toynn_metal_OBJECT_VERB. open, make, allocate, share, compile and begin return a handle,
 * which belongs to the caller. close and release give it back, and ignore a null handle. A function
 * that can fail returns a null handle or a number other than 0, and says why in an error.
 *
 * Call these functions from one thread at a time.
 */
#pragma once
#include <stddef.h>
#include <stdint.h>

typedef struct toynn_metal_device toynn_metal_device;     /* a device and its queue */
typedef struct toynn_metal_buffer toynn_metal_buffer;     /* memory that both sides see */
typedef struct toynn_metal_library toynn_metal_library;   /* compiled shaders */
typedef struct toynn_metal_pipeline toynn_metal_pipeline; /* one function of a library */
typedef struct toynn_metal_commands toynn_metal_commands; /* dispatches submitted at once */

typedef struct {
    char text[2048]; /* UTF-8, the device's own text */
} toynn_metal_error;

typedef struct {
    char name[128];
    char family[32];             /* the newest Metal family that the device supports: "apple7" */
    int simdgroups;              /* it has sums over simdgroups, and simdgroup matrices */
    int unified_memory;          /* it shares the CPU's memory */
    uint64_t max_buffer_nbytes;
    uint64_t working_set_nbytes; /* the recommended limit of all buffers together */
    uint64_t threadgroup_nbytes;
} toynn_metal_limits;

/* The default device; null, and no error, if this machine has none. */
toynn_metal_device *toynn_metal_device_open(toynn_metal_error *error);
void toynn_metal_device_close(toynn_metal_device *device);
void toynn_metal_device_describe(toynn_metal_device *device, toynn_metal_limits *limits);

/* Zeroed memory. Null if the device refuses. */
toynn_metal_buffer *toynn_metal_buffer_allocate(toynn_metal_device *device, size_t nbytes);
/* Whole pages of the caller's memory, which must outlive the buffer. Null if the device refuses. */
toynn_metal_buffer *toynn_metal_buffer_share(toynn_metal_device *device, void *start, size_t nbytes);
void toynn_metal_buffer_release(toynn_metal_buffer *buffer);
/* The buffer's bytes, for the CPU: only while no commands that use the buffer are in flight. */
void *toynn_metal_buffer_contents(toynn_metal_buffer *buffer);

toynn_metal_library *toynn_metal_library_compile(toynn_metal_device *device, const char *source,
                                                 toynn_metal_error *error);
void toynn_metal_library_release(toynn_metal_library *library);

toynn_metal_pipeline *toynn_metal_pipeline_make(toynn_metal_device *device,
                                                toynn_metal_library *library, const char *function,
                                                toynn_metal_error *error);
void toynn_metal_pipeline_release(toynn_metal_pipeline *pipeline);
/* The most threads that a threadgroup of the pipeline may have. */
size_t toynn_metal_pipeline_threads(toynn_metal_pipeline *pipeline);

/* Commands are begun, filled with dispatches that run one after the other, committed, waited for and
 * released. They run in the order in which they are committed. */
toynn_metal_commands *toynn_metal_commands_begin(toynn_metal_device *device);
void toynn_metal_commands_dispatch(toynn_metal_commands *commands, toynn_metal_pipeline *pipeline,
                                   int n_buffers, toynn_metal_buffer *const *buffers,
                                   const size_t *offsets, const uint32_t groups[3],
                                   const uint32_t threads[3]);
void toynn_metal_commands_commit(toynn_metal_commands *commands);
/* Wait until the commands are done; return 0, or another number if they failed. */
int toynn_metal_commands_wait(toynn_metal_commands *commands, toynn_metal_error *error);
double toynn_metal_commands_seconds(toynn_metal_commands *commands); /* on the device, when done */
void toynn_metal_commands_release(toynn_metal_commands *commands);
