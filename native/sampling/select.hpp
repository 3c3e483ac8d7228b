// What is left of a row after truncation, and draws from it by inverse transform.
#pragma once

#include <cstdint>
#include <vector>

#include "sampling/edge.hpp"

namespace sonoran::sampling {

// Survivors, ascending by id.
struct Selection {
  std::vector<int32_t> ids;
  std::vector<double> x;
  std::vector<int64_t> weights;
};

// The survivors; limit keeps only that many of the leading ones (0: all).
Selection select(const Row& row, const Cut& cut, int64_t limit);

// The first n token ids by logit, then id, without exclude.
std::vector<int32_t> top(const Row& row, int64_t n, int64_t exclude);

// The first survivor, by id, at which the sum of weights exceeds floor(bits * total / 2^52).
int32_t inverse_sample(const Row& row, const Cut& cut, uint64_t bits);

// Weight of one token (0 if it does not survive) and total weight.
struct Mass {
  int64_t weight;
  int64_t total;
};
Mass mass(const Row& row, const Cut& cut, int64_t token);

// log(sum(exp(row))), from the exact sum of integer weights; its relative error is below 5e-9.
double logsumexp(const Row& row);

}  // namespace sonoran::sampling
