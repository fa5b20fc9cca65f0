// Memory that waits for its next use: a C library gives large blocks back to the system as soon as they are free, and the system
// clears them for the next use. Blocks lie side by side in large spans, and neighbours that are free are one: what a forward pass
// kept in many small blocks is there for the few large ones of the backward pass. Safe in any thread.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <new>
#include <set>
#include <utility>

namespace edgegossip {

class Pool {
public:
    // Aligned to a cache line; nullptr where the system has no memory. Comes back by put() with its size.
    void* take(int64_t size);
    void put(void* block, int64_t size);

    // Give what waits to the system, and until the next take() what comes back.
    void drop();

    // That were in use and are free; holes that drop() left between blocks in use count too.
    int64_t waiting_bytes() const;

private:
    struct Span {
        int64_t size, used, top;  // bytes; nothing from `top` on was ever in use, so that the system has not given it yet
    };
    using Spans = std::map<char*, Span>;
    using Blocks = std::map<char*, int64_t>;

    Spans::iterator span_of(char* place);
    bool add_span(int64_t least);
    void set_free(char* place, int64_t size);
    void set_used(Blocks::iterator block);
    void merge(Spans::iterator span, char* place, int64_t size);
    void to_system(Spans::iterator span);

    mutable std::mutex lock_;
    Spans spans_;
    Blocks free_;                                     // by place
    std::set<std::pair<int64_t, char*>> free_by_size_;  // the same
    int64_t spans_bytes_ = 0;
    bool keeps_ = true;
};

// The one that tensors come from; never destroyed, because tensors may outlive everything else.
Pool& pool();

// As coding::Scratch, from the pool: for memory that lives as long as a call.
template <class T>
class Pooled {
public:
    Pooled() = default;
    Pooled(Pooled&& other) noexcept : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}
    Pooled& operator=(Pooled&&) = delete;
    ~Pooled() { release(); }

    // Room for this many; what was there may be lost.
    void need(int64_t size) {
        if (size <= size_) return;
        release();
        data_ = static_cast<T*>(pool().take(size * int64_t(sizeof(T))));
        if (data_ == nullptr) throw std::bad_alloc();
        size_ = size;
    }
    T* data() const { return data_; }

private:
    void release() {
        if (data_ != nullptr) pool().put(data_, size_ * int64_t(sizeof(T)));
        data_ = nullptr;
        size_ = 0;
    }
    T* data_ = nullptr;
    int64_t size_ = 0;
};

}  // namespace edgegossip
