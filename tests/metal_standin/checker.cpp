// The checker: sees each access of a kernel that was compiled with -fsanitize=thread.
//
// The compiler calls __tsan_read4 and its like before each access to memory; these are ours, not the
// library of that sanitizer. Each access must lie in a buffer that is bound, be aligned, in
// threadgroup memory find what was written in this group, and race with no other thread.
#include "runtime.hpp"
#include <algorithm>
#include <cstring>
#include <dlfcn.h>
#include <link.h>
#include <map>

using namespace soft;

namespace {

// Of each two bytes: who wrote last and who read last, with the barriers that they had behind them.
struct Touch { uint32_t thread, epoch, simd_epoch; };
struct Cell { uint32_t of; Touch written, read; }; // of: the dispatch, or group, that touched it
constexpr size_t GRAIN = 2;

struct Region {
    const char *start, *end;
    bool read_only, threadgroup;
    std::vector<Cell> cells;
};

std::map<const char *, Region> regions;
Region group_region{threadgroup_memory, threadgroup_memory + SOFT_THREADGROUP_BYTES, false, true, {}};
unsigned char group_written[SOFT_THREADGROUP_BYTES ]; // of each byte: 1, if some thread has
std::vector<Region *> reachable; // of the dispatch that runs
uint32_t groups_run;             // in all: threadgroup memory begins anew with each

Region *region_of(const char *p) {
    auto next = regions.upper_bound(p);
    if (next == regions.begin()) return nullptr;
    Region &region = std::prev(next)->second;
    return p < region.end ? &region : nullptr;
}

Region *find(const char *p) {
    if (p >= group_region.start && p < group_region.end) return &group_region;
    for (size_t i = 0; i < reachable.size(); i++)
        if (p >= reachable[i]->start && p < reachable[i]->end) {
            std::swap(reachable[0], reachable[i]);
            return reachable[0];
        }
    return nullptr;
}

void out_of_bounds(const char *p, size_t n, const char *verb, const void *site) {
    const Region *before = nullptr;
    for (Region *region : reachable)
        if (!region->read_only && p >= region->start && (!before || region->start > before->start))
            before = region;
    std::string past;
    if (before)
        past = ": " + std::to_string(p - before->end) + " bytes past a buffer of " +
               std::to_string(before->end - before->start);
    const soft_size g = now.group, t = now.fibre->position;
    fault("out of bounds %s of %zu bytes at %s by thread (%u,%u,%u) of group (%u,%u,%u)%s", verb, n,
          source_line(site).c_str(), t.x, t.y, t.z, g.x, g.y, g.z, past.c_str());
}

std::string thread_name(uint32_t thread) {
    return "thread " + std::to_string((thread - 1) % SOFT_THREADS) + " of group " +
           std::to_string((thread - 1) / SOFT_THREADS);
}

// Whether what a thread did happens before what the running one does: a barrier lies between.
bool before(const Touch &touch, uint32_t me, uint32_t epoch) {
    if (!touch.thread || touch.thread == me) return true;
    const uint32_t group = (touch.thread - 1) / SOFT_THREADS, index = (touch.thread - 1) % SOFT_THREADS;
    if (group != now.group_index) return false;
    if (touch.epoch < epoch) return true;
    const uint32_t simd = now.fibre->index / SOFT_LANES;
    return index / SOFT_LANES == simd && touch.simd_epoch < now.epochs.simdgroup[simd];
}

bool race(Region &region, const char *p, size_t n, bool write, const void *site) {
    if (region.cells.empty()) region.cells.resize((region.end - region.start) / GRAIN + 1);
    const uint32_t me = now.group_index * SOFT_THREADS + now.fibre->index + 1;
    const uint32_t epoch = region.threadgroup ? now.epochs.threadgroup : now.epochs.device;
    const uint32_t of = region.threadgroup ? groups_run : now.serial;
    const Touch touch{me, epoch, now.epochs.simdgroup[now.fibre->index / SOFT_LANES]};
    for (size_t i = (p - region.start) / GRAIN; i <= (p - region.start + n - 1) / GRAIN; i++) {
        Cell &cell = region.cells[i];
        if (cell.of != of) cell = Cell{of, {}, {}};
        const bool after_write = before(cell.written, me, epoch);
        if (!after_write || (write && !before(cell.read, me, epoch))) {
            const Touch &other = after_write ? cell.read : cell.written;
            fault("race in %s memory: %s at %s by %s, %s by %s, no barrier between",
                  region.threadgroup ? "threadgroup" : "device", write ? "written" : "read",
                  source_line(site).c_str(), thread_name(me).c_str(), after_write ? "read" : "written",
                  thread_name(other.thread).c_str());
            return true;
        }
        if (write) cell.written = touch;
        else if (before(cell.read, me, epoch)) cell.read = touch;
    }
    return false;
}

bool uninitialised(const char *p, size_t n, bool write, const void *site) {
    const size_t offset = p - group_region.start;
    if (offset + n > now.threadgroup_used) {
        fault("out of bounds threadgroup %s at %s: byte %zu of %zu", write ? "write" : "read",
              source_line(site).c_str(), offset, now.threadgroup_used);
        return true;
    }
    static const unsigned char all[4] = {1, 1, 1, 1};
    if (write) {
        std::memset(group_written + offset, 1, n);
        return false;
    }
    if (n == 4 && !std::memcmp(group_written + offset, all, 4)) return false;
    for (size_t i = offset; i < offset + n; i++) {
        if (!group_written[i]) {
            fault("threadgroup memory read before it is written at %s: byte %zu", source_line(site).c_str(), i);
            return true;
        }
    }
    return false;
}

void access(const void *address, size_t n, bool write, bool aligned, const void *site) {
    if (!now.fibre || now.stopping) return;
    const char *p = static_cast<const char *>(address);
    if (p >= now.fibre->stack && p < now.fibre->stack + STACK) return; // its own
    const char *verb = write ? "write" : "read";
    Region *region = find(p);
    if (!region || p + n > region->end) out_of_bounds(p, n, verb, site);
    else if (aligned && reinterpret_cast<uintptr_t>(p) % n)
        fault("misaligned %s of %zu bytes at %s", verb, n, source_line(site).c_str());
    else if (region->read_only && write) fault("write to constants at %s", source_line(site).c_str());
    else if (region->read_only) return;
    else if (!(region->threadgroup && uninitialised(p, n, write, site)) && !race(*region, p, n, write, site))
        return;
    stop_fibre();
}

int add_constants(dl_phdr_info *object, size_t, void *base) {
    if (reinterpret_cast<void *>(object->dlpi_addr) != base) return 0;
    for (int i = 0; i < object->dlpi_phnum; i++) {
        const auto &segment = object->dlpi_phdr[i];
        if (segment.p_type == PT_LOAD)
            soft_memory_add(static_cast<char *>(base) + segment.p_vaddr, segment.p_memsz, 1);
    }
    return 0;
}

} // namespace

namespace soft {

void checker_new_dispatch() {
    reachable.clear();
    for (void *buffer : now.dispatch->buffers)
        if (Region *region = buffer ? region_of(static_cast<char *>(buffer)) : nullptr)
            if (std::find(reachable.begin(), reachable.end(), region) == reachable.end())
                reachable.push_back(region);
    for (auto &item : regions)
        if (item.second.read_only) reachable.push_back(&item.second);
}

void checker_new_group() {
    std::memset(group_written, 0, sizeof group_written);
    groups_run++;
}

} // namespace soft

extern "C" {

void soft_memory_add(const void *start, unsigned long nbytes, int read_only) {
    const char *first = static_cast<const char *>(start);
    regions[first] = Region{first, first + nbytes, read_only != 0, false, {}};
}

void soft_memory_remove(const void *start) { regions.erase(static_cast<const char *>(start)); }

void soft_library_add(const void *symbol) {
    Dl_info object;
    if (dladdr(symbol, &object)) dl_iterate_phdr(add_constants, object.dli_fbase);
}

#define SITE __builtin_return_address(0)
#define ACCESSES(n) \
    void __tsan_read##n(void *p) { access(p, n, false, true, SITE); } \
    void __tsan_write##n(void *p) { access(p, n, true, true, SITE); } \
    void __tsan_unaligned_read##n(void *p) { access(p, n, false, false, SITE); } \
    void __tsan_unaligned_write##n(void *p) { access(p, n, true, false, SITE); }
ACCESSES(1) ACCESSES(2) ACCESSES(4) ACCESSES(8) ACCESSES(16)
void __tsan_init() {}
void *__tsan_memcpy(void *to, const void *from, size_t n) {
    access(from, n, false, false, SITE);
    access(to, n, true, false, SITE);
    return std::memcpy(to, from, n);
}
void *__tsan_memset(void *to, int value, size_t n) {
    access(to, n, true, false, SITE);
    return std::memset(to, value, n);
}

} // extern "C"
