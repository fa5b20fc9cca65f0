#include "runtime/buffer_pool.hpp"

#include <algorithm>
#include <iterator>
#include <new>

#if defined(__linux__)
#include <sys/mman.h>
#include <unistd.h>
#endif

#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define EDGEGOSSIP_CLANG_ADDRESS
#endif
#endif

namespace edgegossip {

namespace {

constexpr int64_t UNIT = 64;
constexpr std::align_val_t ALIGNMENT{UNIT};
constexpr int64_t SPAN = int64_t(1) << 26;  // or as much as there is already
#if defined(__SANITIZE_ADDRESS__) || defined(EDGEGOSSIP_CLANG_ADDRESS)
constexpr int64_t LEAST = INT64_MAX;  // the sanitizer sees the ends of no others
#else
constexpr int64_t LEAST = int64_t(1) << 16;  // smaller blocks the C library keeps by itself
#endif

int64_t rounded(int64_t size) { return (size + UNIT - 1) / UNIT * UNIT; }

// Whole pages between two places: what they held is lost, and they are resident no more.
void forget([[maybe_unused]] char* from, [[maybe_unused]] char* to) {
#if defined(__linux__)
    const uintptr_t page = uintptr_t(sysconf(_SC_PAGESIZE));
    const uintptr_t first = (reinterpret_cast<uintptr_t>(from) + page - 1) / page * page, last = reinterpret_cast<uintptr_t>(to) / page * page;
    if (first < last) madvise(reinterpret_cast<void*>(first), last - first, MADV_DONTNEED);
#endif
}

}  // namespace

Pool::Spans::iterator Pool::span_of(char* place) { return std::prev(spans_.upper_bound(place)); }

bool Pool::add_span(int64_t least) {
    for (const int64_t size : {std::max({least, SPAN, spans_bytes_}), least}) {
        void* const memory = ::operator new(size_t(size), ALIGNMENT, std::nothrow);
        if (memory == nullptr) continue;
        spans_[static_cast<char*>(memory)] = {size, 0, 0};
        spans_bytes_ += size;
        set_free(static_cast<char*>(memory), size);
        return true;
    }
    return false;
}

void Pool::set_free(char* place, int64_t size) {
    free_[place] = size;
    free_by_size_.insert({size, place});
}

void Pool::set_used(Blocks::iterator block) {
    free_by_size_.erase({block->second, block->first});
    free_.erase(block);
}

void* Pool::take(int64_t asked) {
    if (asked < LEAST) return ::operator new(size_t(asked), ALIGNMENT, std::nothrow);
    const int64_t size = rounded(asked);
    const std::lock_guard<std::mutex> guard(lock_);
    keeps_ = true;
    auto best = free_by_size_.lower_bound({size, nullptr});
    if (best == free_by_size_.end()) {
        if (!add_span(size)) return nullptr;
        best = free_by_size_.lower_bound({size, nullptr});
    }
    const auto [available, place] = *best;
    set_used(free_.find(place));
    if (available > size) set_free(place + size, available - size);
    auto& [start, span] = *span_of(place);
    span.used += size;
    span.top = std::max<int64_t>(span.top, place + size - start);
    return place;
}

void Pool::put(void* block, int64_t asked) {
    if (asked < LEAST) return ::operator delete(block, ALIGNMENT);
    const std::lock_guard<std::mutex> guard(lock_);
    char* const place = static_cast<char*>(block);
    const auto span = span_of(place);
    span->second.used -= rounded(asked);
    merge(span, place, rounded(asked));
    if (!keeps_) to_system(span);
}

// Free, as one with the neighbours that are free.
void Pool::merge(Spans::iterator span, char* place, int64_t size) {
    const auto after = free_.find(place + size);
    if (after != free_.end() && after->first < span->first + span->second.size) {
        size += after->second;
        set_used(after);
    }
    const auto next = free_.lower_bound(place);
    if (next != free_.begin()) {
        const auto before = std::prev(next);
        if (before->first >= span->first && before->first + before->second == place) {
            place = before->first;
            size += before->second;
            set_used(before);
        }
    }
    set_free(place, size);
}

// What is free of it; all of it where nothing is in use.
void Pool::to_system(Spans::iterator at) {
    char* const start = at->first;
    Span& span = at->second;
    if (span.used == 0) {
        set_used(free_.find(start));
        spans_bytes_ -= span.size;
        spans_.erase(at);
        return ::operator delete(start, ALIGNMENT);
    }
    char *const end = start + span.size, *const top = start + span.top;
    for (auto block = free_.lower_bound(start); block != free_.end() && block->first < end; ++block) {
        forget(block->first, std::min(block->first + block->second, top));
        if (block->first + block->second == end) span.top = std::min<int64_t>(span.top, block->first - start);
    }
}

void Pool::drop() {
    const std::lock_guard<std::mutex> guard(lock_);
    for (auto span = spans_.begin(); span != spans_.end();) to_system(span++);
    keeps_ = false;
}

int64_t Pool::waiting_bytes() const {
    const std::lock_guard<std::mutex> guard(lock_);
    int64_t bytes = 0;
    for (const auto& [start, span] : spans_) bytes += span.top - span.used;
    return bytes;
}

Pool& pool() {
    static Pool* const only = new Pool;
    return *only;
}

}  // namespace edgegossip
