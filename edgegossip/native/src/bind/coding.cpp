#include "../bind.hpp"
#include "../core/quantised.hpp"
#include "quantiser_spec.hpp"

namespace edgegossip {
namespace {

using namespace coding;

Choice checked_choice(int choice) {
    if (choice < int(Choice::RAW) || choice > int(Choice::AUTO)) throw nb::value_error("choice must be 0 to 3");
    return Choice(choice);
}

// The tables named by their row: uint8[rows * 2^w], which must outlive the call.
StaticTables checked_tables(const Buffer<uint8_t>& weights, const QuantiserSpec& spec, int preferred) {
    const int64_t row = int64_t(1) << (spec.q.bits < 8 ? spec.q.bits : 8);
    if (weights.size() % row != 0) throw nb::value_error("static tables must be whole rows of 2^bits weights");
    const int64_t count = weights.size() / row;
    if (count > 255 || preferred < -1 || preferred >= count) throw nb::value_error("there is no such static table");
    return {weights.data(), int(count), preferred};
}

int64_t coding_bound(nb::handle spec_object, int64_t n, int choice) {
    const QuantiserSpec spec(spec_object);
    if (n < 0) throw nb::value_error("n must not be below 0");
    return section_bound(n, spec.q, checked_choice(choice));
}

// Without `linf` the scales are given.
int64_t coding_encode(nb::handle spec_object, nb::handle x_object, uint64_t key, int choice, std::optional<bool> linf,
                      nb::handle scales_object, nb::handle tables_object, int preferred, nb::handle state_object,
                      nb::handle out_object, std::optional<int> threads_argument, const Name& isa_name) {
    const Kernels& kernels = *choose(isa_name).kernels;
    const int threads = choose_threads(threads_argument);
    const QuantiserSpec spec(spec_object);
    const Buffer<float> x(x_object, "x", false), scales(scales_object, "scales", false);
    const Buffer<uint8_t> weights(tables_object, "tables", false), state(state_object, "state", true), out(out_object, "out", true);
    const StaticTables tables = checked_tables(weights, spec, preferred);
    const Choice wanted = checked_choice(choice);
    state.expect_size(sizeof(TableState));
    if (x.size() == 0) throw nb::value_error("x must have a value");
    if (!linf) scales.expect_size(count_of_scales(spec.q.bucket, x.size()));
    if (out.size() < section_bound(x.size(), spec.q, wanted)) throw nb::value_error("out is smaller than the section may be");
    const Source source{x.data(), x.size(), spec.q, key, linf.value_or(false), linf ? nullptr : scales.data()};
    TableState last;
    std::memcpy(&last, state.data(), sizeof last);
    int64_t size = 0;
    {
        nb::gil_scoped_release unlocked;
        DefaultFloatEnv env;
        size = encode_section(kernels, source, wanted, tables, &last, out.data(), threads);
    }
    std::memcpy(state.data(), &last, sizeof last);
    return size;
}

// Without `out` the section is only checked.
int64_t coding_decode(nb::handle spec_object, nb::handle body_object, int64_t position, int64_t n, nb::handle tables_object,
                      nb::handle state_object, nb::handle out_object, std::optional<double> weight,
                      std::optional<int> threads_argument, const Name& isa_name) {
    const Kernels& kernels = *choose(isa_name).kernels;
    const int threads = choose_threads(threads_argument);
    const QuantiserSpec spec(spec_object);
    const Buffer<uint8_t> body(body_object, "body", false), weights(tables_object, "tables", false), state(state_object, "state", true);
    const StaticTables tables = checked_tables(weights, spec, -1);
    state.expect_size(sizeof(TableState));
    const float narrow = weight ? checked_weight(*weight) : 1.0f;
    std::optional<Buffer<float>> out;
    if (!out_object.is_none()) out.emplace(out_object, "out", true);
    if (out) out->expect_size(n);
    if (n < 1) throw nb::value_error("n must be at least 1");
    TableState last;
    std::memcpy(&last, state.data(), sizeof last);
    int64_t end = 0;
    {
        nb::gil_scoped_release unlocked;
        DefaultFloatEnv env;
        const Mode mode = !out ? Mode::CHECK : weight ? Mode::ADD : Mode::STORE;
        end = decode_section(kernels, {body.data(), body.size()}, position, spec.q, n, tables, &last, mode, narrow,
                             out ? out->data() : nullptr, threads);
    }
    std::memcpy(state.data(), &last, sizeof last);
    return end;
}

}  // namespace

void bind_coding(nb::module_& m) {
    using nb::literals::operator""_a;
    m.attr("CODING_STATE_BYTES") = sizeof(TableState);
    m.def("coding_bound", &coding_bound, "spec"_a.none(), "n"_a, "choice"_a);
    m.def("coding_encode", &coding_encode, "spec"_a.none(), "x"_a.none(), "key"_a, "choice"_a, "linf"_a.none(),
          "scales"_a.none(), "tables"_a.none(), "preferred"_a, "state"_a.none(), "out"_a.none(), "threads"_a.none() = nb::none(),
          "isa"_a.none() = nb::none());
    m.def("coding_decode", &coding_decode, "spec"_a.none(), "body"_a.none(), "position"_a, "n"_a, "tables"_a.none(),
          "state"_a.none(), "out"_a.none(), "weight"_a.none(), "threads"_a.none() = nb::none(), "isa"_a.none() = nb::none());
}

}  // namespace edgegossip
