// Tensors whose memory comes from the pool, as DLPack capsules: what a library makes of one gives it back by the capsule's deleter.
#include "runtime/buffer_pool.hpp"

#include <algorithm>
#include <memory>
#include <new>

#include "bind/bind.hpp"

namespace edgegossip {
namespace {

// The C structures of DLPack before version 1, in an unversioned capsule ("dltensor").
struct Device {
    int32_t type, id;
};
struct DataType {
    uint8_t code, bits;
    uint16_t lanes;
};
struct Tensor {
    void* data;
    Device device;
    int32_t dimensions;
    DataType type;
    int64_t *shape, *strides;
    uint64_t offset;
};
struct ManagedTensor {
    Tensor tensor;
    void* context;
    void (*deleter)(ManagedTensor*);
};

constexpr int32_t CPU = 1;
constexpr uint8_t SIGNED = 0, UNSIGNED = 1, FLOAT = 2;
constexpr size_t MOST_DIMENSIONS = 4;
constexpr int64_t LARGEST = int64_t(1) << 46;
constexpr const char* CAPSULE = "dltensor";  // a consumer gives it another name

struct Lent {
    ManagedTensor managed;
    int64_t shape[MOST_DIMENSIONS], strides[MOST_DIMENSIONS], bytes;
};

DataType type_of(const std::string& format) {
    if (format == "f") return {FLOAT, 32, 1};
    if (format == "b") return {SIGNED, 8, 1};
    if (format == "B") return {UNSIGNED, 8, 1};
    throw nb::value_error("the format must be f, b or B");
}

void give_back(ManagedTensor* managed) {
    Lent* const lent = static_cast<Lent*>(managed->context);
    pool().put(managed->tensor.data, lent->bytes);
    delete lent;
}

void capsule_gone(PyObject* capsule) {
    if (!PyCapsule_IsValid(capsule, CAPSULE)) return;
    ManagedTensor* const managed = static_cast<ManagedTensor*>(PyCapsule_GetPointer(capsule, CAPSULE));
    managed->deleter(managed);
}

// Contiguous in the order of `size`; with channels_first [batch, height, width, channels] is shown as [batch, channels, height, width].
nb::object pool_empty(const std::vector<int64_t>& size, const std::string& format, bool channels_first) {
    const size_t dimensions = size.size();
    if (dimensions < 1 || dimensions > MOST_DIMENSIONS || (channels_first && dimensions != 4)) throw nb::value_error("1 to 4 dimensions");
    auto lent = std::make_unique<Lent>();
    const DataType type = type_of(format);
    lent->bytes = type.bits / 8;
    for (size_t k = dimensions; k-- > 0;) {
        if (size[k] < 1 || size[k] > LARGEST / lent->bytes) throw nb::value_error("the size is out of range");
        lent->shape[k] = size[k];
        lent->strides[k] = lent->bytes / (type.bits / 8);
        lent->bytes *= size[k];
    }
    if (channels_first)
        for (int64_t* of : {lent->shape, lent->strides}) std::rotate(of + 1, of + 3, of + 4);
    void* const block = pool().take(lent->bytes);
    if (block == nullptr) throw std::bad_alloc();
    lent->managed = {{block, {CPU, 0}, int32_t(dimensions), type, lent->shape, lent->strides, 0}, lent.get(), &give_back};
    PyObject* const capsule = PyCapsule_New(&lent->managed, CAPSULE, &capsule_gone);
    if (capsule == nullptr) {
        pool().put(block, lent->bytes);
        throw nb::python_error();
    }
    lent.release();
    return nb::steal(capsule);
}

}  // namespace

void bind_pool(nb::module_& m) {
    using nb::literals::operator""_a;
    m.def("pool_empty", &pool_empty, "size"_a, "format"_a, "channels_first"_a);
    m.def("pool_drop", [] { pool().drop(); });
    m.def("pool_waiting_bytes", [] { return pool().waiting_bytes(); });
}

}  // namespace edgegossip
