"""The declarations of bridge.h."""
from libc.stdint cimport uint32_t, uint64_t

cdef extern from "bridge.h" nogil:
    ctypedef struct toynn_metal_device:
        pass
    ctypedef struct toynn_metal_buffer:
        pass
    ctypedef struct toynn_metal_library:
        pass
    ctypedef struct toynn_metal_pipeline:
        pass
    ctypedef struct toynn_metal_commands:
        pass
    ctypedef struct toynn_metal_error:
        char text[2048]
    ctypedef struct toynn_metal_limits:
        char name[128]
        char family[32]
        int simdgroups
        int unified_memory
        uint64_t max_buffer_nbytes
        uint64_t working_set_nbytes
        uint64_t threadgroup_nbytes
    toynn_metal_device* toynn_metal_device_open(toynn_metal_error* error)
    void toynn_metal_device_close(toynn_metal_device* device)
    void toynn_metal_device_describe(toynn_metal_device* device, toynn_metal_limits* limits)
    toynn_metal_buffer* toynn_metal_buffer_allocate(toynn_metal_device* device, size_t nbytes)
    toynn_metal_buffer* toynn_metal_buffer_share(
        toynn_metal_device* device, void* start, size_t nbytes)
    void toynn_metal_buffer_release(toynn_metal_buffer* buffer)
    void* toynn_metal_buffer_contents(toynn_metal_buffer* buffer)
    toynn_metal_library* toynn_metal_library_compile(
        toynn_metal_device* device, const char* source, toynn_metal_error* error)
    void toynn_metal_library_release(toynn_metal_library* library)
    toynn_metal_pipeline* toynn_metal_pipeline_make(
        toynn_metal_device* device, toynn_metal_library* library, const char* function,
        toynn_metal_error* error)
    void toynn_metal_pipeline_release(toynn_metal_pipeline* pipeline)
    size_t toynn_metal_pipeline_threads(toynn_metal_pipeline* pipeline)
    toynn_metal_commands* toynn_metal_commands_begin(toynn_metal_device* device)
    void toynn_metal_commands_dispatch(
        toynn_metal_commands* commands, toynn_metal_pipeline* pipeline, int n_buffers,
        toynn_metal_buffer** buffers, const size_t* offsets, const uint32_t* groups,
        const uint32_t* threads)
    void toynn_metal_commands_commit(toynn_metal_commands* commands)
    int toynn_metal_commands_wait(toynn_metal_commands* commands, toynn_metal_error* error)
    double toynn_metal_commands_seconds(toynn_metal_commands* commands)
    void toynn_metal_commands_release(toynn_metal_commands* commands)
