// Blocks of memory that wait for the next use of their size: a C library gives large ones back to the system as soon as they
// are free, and the system clears them for the next use. Safe in any thread.
#pragma once

#include <cstdint>
#include <list>
#include <mutex>
#include <new>
#include <unordered_map>
#include <utility>
#include <vector>

namespace edgegossip {

class Pool {
public:
    // Aligned to a cache line; nullptr where the system has no memory. Comes back by put() with its size.
    void* take(int64_t size);
    void put(void* block, int64_t size);

    // Give what waits to the system, and until the next take() what comes back. What was most in use counts anew.
    void drop();

    int64_t waiting_bytes() const;

private:
    using Sizes = std::list<std::pair<int64_t, std::vector<void*>>>;

    std::vector<void*>& blocks_of(int64_t size);
    void free_oldest();

    mutable std::mutex lock_;
    Sizes sizes_;  // the one asked for last at the end
    std::unordered_map<int64_t, Sizes::iterator> places_;
    bool keeps_ = true;
    int64_t waiting_ = 0, used_ = 0, most_used_ = 0;
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
