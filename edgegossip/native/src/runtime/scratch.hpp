// Memory that is written before it is read: not cleared, unlike a vector, which for small tensors took longer than coding.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>

namespace edgegossip::coding {

// On a cache line's boundary: kernels load whole vectors.
constexpr std::align_val_t SCRATCH_ALIGNMENT{64};

template <class T>
class Scratch {
public:
    Scratch() = default;
    explicit Scratch(int64_t size) { need(size); }

    // Room for this many; what was there may be lost.
    void need(int64_t size) {
        if (size <= size_) return;
        data_.reset(static_cast<T*>(::operator new[](size_t(size) * sizeof(T), SCRATCH_ALIGNMENT)));
        size_ = size;
    }
    T* data() const { return data_.get(); }

private:
    struct Free {
        void operator()(T* p) const { ::operator delete[](p, SCRATCH_ALIGNMENT); }
    };
    std::unique_ptr<T[], Free> data_;
    int64_t size_ = 0;
};

}  // namespace edgegossip::coding
