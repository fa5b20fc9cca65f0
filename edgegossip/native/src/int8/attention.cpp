#include "int8/attention.hpp"

#include <cmath>

#include "runtime/parallel.hpp"
#include "int8/work.hpp"
#include "runtime/buffer_pool.hpp"

namespace edgegossip {

namespace {

constexpr int64_t PAIRS = 16384;  // of products of 255 * 255 each, which an int32 holds
constexpr int64_t BEHIND = 128;   // int16 that products may read behind a row
constexpr float LARGEST = 3e38f;  // of a factor of scores: its product with 0 stays 0
constexpr uint64_t STREAM = 0x9E3779B97F4A7C15ull;  // between keys of one call's roundings

int64_t whole_panels(int64_t n) { return (n + INT8_PANEL - 1) / INT8_PANEL * INT8_PANEL; }
int64_t pairs_of(int64_t n) { return (n + 1) / 2; }

// Panels of int16[columns / 16][pairs][16][2] that Int8::gemm takes, for the product with the
// transpose of `from`, whose rows are the columns: [columns][depth], followed by memory that may be
// read.
void pack_rows(const int16_t* from, int64_t columns, int64_t depth,
               coding::Scratch<int16_t>& panels) {
    const int64_t pairs = pairs_of(depth);
    panels.need(whole_panels(columns) * pairs * 2);
    int16_t* to = panels.data();
    for (int64_t first = 0; first < columns; first += INT8_PANEL)
        for (int64_t k = 0; k < pairs; k++)
            for (int64_t l = 0; l < INT8_PANEL; l++, to += 2) {
                const bool inside = first + l < columns;
                const int16_t* const row = from + (first + l) * depth + 2 * k;
                to[0] = inside ? row[0] : int16_t(0);
                to[1] = inside && 2 * k + 1 < depth ? row[1] : int16_t(0);
            }
}

// The same for the product with `from` itself, [depth][columns].
void pack_columns(const int16_t* from, int64_t depth, int64_t columns,
                  coding::Scratch<int16_t>& panels) {
    const int64_t pairs = pairs_of(depth);
    panels.need(whole_panels(columns) * pairs * 2);
    int16_t* to = panels.data();
    for (int64_t first = 0; first < columns; first += INT8_PANEL) {
        const int64_t some = std::min(INT8_PANEL, columns - first);
        for (int64_t k = 0; k < pairs; k++, to += 2 * INT8_PANEL) {
            const int16_t *const even = from + 2 * k * columns + first, *const odd = even + columns;
            const bool both = 2 * k + 1 < depth;
            for (int64_t l = 0; l < some; l++) {
                to[2 * l] = even[l];
                to[2 * l + 1] = both ? odd[l] : int16_t(0);
            }
            std::fill(to + 2 * some, to + 2 * INT8_PANEL, int16_t(0));
        }
    }
}

// What one thread needs for a head of a sample.
struct HeadWork {
    coding::Scratch<int16_t> q, k, v, g, e, dropped, scores, panels, pairs, strips;
    coding::Scratch<int32_t> acc, keep;
    coding::Scratch<float> values;
    coding::Scratch<int8_t> codes;
    std::vector<int64_t> by_width;  // where rows of `width` values begin
    std::vector<int64_t> by_keys;   // where rows of scores begin
    std::vector<int32_t> sums;      // of e, by query
    std::vector<float> inverse;     // rescale / sum
};

HeadWork& head_work() {
    static thread_local HeadWork work;
    return work;
}

class Head {
public:
    Head(const Int8& kernels, const Attention& of, int64_t sample, int64_t head)
        : kernels_(kernels), of_(of), s_(of.shape), sample_(sample), head_(head),
          padded_(whole_panels(s_.keys)), root_(float(1.0 / std::sqrt(double(s_.width)))),
          w_(head_work()) {
        starts(w_.by_width, s_.queries, s_.width);
        starts(w_.by_keys, s_.queries, padded_);
    }

    bool finite() const {
        return std::isfinite(of_.q.scale[sample_]) && std::isfinite(of_.k.scale[sample_]) &&
               std::isfinite(of_.v.scale[sample_]);
    }

    void forward(float* out) {
        if (!finite()) return fill(out, s_.queries, std::numeric_limits<float>::quiet_NaN());
        probabilities();
        widen(of_.v, s_.keys, w_.v);
        pack_columns(w_.v.data(), s_.keys, s_.width, w_.panels);
        multiply(w_.dropped.data(), w_.by_keys, pairs_of(s_.keys), s_.width);
        for (int64_t i = 0; i < s_.queries; i++)
            put_row(i, of_.v.scale[sample_] * w_.inverse[size_t(i)], out);
    }

    // g8: the sample's gradient in 8 bits, of that scale; g: as floats, and where the gradients of
    // q, k and v go.
    void backward(const int8_t* g8, float scale, const float* g, float* dq, float* dk, float* dv) {
        if (!finite() || !std::isfinite(scale)) {
            fill(dq, s_.queries, std::numeric_limits<float>::quiet_NaN());
            fill(dk, s_.keys, std::numeric_limits<float>::quiet_NaN());
            fill(dv, s_.keys, std::numeric_limits<float>::quiet_NaN());
            return;
        }
        probabilities();
        gradient_of_values(g, dv);
        const float of_scores = gradient_of_scores(g8, scale);
        pack_columns(w_.k.data(), s_.keys, s_.width, w_.panels);
        multiply(w_.scores.data(), w_.by_keys, pairs_of(s_.keys), s_.width);
        for (int64_t i = 0; i < s_.queries; i++) put_row(i, of_scores * of_.k.scale[sample_], dq);
        pair_up(w_.scores.data());
        products(w_.q.data(), of_scores * of_.q.scale[sample_], dk);
    }

private:
    // w_.e: the numerators of the softmax, w_.dropped what dropout leaves of them; w_.sums their
    // sums.
    void probabilities() {
        widen(of_.q, s_.queries, w_.q);
        widen(of_.k, s_.keys, w_.k);
        pack_rows(w_.k.data(), s_.keys, s_.width, w_.panels);
        multiply(w_.q.data(), w_.by_width, pairs_of(s_.width), s_.keys);
        const int64_t size = s_.queries * padded_;
        w_.e.need(size + BEHIND);
        w_.dropped.need(size + BEHIND);
        w_.keep.need(padded_);
        w_.sums.resize(size_t(s_.queries));
        w_.inverse.resize(w_.sums.size());
        const float factor = std::min(of_.q.scale[sample_] * of_.k.scale[sample_] * root_, LARGEST);
        for (int64_t i = 0; i < s_.queries; i++) {
            if (i == 0 || (of_.mask.seen != nullptr && of_.mask.queries > 1)) read_mask(i);
            const int32_t sum = kernels_.softmax(w_.acc.data() + i * padded_, w_.keep.data(),
                                                 padded_, factor, w_.e.data() + i * padded_);
            w_.sums[size_t(i)] = sum;
            w_.inverse[size_t(i)] = sum == 0 ? 0.0f : of_.dropout.rescale / float(sum);
        }
        std::copy_n(w_.e.data(), size, w_.dropped.data());
        std::fill_n(w_.dropped.data() + size, BEHIND, int16_t(0));
        if (of_.dropout.below == 0) return;
        kernels_.drop(w_.dropped.data(), size, of_.key + 3 * STREAM, place() * size,
                      of_.dropout.below);
    }

    void read_mask(int64_t query) {
        std::fill_n(w_.keep.data(), padded_, 0);
        if (of_.mask.seen == nullptr) {
            std::fill_n(w_.keep.data(), s_.keys, -1);
            return;
        }
        const KeyMask& m = of_.mask;
        const int64_t sample = m.batches > 1 ? sample_ : 0, head = m.heads > 1 ? head_ : 0,
                      row = m.queries > 1 ? query : 0;
        const uint8_t* const seen =
            m.seen + ((sample * m.heads + head) * m.queries + row) * s_.keys;
        for (int64_t j = 0; j < s_.keys; j++) w_.keep.data()[j] = seen[j] != 0 ? -1 : 0;
    }

    // The probabilities take the gradient of a row's output over the row's sum, in 8 bits.
    void gradient_of_values(const float* g, float* dv) {
        const int64_t size = s_.queries * s_.width;
        w_.values.need(size);
        for (int64_t i = 0; i < s_.queries; i++) {
            const float* const row = g + i * s_.features() + head_ * s_.width;
            for (int64_t c = 0; c < s_.width; c++)
                w_.values.data()[i * s_.width + c] = row[c] * w_.inverse[size_t(i)];
        }
        const GradientScales scales = round8(size, of_.key + STREAM);
        widen_codes(w_.codes.data(), 0, s_.width, s_.queries, s_.width, 0, w_.g);
        pair_up(w_.dropped.data());
        products(w_.g.data(), scales.narrow, dv);
    }

    // w_.scores: the gradient of q k^T in 8 bits; its scale.
    float gradient_of_scores(const int8_t* g8, float scale) {
        widen(of_.v, s_.keys, w_.v);
        widen_codes(g8, head_ * s_.width, s_.features(), s_.queries, s_.width, 0, w_.g);
        pack_rows(w_.v.data(), s_.keys, s_.width, w_.panels);
        multiply(w_.g.data(), w_.by_width, pairs_of(s_.width), s_.keys);
        const int64_t size = s_.queries * padded_;
        w_.values.need(size);
        const float factor = scale * of_.v.scale[sample_] * of_.dropout.rescale * root_;
        for (int64_t i = 0; i < s_.queries; i++) {
            const int64_t at = i * padded_;
            kernels_.softmax_backward(w_.e.data() + at, w_.dropped.data() + at, w_.acc.data() + at,
                                      padded_, w_.sums[size_t(i)], factor, w_.values.data() + at);
        }
        const GradientScales scales = round8(size, of_.key + 2 * STREAM);
        w_.scores.need(size + BEHIND);
        std::copy_n(w_.codes.data(), size, w_.scores.data());
        std::fill_n(w_.scores.data() + size, BEHIND, int16_t(0));
        return scales.narrow;
    }

    // w_.codes: w_.values in 8 bits, zeros where they are not finite; then the scale says so.
    GradientScales round8(int64_t size, uint64_t key) {
        const GradientScales scales = gradient_scales(kernels_.magnitude(w_.values.data(), size));
        w_.codes.need(size);
        if (scales.finite())
            kernels_.round8(w_.values.data(), size, 1.0f / scales.narrow, key,
                            place() * ((size + 1) & ~int64_t(1)), w_.codes.data());
        else
            std::fill_n(w_.codes.data(), size, int8_t(0));
        return scales;
    }

    void widen(const Maps& x, int64_t rows, coding::Scratch<int16_t>& to) const {
        widen_codes(x.q + sample_ * rows * s_.features(), head_ * s_.width, s_.features(), rows,
                    s_.width, x.zero[sample_], to);
    }

    // [rows][width] of rows of `features` codes, and zeros that products may read.
    void widen_codes(const int8_t* from, int64_t first, int64_t features, int64_t rows,
                     int64_t width, int32_t zero, coding::Scratch<int16_t>& to) const {
        to.need((rows + 1) * width + INT8_SLACK + BEHIND);
        kernels_.widen(from, {1, rows, features, first, width, 0, 0, 0, 0}, zero, to.data());
        std::fill_n(to.data() + rows * width, width + INT8_SLACK + BEHIND, int16_t(0));
    }

    // w_.acc[query][columns, whole panels] = rows that begin at `at` by w_.panels.
    void multiply(const int16_t* rows, const std::vector<int64_t>& at, int64_t pairs,
                  int64_t columns) {
        columns_ = whole_panels(columns);
        w_.acc.need(s_.queries * columns_);
        kernels_.gemm(rows, at.data(), s_.queries, 1, 0, pairs, w_.panels.data(),
                      columns_ / INT8_PANEL, w_.acc.data(), columns_);
    }

    // A row of that, times `factor`, where a head of a sample's floats lies.
    void put_row(int64_t row, float factor, float* out) const {
        const int32_t* const from = w_.acc.data() + row * columns_;
        float* const to = out + row * s_.features() + head_ * s_.width;
        for (int64_t c = 0; c < s_.width; c++) to[c] = float(from[c]) * factor;
    }

    // Rows of scores, as products() takes them.
    void pair_up(const int16_t* rows) const {
        w_.pairs.need(pairs_of(s_.queries) * s_.keys * 2);
        kernels_.pair_up(rows, 1, s_.queries, padded_, s_.keys, w_.pairs.data());
    }

    // out[key] = factor times the sum over queries of what pair_up() took [query][key] x[query].
    void products(const int16_t* x, float factor, float* out) const {
        const int64_t pairs = pairs_of(s_.queries);
        w_.strips.need(pairs * PAIR_ROOM);
        kernels_.products({1, 1, 1, pairs, x, 0, 0, s_.width, w_.pairs.data(), 0, w_.strips.data(), PAIRS,
                           &factor, s_.keys, s_.width, out + head_ * s_.width, s_.features(), 0, true});
    }

    void fill(float* out, int64_t rows, float value) const {
        for (int64_t i = 0; i < rows; i++)
            std::fill_n(out + i * s_.features() + head_ * s_.width, s_.width, value);
    }

    static void starts(std::vector<int64_t>& at, int64_t rows, int64_t step) {
        at.resize(size_t(rows));
        for (int64_t i = 0; i < rows; i++) at[size_t(i)] = i * step;
    }

    int64_t place() const { return sample_ * s_.heads + head_; }

    const Int8& kernels_;
    const Attention& of_;
    const AttentionShape& s_;
    int64_t sample_, head_, padded_, columns_ = 0;
    float root_;
    HeadWork& w_;
};

}  // namespace

void attention_forward(const Int8& kernels, const Attention& of, float* out, int threads) {
    const AttentionShape& s = of.shape;
    parallel_for(s.batch * s.heads, threads, [&](int64_t k) {
        const int64_t n = k / s.heads;
        Head(kernels, of, n, k % s.heads).forward(out + n * s.query_size());
    });
}

void attention_backward(const Int8& kernels, const Attention& of, const float* g, float* dq,
                        float* dk, float* dv, int threads) {
    const AttentionShape& s = of.shape;
    const int64_t size = s.query_size();
    Pooled<int8_t> codes;
    codes.need(s.batch * size);
    std::vector<float> scale(static_cast<size_t>(s.batch));
    parallel_for(s.batch, threads, [&](int64_t n) {
        scale[size_t(n)] = gradient_scales(kernels.magnitude(g + n * size, size)).narrow;
        if (std::isfinite(scale[size_t(n)]))
            kernels.round8(g + n * size, size, 1.0f / scale[size_t(n)], of.key,
                           n * ((size + 1) & ~int64_t(1)), codes.data() + n * size);
    });
    parallel_for(s.batch * s.heads, threads, [&](int64_t k) {
        const int64_t n = k / s.heads;
        Head(kernels, of, n, k % s.heads)
            .backward(codes.data() + n * size, scale[size_t(n)], g + n * size, dq + n * size,
                      dk + n * s.key_size(), dv + n * s.key_size());
    });
}

}  // namespace edgegossip
