#include "net/relay.hpp"

#include <system_error>

#include "bind/bind.hpp"
#include "bind/gil.hpp"

namespace edgegossip {

void bind_relay(nb::module_& m) {
    nb::class_<Relay>(m, "Relay")
        .def("__init__",
             [](Relay* self) {
                 try {
                     new (self) Relay();
                 } catch (const std::system_error& error) {
                     errno = error.code().value();
                     PyErr_SetFromErrno(PyExc_OSError);
                     throw nb::python_error();
                 }
             })
        .def("add", &Relay::add, nb::arg("outside"), nb::arg("inside"), nb::call_guard<WithoutGil>())
        .def("cut", &Relay::cut, nb::arg("id"), nb::call_guard<WithoutGil>())
        .def("fileno", &Relay::fileno)
        .def("ended",
             [](Relay& self) {
                 nb::list rows;
                 for (const RelayEnded& e : self.ended()) rows.append(nb::make_tuple(e.id, e.in_bytes, e.out_bytes));
                 return rows;
             })
        .def("close", &Relay::close, nb::call_guard<WithoutGil>());
}

}  // namespace edgegossip
