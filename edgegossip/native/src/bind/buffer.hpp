// Checked, zero-copy access to what Python passes: numpy arrays, bytes, memoryviews, through the buffer protocol; or a tuple
// (address, elements, format, owner) of memory that its owner keeps: torch takes 3 us to make a numpy array, and a step has hundreds.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <string>
#include <vector>

namespace edgegossip {

namespace nb = nanobind;

// One buffer, held for as long as this object lives. TypeError: no buffer, or another element type. ValueError: not
// one-dimensional and contiguous, not aligned, or read-only where it is to be written.
template <class T>
class Buffer {
public:
    Buffer(nb::handle object, const char* name, bool writable) : name_(name) {
        if (PyTuple_Check(object.ptr())) {
            take_place(object);
            return;
        }
        constexpr int READ = PyBUF_C_CONTIGUOUS | PyBUF_FORMAT;
        if (!PyObject_CheckBuffer(object.ptr())) throw nb::type_error((name_ + " must be " + wanted(writable)).c_str());
        if (PyObject_GetBuffer(object.ptr(), &view_, writable ? READ | PyBUF_WRITABLE : READ) != 0) {
            PyErr_Clear();
            throw nb::value_error((name_ + " must be " + wanted(writable)).c_str());
        }
        const bool right_type = view_.itemsize == Py_ssize_t(sizeof(T)) && has_format(view_.format);
        const bool one_dimension = view_.ndim == 1;
        const bool aligned = reinterpret_cast<uintptr_t>(view_.buf) % alignof(T) == 0;
        if (right_type && one_dimension && aligned) return;
        PyBuffer_Release(&view_);
        const std::string message = name_ + " must be " + wanted(writable);
        if (!right_type) throw nb::type_error(message.c_str());
        throw nb::value_error(message.c_str());
    }
    ~Buffer() { PyBuffer_Release(&view_); }  // nothing to release where no object gave it
    Buffer(const Buffer&) = delete;
    Buffer& operator=(const Buffer&) = delete;

    T* data() const { return static_cast<T*>(view_.buf); }
    int64_t size() const { return int64_t(view_.len) / int64_t(sizeof(T)); }

    void expect_size(int64_t size) const {
        if (this->size() == size) return;
        const std::string message = name_ + " must have " + std::to_string(size) + " elements, it has " + std::to_string(this->size());
        throw nb::value_error(message.c_str());
    }

private:
    // The owner lives as long as the tuple, which the caller holds.
    void take_place(nb::handle object) {
        nb::tuple place;
        const char* format = "";
        if (!nb::try_cast(object, place) || place.size() != 4) throw nb::type_error((name_ + " must be " + wanted(false)).c_str());
        uint64_t address = 0;
        int64_t count = 0;
        if (!nb::try_cast(place[0], address) || !nb::try_cast(place[1], count) || !nb::try_cast(place[2], format) || !has_format(format))
            throw nb::type_error((name_ + " must be " + wanted(false)).c_str());
        if (count < 0 || address % alignof(T) != 0) throw nb::value_error((name_ + " must be " + wanted(false)).c_str());
        view_.buf = reinterpret_cast<void*>(address);
        view_.len = Py_ssize_t(count) * Py_ssize_t(sizeof(T));
    }

    static bool has_format(const char* format);
    static const char* type_name();

    static std::string wanted(bool writable) {
        return std::string("an aligned, contiguous, one-dimensional ") + (writable ? "writable " : "") + "buffer of " + type_name();
    }

    std::string name_;
    Py_buffer view_{};
};

// A missing format means unsigned bytes.
inline bool is_format(const char* format, const char* codes) {
    if (format == nullptr) return *codes == 'B';
    if (*format == '<' || *format == '=' || *format == '@') format++;
    for (; *codes != 0; codes++)
        if (format[0] == *codes && format[1] == 0) return true;
    return false;
}

template <> inline bool Buffer<float>::has_format(const char* f) { return is_format(f, "f"); }
template <> inline bool Buffer<double>::has_format(const char* f) { return is_format(f, "d"); }
template <> inline bool Buffer<int64_t>::has_format(const char* f) { return is_format(f, "ql"); }  // 8 bytes by itemsize
template <> inline bool Buffer<uint8_t>::has_format(const char* f) { return is_format(f, "B"); }
template <> inline bool Buffer<int8_t>::has_format(const char* f) { return f != nullptr && is_format(f, "b"); }
template <> inline bool Buffer<int32_t>::has_format(const char* f) { return is_format(f, "il"); }  // 4 bytes by itemsize
template <> inline const char* Buffer<float>::type_name() { return "float32"; }
template <> inline const char* Buffer<double>::type_name() { return "float64"; }
template <> inline const char* Buffer<int64_t>::type_name() { return "int64"; }
template <> inline const char* Buffer<int8_t>::type_name() { return "int8"; }
template <> inline const char* Buffer<int32_t>::type_name() { return "int32"; }
template <> inline const char* Buffer<uint8_t>::type_name() { return "uint8"; }

// Offsets of tensors, checked against the n values they divide. Copied, so that no other thread can change them later.
inline std::vector<int64_t> read_offsets(nb::handle object, int64_t n) {
    const Buffer<int64_t> buffer(object, "offsets", false);
    const std::vector<int64_t> offsets(buffer.data(), buffer.data() + buffer.size());
    bool good = !offsets.empty() && offsets.front() == 0 && offsets.back() == n;
    for (size_t k = 1; good && k < offsets.size(); k++) good = offsets[k - 1] <= offsets[k];
    if (good) return offsets;
    const std::string message = "offsets must start at 0, never fall, and end at the number of values, " + std::to_string(n);
    throw nb::value_error(message.c_str());
}

}  // namespace edgegossip
