#include "sampling/row.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <functional>
#include <string>

#include "core/error.hpp"

namespace sonoran::sampling {

namespace {

constexpr float k_infinity = std::numeric_limits<float>::infinity();

// Monotone in the float, as a signed integer: integer maxima vectorise, and order does not matter to them.
SONORAN_INLINE int32_t signed_key(int32_t bits) { return bits ^ ((bits >> 31) & 0x7FFFFFFF); }

constexpr int32_t k_key_of_infinity = 0x7F800000;
constexpr int32_t k_key_of_minus_infinity = static_cast<int32_t>(0x807FFFFF);

// Largest value of every whole block; returns whether all values are below +inf (false for NaN of either
// sign).
SONORAN_CLONES bool find_maxima(const float* logits, int32_t num_blocks, float* maxima) {
  int32_t lowest = 0;
  int32_t highest = k_key_of_minus_infinity;
  for (int32_t block = 0; block < num_blocks; ++block) {
    int32_t bits[k_block];
    std::memcpy(bits, logits + static_cast<int64_t>(block) * k_block, sizeof(bits));
    int32_t low = 0;
    int32_t high = std::numeric_limits<int32_t>::min();
    for (int i = 0; i < k_block; ++i) {
      const int32_t key = signed_key(bits[i]);
      low = key < low ? key : low;
      high = key > high ? key : high;
    }
    lowest = low < lowest ? low : lowest;
    highest = high > highest ? high : highest;
    maxima[block] = std::bit_cast<float>(signed_key(high));
  }
  return lowest >= k_key_of_minus_infinity && highest < k_key_of_infinity;
}

SONORAN_CLONES int64_t weigh(const float* logits, int n, double inverse, double largest, int64_t* weights) {
  int64_t sum = 0;
  for (int i = 0; i < n; ++i) {
    weights[i] = weight_of(static_cast<double>(logits[i]) * inverse - largest);
    sum += weights[i];
  }
  return sum;
}

}  // namespace

Row::Row(const float* values, int64_t count)
    : logits(values),
      size(static_cast<int32_t>(count)),
      num_blocks(static_cast<int32_t>((count + k_block - 1) / k_block)) {
  if (count > k_max_vocab) {
    throw ConfigError("the vocabulary has " + std::to_string(count) + " tokens; at most " +
                      std::to_string(k_max_vocab) + " are supported");
  }
  maxima.resize(num_blocks);
  const int32_t whole = size / k_block;
  bool fine = count > 0 && find_maxima(logits, whole, maxima.data());
  if (fine && whole < num_blocks) {
    float& last = maxima[whole];
    last = -k_infinity;
    for (int32_t i = whole * k_block; i < size; ++i) {
      fine = fine && logits[i] < k_infinity;
      last = logits[i] > last ? logits[i] : last;
    }
  }
  if (!fine) throw NumericsError("a row of logits is empty or holds NaN or +inf");
  largest = *std::max_element(maxima.begin(), maxima.end());
  if (largest == -k_infinity) throw NumericsError("every token of a row of logits is excluded (-inf)");
}

int32_t Row::argmax() const {
  const auto block = static_cast<int32_t>(std::find(maxima.begin(), maxima.end(), largest) - maxima.begin());
  return static_cast<int32_t>(std::find(logits + begin(block), logits + size, largest) - logits);
}

float Row::bound_of_top(int64_t n) const {
  if (n > num_blocks) return -k_infinity;
  std::vector<float> sorted = maxima;
  std::nth_element(sorted.begin(), sorted.begin() + (n - 1), sorted.end(), std::greater<>());
  return sorted[n - 1];
}

int64_t block_weights(const Row& row, int32_t block, const Scale& scale, const Edge& edge, int64_t* weights) {
  const float* logits = row.logits + row.begin(block);
  const int n = row.length(block);
  int64_t sum = weigh(logits, n, scale.inverse_temperature, scale.largest, weights);
  if (edge.logit > -k_infinity) {
    sum = 0;
    for (int i = 0; i < n; ++i) {
      weights[i] = edge.admits(logits[i], row.begin(block) + i) ? weights[i] : 0;
      sum += weights[i];
    }
  }
  return sum;
}

int64_t total_weight(const Row& row, const Scale& scale, const Edge& edge, std::vector<int64_t>* sums) {
  if (sums != nullptr) sums->assign(row.num_blocks, 0);
  int64_t total = 0;
  int64_t weights[k_block];
  for (int32_t block = 0; block < row.num_blocks; ++block) {
    if (row.maxima[block] < edge.logit || scale(row.maxima[block]) < k_lightest) continue;
    const int64_t sum = block_weights(row, block, scale, edge, weights);
    total += sum;
    if (sums != nullptr) (*sums)[block] = sum;
  }
  return total;
}

}  // namespace sonoran::sampling
