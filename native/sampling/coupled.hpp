// Gumbel-perturbed argmax and top-n over a row, exact, with most of the noise never computed.
#pragma once

#include <cstdint>
#include <vector>

#include "sampling/philox.hpp"
#include "sampling/select.hpp"

namespace sonoran::sampling {

// The n survivors with the largest x + gumbel, in that order; equal scores by id; without exclude.
std::vector<int32_t> coupled_top(const Row& row, const Cut& cut, NoiseKey key, int64_t n, int64_t exclude);

}  // namespace sonoran::sampling
