#include "lowrank/lowrank.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

namespace edgegossip {
namespace {

constexpr double NEGLIGIBLE = 0x1p-40;  // of a column's length: what Gram-Schmidt leaves of it is rounding

const FloatForm& form_of(const Kernels& kernels, const FactorShape& shape) {
    return shape.half ? kernels.half.fp16 : kernels.half.fp32;
}

float scale_of(const FactorShape& shape, const uint8_t* factors, int64_t k) {
    if (!shape.half) return 1.0f;
    float scale;
    std::memcpy(&scale, factors + shape.left_bytes() + 4 * k, sizeof scale);
    return scale;
}

double dot(const double* a, const double* b, int64_t n) {
    double lanes[8] = {};
    for (int64_t i = 0; i < n; i++) lanes[i % 8] += a[i] * b[i];
    return ((lanes[0] + lanes[4]) + (lanes[2] + lanes[6])) + ((lanes[1] + lanes[5]) + (lanes[3] + lanes[7]));
}

// Modified Gram-Schmidt, each column twice; a column that depends on those before it becomes zero.
void orthonormalise(double* columns, int64_t n, int64_t rank) {
    for (int64_t k = 0; k < rank; k++) {
        double* const column = columns + k * n;
        const double before = std::sqrt(dot(column, column, n));
        for (int pass = 0; pass < 2; pass++)
            for (int64_t other = 0; other < k; other++) {
                const double* const unit = columns + other * n;
                const double along = dot(unit, column, n);
                for (int64_t i = 0; i < n; i++) column[i] -= along * unit[i];
            }
        const double size = std::sqrt(dot(column, column, n));
        const bool nothing = !(size > before * NEGLIGIBLE);
        for (int64_t i = 0; i < n; i++) column[i] = nothing ? 0.0 : column[i] / size;
    }
}

float largest_magnitude(const float* x, int64_t n) {
    float largest = 0.0f;
    for (int64_t i = 0; i < n; i++) largest = std::max(largest, std::fabs(x[i]));
    return largest;
}

// The power of two below the largest magnitude (FLT_MIN for a denormal one), so that values reach from -2 to 2.
float scale_for(float largest) {
    uint32_t bits;
    std::memcpy(&bits, &largest, sizeof bits);
    bits &= 0x7f800000u;
    float scale;
    std::memcpy(&scale, &bits, sizeof scale);
    return scale == 0.0f && largest > 0.0f ? FLT_MIN : scale;
}

void write_right(const Kernels& kernels, const FactorShape& shape, const float* right, uint8_t* factors) {
    uint8_t* const to = factors + shape.left_bytes() + shape.scale_bytes();
    if (!shape.half) {
        kernels.half.fp32.encode(right, shape.rank * shape.cols, to);
        return;
    }
    float scaled[MATRIX_BLOCK];
    for (int64_t k = 0; k < shape.rank; k++) {
        const float* const row = right + k * shape.cols;
        const float scale = scale_for(largest_magnitude(row, shape.cols));
        std::memcpy(factors + shape.left_bytes() + 4 * k, &scale, sizeof scale);
        for (int64_t j = 0; j < shape.cols; j += MATRIX_BLOCK) {
            const int64_t count = std::min(MATRIX_BLOCK, shape.cols - j);
            for (int64_t l = 0; l < count; l++) scaled[l] = scale == 0.0f ? 0.0f : row[j + l] / scale;
            kernels.half.fp16.encode(scaled, count, to + 2 * (k * shape.cols + j));
        }
    }
}

}  // namespace

bool factors_sound(const Kernels& kernels, const FactorShape& shape, const uint8_t* factors) {
    const FloatForm& form = form_of(kernels, shape);
    for (int64_t k = 0; k < shape.rank; k++) {
        const float scale = scale_of(shape, factors, k);
        if (!std::isfinite(scale) || scale < 0.0f) return false;
    }
    return form.finite(factors, shape.rank * shape.rows) &&
           form.finite(factors + shape.left_bytes() + shape.scale_bytes(), shape.rank * shape.cols);
}

void factors_product(const Kernels& kernels, const FactorShape& shape, const uint8_t* factors, float* out, Into into,
                     float weight) {
    const FloatForm& form = form_of(kernels, shape);
    const int64_t number = shape.number();
    const uint8_t* const right = factors + shape.left_bytes() + shape.scale_bytes();
    std::vector<float> left_block(size_t(shape.rank * MATRIX_BLOCK));
    std::vector<double> right_block(size_t(shape.rank * MATRIX_BLOCK));
    float narrow[MATRIX_BLOCK];
    for (int64_t j = 0; j < shape.cols; j += MATRIX_BLOCK) {
        const int64_t width = std::min(MATRIX_BLOCK, shape.cols - j);
        for (int64_t k = 0; k < shape.rank; k++) {
            const double scale = double(scale_of(shape, factors, k));
            form.decode(right + (k * shape.cols + j) * number, width, narrow, false, 1.0f);
            for (int64_t l = 0; l < width; l++) right_block[size_t(k * MATRIX_BLOCK + l)] = double(narrow[l]) * scale;
        }
        for (int64_t i = 0; i < shape.rows; i += MATRIX_BLOCK) {
            const int64_t height = std::min(MATRIX_BLOCK, shape.rows - i);
            for (int64_t k = 0; k < shape.rank; k++)
                form.decode(factors + (k * shape.rows + i) * number, height, &left_block[size_t(k * MATRIX_BLOCK)], false, 1.0f);
            kernels.matrix.outer(left_block.data(), right_block.data(), shape.rank, height, width,
                                 out + i * shape.cols + j, shape.cols, into, weight);
        }
    }
}

void power_step(const Kernels& kernels, const FactorShape& shape, const float* x, const float* error, float decay,
                const float* start, uint8_t* factors, float* next, float* residual) {
    const Matrix& matrix = kernels.matrix;
    const FloatForm& form = form_of(kernels, shape);
    const int64_t rows = shape.rows, cols = shape.cols, rank = shape.rank;
    matrix.corrected(x, error, rows * cols, decay, residual);
    std::vector<double> wide(size_t(rank * rows));
    matrix.times_right(residual, rows, cols, start, rank, wide.data());
    orthonormalise(wide.data(), rows, rank);
    std::vector<float> left(wide.begin(), wide.end());
    form.encode(left.data(), rank * rows, factors);
    form.decode(factors, rank * rows, left.data(), false, 1.0f);  // right belongs to what is sent
    matrix.times_left(residual, rows, cols, left.data(), rank, next);
    write_right(kernels, shape, next, factors);
    factors_product(kernels, shape, factors, residual, Into::SUBTRACT, 1.0f);
    for (int64_t k = 0; k < rank; k++)
        if (largest_magnitude(next + k * cols, cols) == 0.0f)
            std::memcpy(next + k * cols, start + k * cols, size_t(cols) * sizeof(float));
}

}  // namespace edgegossip
