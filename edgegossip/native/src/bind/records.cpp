// Copies of the records that state machines are made of: `gossip/changed.py`. No kernel, and so no instruction set.

#include "../bind.hpp"

namespace edgegossip {
namespace {

// changed(record, **changes): called several times a message, and so without nanobind's conversion of keywords.
PyObject* changed(PyObject*, PyObject* const* args, Py_ssize_t positional, PyObject* names) {
    if (positional != 1) {
        PyErr_SetString(PyExc_TypeError, "changed takes one record and the fields to change by name");
        return nullptr;
    }
    PyObject* record = args[0];
    PyObject* before = PyObject_GenericGetDict(record, nullptr);
    if (before == nullptr) return nullptr;
    const Py_ssize_t fields = PyDict_Size(before);
    PyObject* after = PyDict_Copy(before);
    Py_DECREF(before);
    if (after == nullptr) return nullptr;
    const Py_ssize_t changes = names == nullptr ? 0 : PyTuple_Size(names);
    for (Py_ssize_t k = 0; k < changes; k++) {
        PyObject* name = PyTuple_GetItem(names, k);  // borrowed
        if (PyDict_SetItem(after, name, args[1 + k]) < 0) {
            Py_DECREF(after);
            return nullptr;
        }
        if (PyDict_Size(after) != fields) {
            PyObject* of = PyObject_GetAttrString(reinterpret_cast<PyObject*>(Py_TYPE(record)), "__name__");
            if (of != nullptr) PyErr_Format(PyExc_TypeError, "%U has no field %U", of, name);
            Py_XDECREF(of);
            Py_DECREF(after);
            return nullptr;
        }
    }
    PyTypeObject* type = Py_TYPE(record);
    const auto allocate = reinterpret_cast<allocfunc>(PyType_GetSlot(type, Py_tp_alloc));
    PyObject* copy = allocate(type, 0);
    if (copy != nullptr && PyObject_GenericSetDict(copy, after, nullptr) < 0) Py_CLEAR(copy);
    Py_DECREF(after);
    return copy;
}

PyMethodDef methods[] = {
    {"changed", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(changed)), METH_FASTCALL | METH_KEYWORDS, nullptr},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace

void bind_records(nb::module_& m) {
    if (PyModule_AddFunctions(m.ptr(), methods) < 0) throw nb::python_error();
}

}  // namespace edgegossip
