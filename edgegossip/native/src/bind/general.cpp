#include "bind/bind.hpp"
#include "bind/gil.hpp"

namespace edgegossip {
namespace {

int64_t first_nonfinite(nb::handle x_object, nb::handle offsets_object, const Name& isa_name) {
    const Kernels& kernels = *choose(isa_name).kernels;
    const Buffer<float> x(x_object, "x", false);
    const std::vector<int64_t> offsets = read_offsets(offsets_object, x.size());
    WithoutGil unlocked;
    return kernels.general.first_nonfinite(x.data(), offsets.data(), int64_t(offsets.size()) - 1);
}

}  // namespace

void bind_general(nb::module_& m) {
    using nb::literals::operator""_a;
    m.def("isa", [] { return std::string(choose(std::nullopt).name); });
    m.def("available_isas", &available_names);
    m.def("compiled_isas", [] {
        std::vector<std::string> names;
        for (const Isa& isa : compiled_isas()) names.emplace_back(isa.name);
        return names;
    });
    m.def("first_nonfinite", &first_nonfinite, "x"_a.none(), "offsets"_a.none(), "isa"_a.none() = nb::none());
}

}  // namespace edgegossip
