// A quantiser as Python passes it.
#pragma once

#include <nanobind/stl/tuple.h>

#include <tuple>

#include "bind/bind.hpp"
#include "codec/quantiser.hpp"

namespace edgegossip {

// (kind, bits, levels, bucket, list or None), checked. Holds the list, which the kernels point at.
struct QuantiserSpec {
    std::vector<float> list;
    Quantiser q;

    explicit QuantiserSpec(nb::handle object) {
        const auto [kind, bits, levels, bucket, values] =
            nb::cast<std::tuple<int32_t, int32_t, int32_t, int64_t, std::optional<std::vector<float>>>>(object);
        if (values) list = *values;
        q = {kind, bits, levels, bucket, list.empty() ? nullptr : list.data(), int32_t(list.size())};
        if (const char* error = quantiser_error(q)) throw nb::value_error(error);
    }
    QuantiserSpec(const QuantiserSpec&) = delete;
    QuantiserSpec& operator=(const QuantiserSpec&) = delete;
};

}  // namespace edgegossip
