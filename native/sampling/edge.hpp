// Where min-p, top-k and top-p end: exact, by integer weights, the same as the NumPy definition.
#pragma once

#include <cstdint>

#include "sampling/row.hpp"

namespace sonoran::sampling {

// Temperature and truncation; top_k 0, top_p 1 and min_p 0 are off.
struct Cut {
  double inverse_temperature = 1.0;
  int64_t top_k = 0;
  double top_p = 1.0;
  double min_p = 0.0;
};

// The leading n tokens.
Edge edge_of_count(const Row& row, int64_t n);

// min-p and top-k, then top-p over what they leave.
Edge edge_of_cut(const Row& row, const Cut& cut);

}  // namespace sonoran::sampling
