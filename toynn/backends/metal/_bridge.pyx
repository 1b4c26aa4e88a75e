"""Metal's objects as Python objects (bridge.h), and the list of dispatches of a program.

An object holds references to those that it needs, so they may be dropped in any order. Errors of
the device are raised as BackendError, with the device's own text.
"""
cimport cython
from cpython.buffer cimport PyBuffer_FillInfo
from libc.stdint cimport uint32_t
from libc.stdlib cimport calloc, free

from toynn.errors import BackendError

cdef enum:
    MOST_BUFFERS = 16  # buffers of a dispatch: tensors, arguments, scratch


cdef str _words(toynn_metal_error* error):
    return error.text.decode("utf-8", "replace")


cdef class Device:
    """The default device of this machine and its queue."""

    cdef toynn_metal_device* _device

    def __cinit__(self):
        cdef toynn_metal_error error
        self._device = toynn_metal_device_open(&error)
        if self._device == NULL:
            raise BackendError(_words(&error) or "this machine has no Metal device")

    def __dealloc__(self):
        toynn_metal_device_close(self._device)

    def __reduce__(self):
        raise TypeError("a device cannot be pickled")

    def limits(self):
        """Return the device's name, abilities and limits, by name."""
        cdef toynn_metal_limits limits
        toynn_metal_device_describe(self._device, &limits)
        return {
            "name": limits.name.decode("utf-8", "replace"),
            "family": limits.family.decode(),
            "simdgroups": bool(limits.simdgroups),
            "unified_memory": bool(limits.unified_memory),
            "max_buffer_nbytes": limits.max_buffer_nbytes,
            "working_set_nbytes": limits.working_set_nbytes,
            "threadgroup_nbytes": limits.threadgroup_nbytes,
        }


cdef class Memory:
    """Memory of the device, as bytes: zeroed, or an array's own pages.

    ``pages`` is the address of the first page of ``owner``; the memory must be whole pages. Raises
    MemoryError if the device refuses.
    """

    cdef toynn_metal_buffer* _buffer
    cdef Device _device
    cdef object _owner
    cdef readonly size_t nbytes

    def __cinit__(self, Device device not None, size_t nbytes, size_t pages=0, owner=None):
        self._device, self._owner, self.nbytes = device, owner, nbytes
        if pages:
            self._buffer = toynn_metal_buffer_share(device._device, <void*>pages, nbytes)
        else:
            self._buffer = toynn_metal_buffer_allocate(device._device, nbytes)
        if self._buffer == NULL:
            raise MemoryError(f"the device refuses a buffer of {nbytes} bytes")

    def __dealloc__(self):
        if self._buffer != NULL:
            toynn_metal_buffer_release(self._buffer)

    def __reduce__(self):
        raise TypeError("memory of a device cannot be pickled")

    def __getbuffer__(self, Py_buffer* view, int flags):
        cdef bint read_only = self._owner is not None
        cdef void* start = toynn_metal_buffer_contents(self._buffer)
        PyBuffer_FillInfo(view, self, start, self.nbytes, read_only, flags)

    def view(self):
        """Return the bytes themselves, for the CPU; read-only if they belong to an array."""
        return memoryview(self)


cdef class Library:
    """Compiled shaders. Raises BackendError with the compiler's text."""

    cdef toynn_metal_library* _library
    cdef Device _device

    def __cinit__(self, Device device not None, str source not None):
        cdef toynn_metal_error error
        cdef bytes text = source.encode()
        self._device = device
        self._library = toynn_metal_library_compile(device._device, text, &error)
        if self._library == NULL:
            raise BackendError(_words(&error))

    def __dealloc__(self):
        if self._library != NULL:
            toynn_metal_library_release(self._library)

    def __reduce__(self):
        raise TypeError("compiled shaders cannot be pickled")


cdef class Pipeline:
    """A function of a library, ready to run with at most ``threads`` threads in a group."""

    cdef toynn_metal_pipeline* _pipeline
    cdef readonly size_t threads

    def __cinit__(self, Library library not None, str function not None):
        cdef toynn_metal_error error
        cdef bytes name = function.encode()
        self._pipeline = toynn_metal_pipeline_make(
            library._device._device, library._library, name, &error)
        if self._pipeline == NULL:
            raise BackendError(f"{function}: {_words(&error)}")
        self.threads = toynn_metal_pipeline_threads(self._pipeline)

    def __dealloc__(self):
        if self._pipeline != NULL:
            toynn_metal_pipeline_release(self._pipeline)

    def __reduce__(self):
        raise TypeError("a pipeline cannot be pickled")


@cython.no_gc_clear  # what the commands use must exist until they are done
cdef class Commands:
    """Dispatches that were submitted at once. Keeps what they use; waits when it is dropped."""

    cdef toynn_metal_commands* _commands
    cdef object _held

    def __dealloc__(self):
        cdef toynn_metal_error error
        if self._commands != NULL:
            toynn_metal_commands_wait(self._commands, &error)
        toynn_metal_commands_release(self._commands)

    def __reduce__(self):
        raise TypeError("commands cannot be pickled")

    def wait(self):
        """Wait until the device is done; return the seconds it took. Raises BackendError."""
        cdef toynn_metal_error error
        cdef int failed
        with nogil:
            failed = toynn_metal_commands_wait(self._commands, &error)
        if failed:
            raise BackendError(_words(&error))
        return toynn_metal_commands_seconds(self._commands)


cdef struct Dispatch:
    char phase
    toynn_metal_pipeline* pipeline
    int n_buffers
    toynn_metal_buffer* buffers[MOST_BUFFERS]
    size_t offsets[2][MOST_BUFFERS]  # in the first micro-batch, and in later ones
    uint32_t groups[3]
    uint32_t threads[3]


cdef class Dispatches:
    """A list of dispatches, and all memories and pipelines that they use."""

    cdef Dispatch* _dispatches
    cdef Py_ssize_t _size, _capacity
    cdef Device _device
    cdef list _held

    def __cinit__(self, Device device not None, Py_ssize_t capacity):
        self._device, self._held, self._capacity = device, [], capacity
        self._dispatches = <Dispatch*>calloc(max(capacity, 1), sizeof(Dispatch))
        if self._dispatches == NULL:
            raise MemoryError(f"cannot allocate a program of {capacity} dispatches")

    def __dealloc__(self):
        free(self._dispatches)

    def __reduce__(self):
        raise TypeError("a program holds addresses and cannot be pickled")

    def append(self, str phase, Pipeline pipeline not None, list memories, list first,
               list later, groups, threads):
        """Add a dispatch: the memories by buffer index, and each tensor's offset in its memory, in
        the ``first`` micro-batch and in ``later`` ones.
        """
        cdef Dispatch* dispatch
        cdef Memory memory
        if self._size == self._capacity or len(memories) > MOST_BUFFERS:
            raise ValueError(
                f"a dispatch has at most {MOST_BUFFERS} buffers, and this program {self._capacity} "
                f"dispatches; got {len(memories)} buffers for dispatch {self._size + 1}"
            )
        dispatch = &self._dispatches[self._size]
        dispatch.phase = ord(phase)
        dispatch.pipeline = pipeline._pipeline
        dispatch.n_buffers = len(memories)
        for i, memory in enumerate(memories):
            dispatch.buffers[i] = memory._buffer
            dispatch.offsets[0][i], dispatch.offsets[1][i] = first[i], later[i]
        for i in range(3):
            dispatch.groups[i], dispatch.threads[i] = groups[i], threads[i]
        self._held.append((pipeline, *memories))
        self._size += 1

    def commit(self, str phases, bint accumulate):
        """Encode the dispatches of these phases, in order, and commit them as one."""
        cdef bytes wanted = phases.encode("ascii")
        cdef const char* letters = wanted
        cdef Commands commands = Commands()
        cdef Dispatch* dispatch
        cdef Py_ssize_t i
        commands._commands = toynn_metal_commands_begin(self._device._device)
        if commands._commands == NULL:
            raise BackendError("the device refuses to create a command buffer")
        commands._held = self
        with nogil:
            for i in range(self._size):
                dispatch = &self._dispatches[i]
                if _is_in(letters, dispatch.phase):
                    toynn_metal_commands_dispatch(
                        commands._commands, dispatch.pipeline, dispatch.n_buffers,
                        dispatch.buffers, dispatch.offsets[accumulate], dispatch.groups,
                        dispatch.threads)
            toynn_metal_commands_commit(commands._commands)
        return commands


cdef inline bint _is_in(const char* letters, char letter) noexcept nogil:
    while letters[0]:
        if letters[0] == letter:
            return True
        letters += 1
    return False
