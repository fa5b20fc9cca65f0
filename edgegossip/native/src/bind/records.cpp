// The records that messages and state machines are made of: made (`quick.py`) and copied (`gossip/changed.py`). No kernel, and so
// no instruction set.

#include "../bind.hpp"

#ifndef Py_LIMITED_API
#include <structmember.h>
#endif

#include <unordered_map>

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

#ifndef Py_LIMITED_API  // which knows neither where slots lie nor how a class is called

struct Slot {
    PyObject* name;  // interned
    Py_ssize_t offset;
    PyObject* fallback;  // default or factory; nullptr: the field must be given
    bool is_factory;
};

using Slots = std::vector<Slot>;

std::unordered_map<const PyTypeObject*, Slots>& known_slots() {
    static auto* known = new std::unordered_map<const PyTypeObject*, Slots>;  // classes may outlive the end of the program
    return *known;
}

// As every class is called: with `__init__`, and its words on what is wrong.
PyObject* call_in_python(PyObject* cls, PyObject* const* args, Py_ssize_t positional, PyObject* names) {
    PyObject* values = PyTuple_New(positional);
    if (values == nullptr) return nullptr;
    for (Py_ssize_t k = 0; k < positional; k++) PyTuple_SET_ITEM(values, k, Py_NewRef(args[k]));
    PyObject* named = names == nullptr ? nullptr : PyDict_New();
    bool good = names == nullptr || named != nullptr;
    for (Py_ssize_t k = 0; good && named != nullptr && k < PyTuple_GET_SIZE(names); k++) {
        good = PyDict_SetItem(named, PyTuple_GET_ITEM(names, k), args[positional + k]) == 0;
    }
    PyObject* made = good ? PyType_Type.tp_call(cls, values, named) : nullptr;
    Py_DECREF(values);
    Py_XDECREF(named);
    return made;
}

// Cls(...): fills the slots one after the other.
PyObject* make_record(PyObject* cls, PyObject* const* args, size_t flagged, PyObject* names) {
    auto* type = reinterpret_cast<PyTypeObject*>(cls);
    const Py_ssize_t positional = PyVectorcall_NARGS(flagged);
    const Py_ssize_t named = names == nullptr ? 0 : PyTuple_GET_SIZE(names);
    const Slots& slots = known_slots().find(type)->second;
    const auto fields = static_cast<Py_ssize_t>(slots.size());
    if (positional + named > fields) return call_in_python(cls, args, positional, names);
    PyObject* record = PyType_GenericAlloc(type, 0);
    if (record == nullptr) return nullptr;
    const auto place = [record](const Slot& slot) -> PyObject*& {
        return *reinterpret_cast<PyObject**>(reinterpret_cast<char*>(record) + slot.offset);
    };
    for (Py_ssize_t k = 0; k < positional; k++) place(slots[k]) = Py_NewRef(args[k]);
    bool plain = true;
    for (Py_ssize_t k = 0, field = positional; plain && k < named; k++) {
        PyObject* name = PyTuple_GET_ITEM(names, k);
        const Py_ssize_t from = field;  // names mostly come in the fields' order
        while (field < fields && slots[field].name != name) field++;
        for (field = field < fields ? field : positional; field < from && slots[field].name != name;) field++;
        plain = field < fields && slots[field].name == name && place(slots[field]) == nullptr;
        if (plain) place(slots[field++]) = Py_NewRef(args[positional + k]);
    }
    for (Py_ssize_t k = positional; plain && k < fields; k++) {
        if (place(slots[k]) != nullptr) continue;
        plain = slots[k].fallback != nullptr;
        if (!plain) break;
        place(slots[k]) = slots[k].is_factory ? PyObject_CallNoArgs(slots[k].fallback) : Py_NewRef(slots[k].fallback);
        if (place(slots[k]) == nullptr) {
            Py_DECREF(record);
            return nullptr;
        }
    }
    if (plain) return record;
    Py_DECREF(record);
    return call_in_python(cls, args, positional, names);
}

// make_quickly(cls, rows): see `quick.Take`.
PyObject* make_quickly(PyObject*, PyObject* const* args, Py_ssize_t count) {
    if (count != 2 || !PyType_Check(args[0]) || !PyTuple_Check(args[1])) {
        PyErr_SetString(PyExc_TypeError, "make_quickly takes a class and a row for each of its fields");
        return nullptr;
    }
    auto* type = reinterpret_cast<PyTypeObject*>(args[0]);
    Slots slots;
    for (Py_ssize_t k = 0; k < PyTuple_GET_SIZE(args[1]); k++) {
        PyObject* name;
        int kind;
        PyObject* fallback;
        if (!PyArg_ParseTuple(PyTuple_GET_ITEM(args[1], k), "UiO", &name, &kind, &fallback)) return nullptr;
        PyObject* place = PyObject_GetAttr(args[0], name);  // the slot
        if (place == nullptr) return nullptr;
        const PyMemberDef* member = nullptr;
        if (Py_IS_TYPE(place, &PyMemberDescr_Type) && PyDescr_TYPE(place) == type) {
            member = reinterpret_cast<PyMemberDescrObject*>(place)->d_member;
        }
        Py_DECREF(place);  // the class has it
        if (member == nullptr) {
            PyErr_Format(PyExc_TypeError, "%s has no slot %U", type->tp_name, name);
            return nullptr;
        }
        Py_INCREF(name);
        PyUnicode_InternInPlace(&name);  // kept for good, as the class is
        slots.push_back({name, member->offset, kind == 0 ? nullptr : Py_NewRef(fallback), kind == 2});
    }
    known_slots()[type] = std::move(slots);
    type->tp_vectorcall = make_record;
    Py_RETURN_NONE;
}

#endif

PyMethodDef methods[] = {
#ifndef Py_LIMITED_API
    {"make_quickly", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(make_quickly)), METH_FASTCALL, nullptr},
#endif
    {"changed", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(changed)), METH_FASTCALL | METH_KEYWORDS, nullptr},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace

void bind_records(nb::module_& m) {
    if (PyModule_AddFunctions(m.ptr(), methods) < 0) throw nb::python_error();
}

}  // namespace edgegossip
