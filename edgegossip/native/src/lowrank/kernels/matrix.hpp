#pragma once

#include <cstdint>

namespace edgegossip {

constexpr int64_t MATRIX_TILE = 8;     // columns of a packed panel
constexpr int64_t MATRIX_BLOCK = 256;  // rows and columns of a block of an outer product

// What becomes of a product: out = value; out += weight * value (rounded to float32 first); out -= value, held finite.
enum class Into : int32_t { WRITE, ADD, SUBTRACT };

// Products of matrices with float64 sums. Every sum has its fixed order of terms, so the bits do not depend on vectors' width.
// Matrices are float32, row after row, unless said otherwise.
struct Matrix {
    // m[i] = x[i] + decay * error[i], held within float32's finite range.
    void (*corrected)(const float* x, const float* error, int64_t n, float decay, float* m);

    // left[k][i] = sum over j of m[i][j] right[k][j], in 8 interleaved sums.
    void (*times_right)(const float* m, int64_t rows, int64_t cols, const float* right, int64_t rank, double* left);

    // right[k][j] = sum over i of m[i][j] left[k][i], held within float32's finite range.
    void (*times_left)(const float* m, int64_t rows, int64_t cols, const float* left, int64_t rank, float* right);

    // One block of the sum over k of the outer products left[k][i] right[k][j], in the order of k, held within float32's
    // finite range. Rows of `left` (float32) and `right` (float64) have MATRIX_BLOCK entries; those of out are `stride` apart.
    void (*outer)(const float* left, const double* right, int64_t rank, int64_t rows, int64_t cols, float* out, int64_t stride,
                  Into into, float weight);

    // panel[t][k][l] = a[(8 t + l) * across + k * along] for every tile t of `count` entries, k < depth; 0 beyond `count`.
    void (*pack)(const float* a, int64_t count, int64_t across, int64_t depth, int64_t along, double* panel);

    // Upper triangle: gram[i][j] += sum over k of panel(i, k) panel(j, k); `gram` has rows of `size`, a multiple of 8.
    void (*gram)(const double* panel, int64_t size, int64_t depth, double* gram);

    // squares[i] += sum over c of (sum over k of vectors(i, k) panel(c, k))^2, c in order; sizes are multiples of 8.
    void (*squares)(const double* vectors, int64_t size, const double* panel, int64_t count, int64_t depth, double* squares);

    // product[c] = sum over k of vector[k] panel(c, k), for `count` entries, a multiple of 8.
    void (*project)(const double* vector, const double* panel, int64_t count, int64_t depth, double* product);
};

}  // namespace edgegossip
