// What a plain read loop reaches: the yardstick for the kernels.
#pragma once

#include <cstddef>
#include <vector>

namespace sonoran {

// Reads `bytes` of memory `repeats` times with the given threads (pinned if cores are given); GB/s of the
// best repeat.
double measure_read_bandwidth(size_t bytes, int threads, const std::vector<int>& cores, int repeats);

}  // namespace sonoran
