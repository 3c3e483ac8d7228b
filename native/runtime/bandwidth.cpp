#include "runtime/bandwidth.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>

#include "core/clones.hpp"
#include "runtime/memory.hpp"
#include "runtime/thread_pool.hpp"

namespace sonoran {

namespace {

// Wide independent sums, so that the loop waits for memory and for nothing else.
SONORAN_CLONES uint64_t read_all(const uint8_t* p, size_t bytes) {
  uint64_t sums[64] = {};
  for (size_t at = 0; at + 512 <= bytes; at += 512) {
    for (size_t line = 0; line < 512; line += 64) __builtin_prefetch(p + at + 4096 + line);
    uint64_t words[64];
    std::memcpy(words, p + at, 512);
    for (int i = 0; i < 64; ++i) sums[i] += words[i];
  }
  uint64_t total = 0;
  for (const uint64_t s : sums) total += s;
  return total;
}

}  // namespace

double measure_read_bandwidth(size_t bytes, int threads, const std::vector<int>& cores, int repeats) {
  ThreadPool pool(threads, cores);
  const PinnedHere pinned(cores.empty() ? cores : std::vector<int>{cores.front()});
  Arena memory(bytes);
  std::memset(memory.data(), 1, bytes);
  constexpr size_t kTask = size_t{4} << 20;
  const auto tasks = static_cast<int>(bytes / kTask);
  std::atomic<uint64_t> sink{0};
  double best = 0.0;
  for (int r = 0; r < repeats; ++r) {
    const auto start = std::chrono::steady_clock::now();
    pool.run(tasks,
             [&](int t, int) { sink += read_all(memory.data() + static_cast<size_t>(t) * kTask, kTask); });
    const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - start;
    best = std::max(best, static_cast<double>(tasks) * static_cast<double>(kTask) / spent.count() / 1e9);
  }
  return best;
}

}  // namespace sonoran
