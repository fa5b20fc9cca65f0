#include "lowrank/spectral.hpp"

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <vector>

#include "lowrank/eigen.hpp"

namespace edgegossip {
namespace {

constexpr int64_t DEPTH = 128;  // of the long side in one panel

int64_t padded(int64_t n) { return (n + MATRIX_TILE - 1) / MATRIX_TILE * MATRIX_TILE; }

// The matrix with its short side first: entry (i, c) is a[i * step_short + c * step_long].
struct View {
    View(const float* a, int64_t rows, int64_t cols)
        : a(a),
          side(std::min(rows, cols)),
          length(std::max(rows, cols)),
          step_short(rows <= cols ? cols : 1),
          step_long(rows <= cols ? 1 : cols) {}
    const float* a;
    int64_t side, length, step_short, step_long;
};

// Symmetric products of the rows of the short side: float64[side][side], upper triangle.
std::vector<double> gram_of(const Kernels& kernels, const View& view) {
    const int64_t size = padded(view.side);
    std::vector<double> gram(size_t(size * size)), panel(size_t(size * DEPTH));
    for (int64_t c = 0; c < view.length; c += DEPTH) {
        const int64_t depth = std::min(DEPTH, view.length - c);
        kernels.matrix.pack(view.a + c * view.step_long, view.side, view.step_short, depth, view.step_long, panel.data());
        kernels.matrix.gram(panel.data(), size, depth, gram.data());
    }
    for (int64_t i = 0; i < view.side; i++)
        std::copy_n(gram.begin() + i * size, view.side, gram.begin() + i * view.side);
    return gram;
}

// Tiles of 8 rows of `basis`: entry (i, k) at [i / 8][k][i % 8].
std::vector<double> tiles_of(const double* basis, int64_t side) {
    std::vector<double> tiles(size_t(padded(side) * side));
    for (int64_t i = 0; i < side; i++)
        for (int64_t k = 0; k < side; k++)
            tiles[size_t(i / MATRIX_TILE * MATRIX_TILE * side + k * MATRIX_TILE + i % MATRIX_TILE)] = basis[i * side + k];
    return tiles;
}

}  // namespace

void spectral_basis(const Kernels& kernels, const float* a, int64_t rows, int64_t cols, double* basis, double* norms) {
    const View view(a, rows, cols);
    {
        std::vector<double> gram = gram_of(kernels, view);
        symmetric_eigenvectors(gram.data(), view.side, basis);
    }
    const std::vector<double> tiles = tiles_of(basis, view.side);
    std::vector<double> panel(size_t(view.side * DEPTH)), squares(size_t(padded(view.side)));
    for (int64_t c = 0; c < view.length; c += DEPTH) {
        const int64_t count = std::min(DEPTH, view.length - c);
        kernels.matrix.pack(view.a + c * view.step_long, count, view.step_long, view.side, view.step_short, panel.data());
        kernels.matrix.squares(tiles.data(), padded(view.side), panel.data(), padded(count), view.side, squares.data());
    }
    for (int64_t i = 0; i < view.side; i++) norms[i] = std::sqrt(squares[size_t(i)]);
}

void spectral_atom(const Kernels& kernels, const float* a, int64_t rows, int64_t cols, const double* unit, double divisor,
                   float* long_side) {
    const View view(a, rows, cols);
    std::vector<double> panel(size_t(view.side * DEPTH));
    double product[DEPTH];
    for (int64_t c = 0; c < view.length; c += DEPTH) {
        const int64_t count = std::min(DEPTH, view.length - c);
        kernels.matrix.pack(view.a + c * view.step_long, count, view.step_long, view.side, view.step_short, panel.data());
        kernels.matrix.project(unit, panel.data(), padded(count), view.side, product);
        for (int64_t l = 0; l < count; l++)
            long_side[c + l] = float(std::max(-double(FLT_MAX), std::min(double(FLT_MAX), product[l] / divisor)));
    }
}

}  // namespace edgegossip
