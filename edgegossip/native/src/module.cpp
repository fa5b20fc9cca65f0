// Python bindings: check the arguments, choose the instruction set, release the GIL, call the kernel.

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cmath>
#include <cstdlib>
#include <optional>
#include <string>
#include <vector>

#include "buffer.hpp"
#include "cpu.hpp"
#include "float_env.hpp"

namespace nb = nanobind;
using namespace edgegossip;

namespace {

constexpr const char* ENV = "EDGEGOSSIP_ISA";

std::vector<std::string> available_names() {
    std::vector<std::string> names;
    for (const Isa& isa : available_isas()) names.emplace_back(isa.name);
    return names;
}

[[noreturn]] void raise_unusable(const std::string& name, bool from_env) {
    bool known = false;
    for (const Isa& isa : compiled_isas()) known = known || name == isa.name;
    std::string message = (from_env ? std::string(ENV) + "=" : std::string("isa=")) + name;
    message += known ? ": this machine does not have that instruction set" : ": no such instruction set is built in";
    message += "; it can use ";
    const std::vector<std::string> names = available_names();
    for (size_t k = 0; k < names.size(); k++) message += (k ? ", " : "") + names[k];
    const nb::object error = nb::module_::import_("edgegossip.types").attr("LocalError");
    PyErr_SetString(error.ptr(), message.c_str());
    throw nb::python_error();
}

// The argument if given, else the environment variable if set, else the best that the machine has.
const Isa& choose(const std::optional<std::string>& argument) {
    const char* env = std::getenv(ENV);
    const bool from_env = !argument && env != nullptr && *env != 0;
    if (!argument && !from_env) return *best_isa();
    const std::string name = from_env ? env : *argument;
    if (const Isa* isa = find_isa(name)) return *isa;
    raise_unusable(name, from_env);
}

float checked_weight(double weight) {
    const float narrow = float(weight);
    if (!std::isfinite(narrow)) throw nb::value_error("weight must be a finite float32");
    return narrow;
}

using Name = std::optional<std::string>;

int64_t first_nonfinite(nb::handle x_object, nb::handle offsets_object, const Name& isa_name) {
    const Kernels& kernels = *choose(isa_name).kernels;
    const Buffer<float> x(x_object, "x", false);
    const std::vector<int64_t> offsets = read_offsets(offsets_object, x.size());
    nb::gil_scoped_release unlocked;
    return kernels.first_nonfinite(x.data(), offsets.data(), int64_t(offsets.size()) - 1);
}

int64_t minmax8_encode(nb::handle x_object, nb::handle offsets_object, nb::handle out_object, const Name& isa_name) {
    const Kernels& kernels = *choose(isa_name).kernels;
    const Buffer<float> x(x_object, "x", false);
    const std::vector<int64_t> offsets = read_offsets(offsets_object, x.size());
    const int64_t tensors = int64_t(offsets.size()) - 1;
    const Buffer<uint8_t> out(out_object, "out", true);
    out.expect_size(8 * tensors + x.size());
    nb::gil_scoped_release unlocked;
    DefaultFloatEnv env;
    return kernels.minmax8_encode(x.data(), offsets.data(), tensors, out.data());
}

int64_t minmax8_decode(nb::handle body_object, nb::handle offsets_object, nb::handle out_object,
                       std::optional<double> weight, const Name& isa_name) {
    const Kernels& kernels = *choose(isa_name).kernels;
    const Buffer<float> out(out_object, "out", true);
    const std::vector<int64_t> offsets = read_offsets(offsets_object, out.size());
    const int64_t tensors = int64_t(offsets.size()) - 1;
    const Buffer<uint8_t> body(body_object, "body", false);
    body.expect_size(8 * tensors + out.size());
    const float narrow = weight ? checked_weight(*weight) : 1.0f;
    nb::gil_scoped_release unlocked;
    DefaultFloatEnv env;
    return kernels.minmax8_decode(body.data(), offsets.data(), tensors, out.data(), weight.has_value(), narrow);
}

}  // namespace

NB_MODULE(_native, m) {
    using nb::literals::operator""_a;
    m.def("isa", [] { return std::string(choose(std::nullopt).name); });
    m.def("available_isas", &available_names);
    m.def("compiled_isas", [] {
        std::vector<std::string> names;
        for (const Isa& isa : compiled_isas()) names.emplace_back(isa.name);
        return names;
    });
    m.def("first_nonfinite", &first_nonfinite, "x"_a.none(), "offsets"_a.none(), "isa"_a.none() = nb::none());
    m.def("minmax8_encode", &minmax8_encode, "x"_a.none(), "offsets"_a.none(), "out"_a.none(), "isa"_a.none() = nb::none());
    m.def("minmax8_decode", &minmax8_decode, "body"_a.none(), "offsets"_a.none(), "out"_a.none(), "weight"_a.none() = nb::none(),
          "isa"_a.none() = nb::none());
}
