#include <algorithm>

#include "bind/bind.hpp"
#include "bind/gil.hpp"
#include "codec/quantised.hpp"
#include "codec/scales.hpp"
#include "bind/quantiser_spec.hpp"

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

// What the functions take alike. The state is copied, so that no other thread changes it meanwhile.
struct Common {
    const Kernels& kernels;
    const int threads;
    const QuantiserSpec spec;
    const Buffer<uint8_t> weights, state;
    TableState last;

    Common(nb::handle spec_object, nb::handle tables_object, nb::handle state_object, std::optional<int> threads_argument,
           const Name& isa_name)
        : kernels(*choose(isa_name).kernels),
          threads(choose_threads(threads_argument)),
          spec(spec_object),
          weights(tables_object, "tables", false),
          state(state_object, "state", true) {
        state.expect_size(sizeof last);
        std::memcpy(&last, state.data(), sizeof last);
    }
    void keep() const { std::memcpy(state.data(), &last, sizeof last); }
    StaticTables tables(int64_t preferred) const { return checked_tables(weights, spec, int(preferred)); }
};

int64_t coding_bound(nb::handle spec_object, nb::handle offsets_object, int64_t n, int choice) {
    const QuantiserSpec spec(spec_object);
    const std::vector<int64_t> offsets = read_offsets(offsets_object, n);
    int64_t sum = 0;
    for (size_t k = 1; k < offsets.size(); k++) sum += section_bound(offsets[k] - offsets[k - 1], spec.q, checked_choice(choice));
    return sum;
}

// `keys`: of the tensors. Without `linf` the scales are given, tensor by tensor. `preferred`: static tables, one a tensor, or none.
// The bytes written, or -1 - k when tensor k is not finite.
int64_t coding_encode(nb::handle spec_object, nb::handle x_object, nb::handle offsets_object,
                      const std::vector<uint64_t>& keys, int choice, std::optional<bool> linf, nb::handle scales_object, nb::handle tables_object,
                      nb::handle preferred_object, nb::handle state_object, nb::handle out_object,
                      std::optional<int> threads_argument, const Name& isa_name) {
    Common common(spec_object, tables_object, state_object, threads_argument, isa_name);
    const Quantiser& q = common.spec.q;
    const Buffer<float> x(x_object, "x", false), scales(scales_object, "scales", false);
    const Buffer<int64_t> preferred(preferred_object, "preferred", false);
    const Buffer<uint8_t> out(out_object, "out", true);
    const std::vector<int64_t> offsets = read_offsets(offsets_object, x.size());
    const int64_t tensors = int64_t(offsets.size()) - 1;
    const Choice wanted = checked_choice(choice);
    if (int64_t(keys.size()) != tensors) throw nb::value_error("there must be a key for every tensor");
    if (preferred.size() != 0) preferred.expect_size(tensors);
    std::vector<StaticTables> tables;
    int64_t room = 0, scale_total = 0;
    for (int64_t k = 0; k < tensors; k++) {
        const int64_t n = offsets[size_t(k) + 1] - offsets[size_t(k)];
        tables.push_back(common.tables(preferred.size() ? preferred.data()[k] : -1));
        room += section_bound(n, q, wanted);
        scale_total += count_of_scales(q.bucket, n);
    }
    if (!linf) scales.expect_size(scale_total);
    if (!linf && q.bucket > 0 && !std::all_of(scales.data(), scales.data() + scale_total, is_short))
        throw nb::value_error("scales of buckets must be finite, not below 0, with 8 bits of mantissa");
    if (out.size() < room) throw nb::value_error("out is smaller than the sections may be");
    int64_t at = 0;
    const float* given = scales.data();
    {
        WithoutGil unlocked;
        DefaultFloatEnv env;
        for (int64_t k = 0; k < tensors && at >= 0; k++) {
            const int64_t start = offsets[size_t(k)], n = offsets[size_t(k) + 1] - start;
            if (n == 0) continue;
            const Source source{x.data() + start, n, q, keys[size_t(k)], linf.value_or(false), linf ? nullptr : given};
            given += linf ? 0 : count_of_scales(q.bucket, n);
            const int64_t size =
                encode_section(common.kernels, source, wanted, tables[size_t(k)], &common.last, out.data() + at, common.threads);
            at = size < 0 ? -1 - k : at + size;
        }
    }
    common.keep();
    return at;
}

// Without `out` the sections are only checked. (tensor, position or a SectionError); stops before a section of coder zstd.
std::tuple<int64_t, int64_t> coding_decode(nb::handle spec_object, nb::handle body_object, int64_t position,
                                           nb::handle offsets_object, int64_t n, int64_t tensor, nb::handle tables_object,
                                           nb::handle state_object, nb::handle out_object, std::optional<double> weight,
                                           std::optional<int> threads_argument, const Name& isa_name) {
    Common common(spec_object, tables_object, state_object, threads_argument, isa_name);
    const Buffer<uint8_t> body(body_object, "body", false);
    const StaticTables tables = common.tables(-1);
    const float narrow = weight ? checked_weight(*weight) : 1.0f;
    std::optional<Buffer<float>> out;
    if (!out_object.is_none()) out.emplace(out_object, "out", true);
    if (out) out->expect_size(n);
    const std::vector<int64_t> offsets = read_offsets(offsets_object, n);
    const int64_t tensors = int64_t(offsets.size()) - 1;
    if (tensor < 0 || tensor > tensors) throw nb::value_error("there is no such tensor");
    Reached reached{tensor, position};
    if (position >= 0) {
        WithoutGil unlocked;
        DefaultFloatEnv env;
        const Mode mode = !out ? Mode::CHECK : weight ? Mode::ADD : Mode::STORE;
        reached = decode_sections(common.kernels, {body.data(), body.size()}, reached, common.spec.q, offsets.data(), tensors, tables, &common.last,
                                  mode, narrow, out ? out->data() : nullptr, common.threads);
    }
    common.keep();
    return {reached.tensor, reached.position};
}

}  // namespace

void bind_coding(nb::module_& m) {
    using nb::literals::operator""_a;
    m.attr("CODING_STATE_BYTES") = sizeof(TableState);
    m.def("coding_table_work", [] { return table_work(); });
    m.def("coding_bound", &coding_bound, "spec"_a.none(), "offsets"_a.none(), "n"_a, "choice"_a);
    m.def("coding_encode", &coding_encode, "spec"_a.none(), "x"_a.none(), "offsets"_a.none(), "keys"_a, "choice"_a,
          "linf"_a.none(), "scales"_a.none(), "tables"_a.none(), "preferred"_a.none(), "state"_a.none(), "out"_a.none(),
          "threads"_a.none() = nb::none(), "isa"_a.none() = nb::none());
    m.def("coding_decode", &coding_decode, "spec"_a.none(), "body"_a.none(), "position"_a, "offsets"_a.none(), "n"_a, "tensor"_a,
          "tables"_a.none(), "state"_a.none(), "out"_a.none(), "weight"_a.none(), "threads"_a.none() = nb::none(),
          "isa"_a.none() = nb::none());
}

}  // namespace edgegossip
