// Keys of the counter-based generators, one by one: `codecs/keys.py`. No kernel, and so no instruction set.

#include "bind/bind.hpp"

namespace edgegossip {
namespace {

std::uint64_t mixed(std::uint64_t value) {
    std::uint64_t z = value + 0x9E3779B97F4A7C15;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
    return z ^ (z >> 31);
}

// value modulo 2^64; false with an error set when it is no whole number.
bool read(PyObject* value, std::uint64_t& word) {
    word = PyLong_AsUnsignedLongLongMask(value);
    return word != static_cast<std::uint64_t>(-1) || PyErr_Occurred() == nullptr;
}

// splitmix64(value): several times a message, and so without nanobind's conversions, which refuse what is beyond 2^64.
PyObject* splitmix64(PyObject*, PyObject* value) {
    std::uint64_t word;
    return read(value, word) ? PyLong_FromUnsignedLongLong(mixed(word)) : nullptr;
}

// derive_key(seed, *counters)
PyObject* derive_key(PyObject*, PyObject* const* args, Py_ssize_t count) {
    std::uint64_t key = 0;
    for (Py_ssize_t k = 0; k < count; k++) {
        std::uint64_t word;
        if (!read(args[k], word)) return nullptr;
        key = mixed(key ^ word);
    }
    return PyLong_FromUnsignedLongLong(key);
}

PyMethodDef methods[] = {
    {"splitmix64", splitmix64, METH_O, nullptr},
    {"derive_key", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(derive_key)), METH_FASTCALL, nullptr},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace

void bind_keys(nb::module_& m) {
    if (PyModule_AddFunctions(m.ptr(), methods) < 0) throw nb::python_error();
}

}  // namespace edgegossip
