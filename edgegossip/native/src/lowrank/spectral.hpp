// A matrix as a sum of atoms u_i w_i^T with orthonormal u_i: those of its singular value decomposition.
#pragma once

#include <cstdint>

#include "runtime/kernels.hpp"

namespace edgegossip {

// a: float32[rows][cols]. basis: float64[m][m], m = min(rows, cols); row i is u_i, of length m along the shorter side.
// norms[i] = |w_i|, w_i = a^T u_i (rows <= cols) or a u_i. Both are 0 for a matrix without values.
void spectral_basis(const Kernels& kernels, const float* a, int64_t rows, int64_t cols, double* basis, double* norms);

// long_side = w / divisor for the atom of unit vector `unit`: float64[m] -> float32[max(rows, cols)], held finite.
void spectral_atom(const Kernels& kernels, const float* a, int64_t rows, int64_t cols, const double* unit, double divisor,
                   float* long_side);

}  // namespace edgegossip
