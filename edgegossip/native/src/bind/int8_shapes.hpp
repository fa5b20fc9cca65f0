// Shapes and maps of int8 layers as Python passes them, checked before anything is computed with them. ValueError.
#pragma once

#include <initializer_list>
#include <optional>
#include <string>
#include <vector>

#include "bind/bind.hpp"
#include "int8/attention.hpp"
#include "int8/embedding.hpp"
#include "int8/layernorm.hpp"
#include "int8/norm.hpp"
#include "int8/pooling.hpp"
#include "int8/shaping.hpp"

namespace edgegossip {

using Numbers = std::vector<int64_t>;
constexpr int64_t LARGEST = int64_t(1) << 40;  // of a map, in values

// Sizes that are all in 1 .. 2^31 - 1 (paddings: 0 ..), whose maps are not larger than LARGEST values.
inline void check_sizes(const Numbers& numbers, size_t count, size_t first_padding, size_t paddings) {
    if (numbers.size() != count) throw nb::value_error(("a shape must have " + std::to_string(count) + " numbers").c_str());
    for (size_t k = 0; k < count; k++) {
        const bool padding = k >= first_padding && k < first_padding + paddings;
        if (numbers[k] < (padding ? 0 : 1) || numbers[k] > INT32_MAX) throw nb::value_error("a number of the shape is out of range");
    }
}

inline int64_t bounded(std::initializer_list<int64_t> factors) {
    int64_t product = 1;
    for (const int64_t factor : factors) {
        if (factor > LARGEST / product) throw nb::value_error("the shape is too large");
        product *= factor;
    }
    return product;
}

inline void check_zero_points(const Buffer<int32_t>& zero) {
    for (int64_t n = 0; n < zero.size(); n++)
        if (zero.data()[n] < -128 || zero.data()[n] > 127) throw nb::value_error("zero points must lie in -128 .. 127");
}

// The three buffers of int8 maps.
struct MapBuffers {
    Buffer<int8_t> q;
    Buffer<float> scale;
    Buffer<int32_t> zero;

    MapBuffers(nb::handle q_object, nb::handle scale_object, nb::handle zero_object, bool writable, int64_t batch, int64_t size)
        : q(q_object, "q", writable), scale(scale_object, "scale", writable), zero(zero_object, "zero", writable) {
        q.expect_size(batch * size);
        scale.expect_size(batch);
        zero.expect_size(batch);
        if (writable) return;
        check_zero_points(zero);
    }
    Maps view() const { return {q.data(), scale.data(), zero.data()}; }
    WritableMaps writable() const { return {q.data(), scale.data(), zero.data()}; }
};

// A float32 buffer that may be None.
struct MaybeFloats {
    std::optional<Buffer<float>> buffer;

    MaybeFloats(nb::handle object, const char* name, bool writable, int64_t size) {
        if (object.is_none()) return;
        buffer.emplace(object, name, writable);
        buffer->expect_size(size);
    }
    float* data() const { return buffer ? buffer->data() : nullptr; }
};

inline const Int8& kernels_of(const Name& isa_name) { return *choose(isa_name).int8; }

inline ConvShape conv_shape(const Numbers& n) {
    check_sizes(n, 12, 9, 2);
    const ConvShape s{n[0], n[1], n[2], n[3], n[4], n[5], n[6], n[7], n[8], n[9], n[10], n[11]};
    if (s.in % s.groups != 0 || s.out % s.groups != 0) throw nb::value_error("groups must divide the channels");
    if (s.height + 2 * s.pad_h < s.kernel_h || s.width + 2 * s.pad_w < s.kernel_w)
        throw nb::value_error("the kernel is larger than the padded map");
    bounded({s.batch, s.height + 2 * s.pad_h + s.kernel_h, s.width + 2 * s.pad_w + s.kernel_w, std::max(s.in, s.out)});
    bounded({s.out, s.group_in(), s.kernel_h, s.kernel_w});
    if (bounded({std::max(s.group_in(), s.group_out()), s.kernel_h, s.kernel_w}) > 65536)
        throw nb::value_error("sums over more than 65536 values a group do not fit into an int32");
    return s;
}

inline PoolShape pool_shape(const Numbers& n) {
    check_sizes(n, 12, 8, 2);
    const PoolShape s{n[0], n[1], n[2], n[3], n[4], n[5], n[6], n[7], n[8], n[9], n[10], n[11]};
    bounded({s.batch, std::max(s.height, s.out_height), std::max(s.width, s.out_width), s.channels});
    const bool inside = (s.out_height - 1) * s.stride_h - s.pad_h < s.height && (s.out_width - 1) * s.stride_w - s.pad_w < s.width;
    if (2 * s.pad_h > s.kernel_h || 2 * s.pad_w > s.kernel_w || !inside) throw nb::value_error("a window lies outside the map");
    return s;
}

inline PadShape pad_shape(const Numbers& n) {
    check_sizes(n, 10, 4, 6);
    const PadShape s{n[0], n[1], n[2], n[3], n[4], n[5], n[6], n[7], n[8], n[9]};
    bounded({s.batch, s.above + s.height + s.below, s.before + s.width + s.after, s.out_channels()});
    return s;
}

inline NormShape norm_shape(const Numbers& n) {
    check_sizes(n, 5, 0, 0);
    const NormShape s{n[0], n[1], n[2], n[3], n[4]};
    bounded({s.batch, s.pixels, s.channels});
    if (s.channels % s.groups != 0 || s.pixels % s.chunks != 0)
        throw nb::value_error("groups must divide the channels, and chunks the pixels");
    return s;
}

inline EmbeddingShape embedding_shape(const Numbers& n) {
    check_sizes(n, 4, 0, 0);
    const EmbeddingShape s{n[0], n[1], n[2], n[3]};
    bounded({s.batch, s.length, s.width});
    bounded({s.rows, s.width});
    return s;
}

inline AttentionShape attention_shape(const Numbers& n) {
    check_sizes(n, 5, 0, 0);
    const AttentionShape s{n[0], n[1], n[2], n[3], n[4]};
    bounded({s.batch, std::max(s.queries, s.keys), s.heads, s.width});
    bounded({s.batch, s.heads, s.queries, s.keys});
    if (s.width > 16384 || std::max(s.queries, s.keys) > 32768)
        throw nb::value_error("heads of more than 16384 features, or more than 32768 tokens, do not fit into an int32");
    return s;
}

inline LayerNormShape layernorm_shape(const Numbers& n) {
    check_sizes(n, 4, 0, 0);
    const LayerNormShape s{n[0], n[1], n[2], n[3]};
    bounded({s.batch, s.tokens, s.features});
    if (s.features > 65536 || s.features % s.chunks != 0)
        throw nb::value_error("chunks must divide the features, of which there are at most 65536");
    return s;
}

// Height, width, channels; then first, step, count of each.
inline SliceShape slice_shape(const Numbers& n) {
    if (n.size() != 12) throw nb::value_error("a shape must have 12 numbers");
    const SliceShape s{n[0], n[1], n[2], {n[3], n[4], n[5]}, {n[6], n[7], n[8]}, {n[9], n[10], n[11]}};
    check_sizes({s.height, s.width, s.channels}, 3, 0, 0);
    bounded({s.height, s.width, s.channels});
    const std::initializer_list<std::pair<Range, int64_t>> ranges = {{s.rows, s.height}, {s.columns, s.width}, {s.taken, s.channels}};
    for (const auto& [range, size] : ranges) {
        check_sizes({range.step, range.count, range.first + 1}, 3, 0, 0);
        if (range.first >= size || range.count - 1 > (size - 1 - range.first) / range.step) throw nb::value_error("a slice lies outside the map");
    }
    return s;
}

}  // namespace edgegossip
