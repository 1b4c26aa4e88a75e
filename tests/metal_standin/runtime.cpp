// The executor: groups one after the other, the threads of a group as fibres that take turns.
#include "runtime.hpp"
#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <numeric>
#include <sys/mman.h>

#if defined(__x86_64__)
// Saves what a call must preserve on the old stack, and takes it from the new one.
extern "C" void soft_switch(void **from, void *to);
asm(R"(.text
.globl soft_switch
.hidden soft_switch
soft_switch:
 pushq %rbp; pushq %rbx; pushq %r12; pushq %r13; pushq %r14; pushq %r15
 movq %rsp,(%rdi); movq %rsi,%rsp
 popq %r15; popq %r14; popq %r13; popq %r12; popq %rbx; popq %rbp
 ret
)");
#else
#error "the software device switches stacks on x86-64 only"
#endif

namespace soft {

Running now;
alignas(64) char threadgroup_memory[SOFT_THREADGROUP_BYTES + 4096];

namespace {

constexpr uint32_t POISON = 0x7fc0dead; // a NaN: nothing may rely on what threadgroup memory holds

Fibre fibres[SOFT_THREADS];
void *scheduler;
struct { size_t offset, nbytes; } variables[64]; // threadgroup variables, by id
alignas(16) char exchanged[SOFT_THREADS / SOFT_LANES][2][SOFT_LANES * 64];
unsigned lanes[SOFT_THREADS / SOFT_LANES]; // of each simdgroup: a bit for each that is there

long left = -1; // threads that may still end before the dispatch fails; < 0: all

uint64_t random_state;
uint32_t random_below(uint32_t n) {
    random_state = random_state * 6364136223846793005ull + 1442695040888963407ull;
    return (random_state >> 33) % n;
}

template <class T> void shuffle(std::vector<T> &items) {
    for (uint32_t i = items.size(); i > 1; i--) std::swap(items[i - 1], items[random_below(i)]);
}

void leave(State state, const void *site = nullptr, int memory = 0) {
    Fibre &f = *now.fibre;
    f.state = state, f.site = site, f.memory = memory;
    soft_switch(&f.stack_pointer, scheduler);
}

void first_call() {
    now.dispatch->kernel->run();
    for (;;) leave(State::done);
}

void enter(Fibre &f) {
    if (f.state == State::fresh) { // an empty stack on which soft_switch returns to first_call
        uintptr_t *top = reinterpret_cast<uintptr_t *>(f.stack + STACK) - 1;
        *top-- = 0;
        *top = reinterpret_cast<uintptr_t>(first_call);
        f.stack_pointer = std::memset(top - 6, 0, 48);
    }
    f.state = State::ready;
    now.fibre = &f;
    soft_switch(&scheduler, f.stack_pointer);
    now.fibre = nullptr;
}

// All that wait are at one barrier, and wait for nobody who is elsewhere or gone.
bool release(State waiting, unsigned first, unsigned end, const char *what) {
    const void *site = nullptr;
    unsigned there = 0;
    bool same = true;
    for (unsigned i = first; i < end; i++)
        if (fibres[i].state == waiting) {
            site = site ? site : fibres[i].site;
            same &= site == fibres[i].site;
            there++;
        }
    if (!there) return false;
    if (there != end - first || !same) {
        fault("%s at %s: %u of %u threads are there%s", what, source_line(site).c_str(), there,
              end - first, same ? "" : ", others at another one");
        return false;
    }
    for (unsigned i = first; i < end; i++) fibres[i].state = State::ready;
    return true;
}

void run_group(const std::vector<unsigned> &order) {
    while (!now.stopping) {
        bool ran = false;
        for (unsigned i : order)
            if (fibres[i].state == State::fresh || fibres[i].state == State::ready) {
                if (!left && fibres[i].state == State::fresh) fault("it fails here");
                if (now.stopping) return;
                enter(fibres[i]);
                if (now.stopping) return;
                if (left > 0 && fibres[i].state == State::done) left--;
                ran = true;
            }
        if (ran) continue;
        bool released = false;
        for (unsigned s = 0; s * SOFT_LANES < now.n_threads; s++) {
            unsigned first = s * SOFT_LANES, end = std::min(first + SOFT_LANES, now.n_threads);
            if (release(State::at_simd_barrier, first, end, "simdgroup operation")) {
                if (fibres[first].memory) now.epochs.simdgroup[s]++; // else lanes met, but did not wait for memory
                released = true;
            }
        }
        if (released || now.stopping) continue;
        int memory = 0;
        for (unsigned i = 0; i < now.n_threads; i++)
            if (fibres[i].state == State::at_barrier) memory = fibres[i].memory;
        if (!release(State::at_barrier, 0, now.n_threads, "threadgroup_barrier")) return; // all done
        if (memory & SOFT_THREADGROUP) now.epochs.threadgroup++;
        if (memory & SOFT_DEVICE) now.epochs.device++;
    }
}

void start_group(unsigned index) {
    const soft_size groups = now.dispatch->groups, threads = now.dispatch->threads;
    now.group_index = index;
    now.group = {index % groups.x, index / groups.x % groups.y, index / (groups.x * groups.y)};
    for (size_t i = 0; i < SOFT_THREADGROUP_BYTES; i += 4)
        std::memcpy(threadgroup_memory + i, &POISON, 4);
    now.epochs.threadgroup = now.epochs.device = 1;
    std::fill(std::begin(now.epochs.simdgroup), std::end(now.epochs.simdgroup), 1);
    std::memset(lanes, 0, sizeof lanes);
    checker_new_group();
    for (unsigned i = 0; i < now.n_threads; i++) {
        soft_size at = {i % threads.x, i / threads.x % threads.y, i / (threads.x * threads.y)};
        fibres[i].state = State::fresh;
        fibres[i].index = i;
        fibres[i].exchanges = 0;
        fibres[i].position = at;
        lanes[i / SOFT_LANES] |= 1u << i % SOFT_LANES;
    }
}

void make_stacks() {
    if (fibres[0].stack) return;
    void *memory = mmap(nullptr, STACK * SOFT_THREADS, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) std::abort();
    for (int i = 0; i < SOFT_THREADS; i++)
        fibres[i].stack = static_cast<char *>(memory) + STACK * i;
}

} // namespace

void fault(const char *format, ...) {
    char text[1024];
    va_list arguments;
    va_start(arguments, format);
    std::vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    if (now.fault.empty()) now.fault = text;
    now.stopping = true;
}

void stop_fibre() {
    for (;;) leave(State::done);
}

std::string source_line(const void *address) {
    Dl_info object;
    char command[1200], line[400] = "?";
    if (!dladdr(address, &object)) return line;
    const size_t offset = static_cast<const char *>(address) - 1 - static_cast<char *>(object.dli_fbase);
    std::snprintf(command, sizeof command, "addr2line -e '%s' 0x%zx 2>/dev/null", object.dli_fname, offset);
    if (FILE *tool = popen(command, "r")) {
        if (!std::fgets(line, sizeof line, tool)) std::strcpy(line, "?");
        pclose(tool);
    }
    line[std::strcspn(line, "\n")] = 0;
    const char *name = std::strrchr(line, '/');
    return name ? name + 1 : line;
}

} // namespace soft

using namespace soft;

extern "C" {

int soft_run(const soft_dispatch *dispatch, unsigned long seed, char *message, unsigned long room) {
    const soft_size g = dispatch->groups, t = dispatch->threads;
    now.dispatch = dispatch;
    now.fault.clear();
    now.stopping = false;
    now.serial++;
    now.n_threads = t.x * t.y * t.z;
    if (now.n_threads < 1 || now.n_threads > SOFT_THREADS)
        fault("%u threads in a threadgroup: not 1 to %d", now.n_threads, SOFT_THREADS);
    make_stacks();
    std::memset(variables, 0, sizeof variables);
    now.threadgroup_used = 0;
    random_state = seed * 2654435761u + 1;
    std::vector<unsigned> groups(size_t(g.x) * g.y * g.z), order(now.n_threads);
    std::iota(groups.begin(), groups.end(), 0u);
    if (seed) shuffle(groups);
    checker_new_dispatch();
    for (unsigned index : groups) {
        if (now.stopping) break;
        start_group(index);
        std::iota(order.begin(), order.end(), 0u);
        if (seed) shuffle(order);
        run_group(order);
    }
    left = -1;
    if (now.fault.empty()) return 0;
    std::snprintf(message, room, "%s: %s", dispatch->kernel->name, now.fault.c_str());
    return 1;
}

void soft_stop_after(long threads) { left = threads; }

unsigned soft_lane() { return now.fibre->index % SOFT_LANES; }

soft_size soft_number(int source) {
    const soft_size t = now.dispatch->threads, g = now.dispatch->groups, p = now.fibre->position;
    const unsigned index = now.fibre->index;
    switch (source) {
    case SOFT_THREAD_POSITION_IN_GRID:
        return {now.group.x * t.x + p.x, now.group.y * t.y + p.y, now.group.z * t.z + p.z};
    case SOFT_THREAD_POSITION_IN_THREADGROUP: return p;
    case SOFT_THREADGROUP_POSITION_IN_GRID: return now.group;
    case SOFT_THREAD_INDEX_IN_THREADGROUP: return {index, 0, 0};
    case SOFT_THREADS_PER_THREADGROUP: return t;
    case SOFT_THREADGROUPS_PER_GRID: return g;
    case SOFT_THREADS_PER_GRID: return {g.x * t.x, g.y * t.y, g.z * t.z};
    case SOFT_THREAD_INDEX_IN_SIMDGROUP: return {index % SOFT_LANES, 0, 0};
    case SOFT_SIMDGROUP_INDEX_IN_THREADGROUP: return {index / SOFT_LANES, 0, 0};
    case SOFT_SIMDGROUPS_PER_THREADGROUP: return {(now.n_threads + SOFT_LANES - 1) / SOFT_LANES, 0, 0};
    default: return {SOFT_LANES, 0, 0};
    }
}

void *soft_buffer(int index, unsigned long element) {
    void *start = now.dispatch->buffers[index];
    if (!start) {
        fault("buffer(%d) is not bound", index);
        stop_fibre();
    }
    if (now.dispatch->nbytes[index] < element) {
        fault("buffer(%d) holds %lu bytes, its type needs %lu", index, now.dispatch->nbytes[index], element);
        stop_fibre();
    }
    return start;
}

void *soft_threadgroup(int id, unsigned long nbytes) {
    auto &variable = variables[id];
    if (!variable.nbytes) {
        const size_t offset = (now.threadgroup_used + 15) / 16 * 16;
        if (offset + nbytes > SOFT_THREADGROUP_BYTES) {
            fault("threadgroup memory: %zu bytes, at most %d", offset + nbytes, SOFT_THREADGROUP_BYTES);
            stop_fibre();
        }
        variable = {offset, nbytes};
        now.threadgroup_used = offset + nbytes;
    }
    return threadgroup_memory + variable.offset;
}

void soft_barrier(int memory, const void *site) { leave(State::at_barrier, site, memory); }
void soft_simd_barrier(int memory, const void *site) { leave(State::at_simd_barrier, site, memory); }

// Two rooms that take turns: a lane may be one exchange ahead of another, never two.
unsigned soft_exchange(const void *mine, unsigned nbytes, void *all, const void *site) {
    const unsigned s = now.fibre->index / SOFT_LANES, turn = now.fibre->exchanges++ % 2;
    std::memcpy(exchanged[s][turn] + soft_lane() * nbytes, mine, nbytes);
    leave(State::at_simd_barrier, site);
    std::memcpy(all, exchanged[s][turn], SOFT_LANES * nbytes);
    return lanes[s];
}

} // extern "C"
