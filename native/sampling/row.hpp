// One row of logits with the largest value of every block of 64, so that most of it can be skipped.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "sampling/portable.hpp"

namespace sonoran::sampling {

inline constexpr int k_block = 64;

class Row {
 public:
  // Throws NumericsError for NaN, +inf, an empty row or one without a finite value; ConfigError if too long.
  Row(const float* logits, int64_t size);

  const float* logits;
  int32_t size;
  int32_t num_blocks;
  float largest;
  std::vector<float> maxima;  // [num_blocks]

  int32_t begin(int32_t block) const { return block * k_block; }
  int32_t length(int32_t block) const {
    const int32_t rest = size - block * k_block;
    return rest < k_block ? rest : k_block;
  }
  int32_t argmax() const;
  // The n-th largest block maximum, which at least n logits reach; -inf when there are fewer blocks.
  float bound_of_top(int64_t n) const;
};

// x = inverse temperature * logit - inverse temperature * largest, in float64.
struct Scale {
  double inverse_temperature;
  double largest;

  Scale(const Row& row, double inverse)
      : inverse_temperature(inverse), largest(static_cast<double>(row.largest) * inverse) {}
  double operator()(float logit) const { return static_cast<double>(logit) * inverse_temperature - largest; }
};

// A leading set of tokens: all with a larger logit, and those with this logit up to an id. The default is all
// tokens but those at -inf.
struct Edge {
  float logit = -std::numeric_limits<float>::infinity();
  int32_t last = -1;

  bool admits(float value, int32_t id) const { return value > logit || (value == logit && id <= last); }
  // The smaller of two leading sets.
  static Edge stricter(const Edge& a, const Edge& b) {
    if (a.logit != b.logit) return a.logit > b.logit ? a : b;
    return a.last < b.last ? a : b;
  }
};

// Weights of one block, 0 for tokens that the edge does not admit; returns their sum.
int64_t block_weights(const Row& row, int32_t block, const Scale& scale, const Edge& edge, int64_t* weights);

// Below this x every weight is 0, for exp(-32) * 2^44 < 1/2.
inline constexpr double k_lightest = -32.0;

// Sum of all weights within the edge and, if asked for, of every block.
int64_t total_weight(const Row& row, const Scale& scale, const Edge& edge, std::vector<int64_t>* sums);

}  // namespace sonoran::sampling
