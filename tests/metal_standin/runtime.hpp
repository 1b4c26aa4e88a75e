// What the executor and the checker know of the dispatch that runs.
#pragma once
#include "runtime.h"
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace soft {

enum class State { fresh, ready, at_barrier, at_simd_barrier, done };

struct Fibre {
    void *stack_pointer;
    char *stack;
    State state;
    const void *site; // of the barrier at which it waits
    int memory;       // which that barrier orders
    unsigned index, exchanges;
    soft_size position;
};

constexpr size_t STACK = 64 << 10;

// How many barriers a thread has behind it; what lies before one happens before what lies after.
struct Epochs {
    uint32_t threadgroup, device, simdgroup[SOFT_THREADS / SOFT_LANES];
};

struct Running {
    const soft_dispatch *dispatch;
    uint32_t serial, group_index; // of the dispatch; of the group in it
    soft_size group;
    unsigned n_threads;
    Epochs epochs;
    Fibre *fibre; // nullptr: none, so accesses are the host's
    size_t threadgroup_used;
    bool stopping;
    std::string fault;
};

extern Running now;
extern char threadgroup_memory[SOFT_THREADGROUP_BYTES + 4096];

void fault(const char *format, ...) __attribute__((format(printf, 1, 2)));
[[noreturn]] void stop_fibre();
std::string source_line(const void *address);

// The checker's part: shadows of threadgroup memory are as at the start of a group.
void checker_new_dispatch();
void checker_new_group();

} // namespace soft
