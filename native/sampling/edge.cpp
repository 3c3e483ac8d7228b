#include "sampling/edge.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <vector>

namespace sonoran::sampling {

namespace {

// Monotone in the logit; both zeros have the same key.
uint32_t order_key(float logit) {
  const uint32_t bits = std::bit_cast<uint32_t>(logit + 0.0f);
  return bits ^ ((bits >> 31) != 0 ? 0xFFFFFFFFu : 0x80000000u);
}

float logit_of_key(uint32_t key) {
  return std::bit_cast<float>(key ^ ((key >> 31) != 0 ? 0x80000000u : 0xFFFFFFFFu));
}

struct Candidates {
  std::vector<int32_t> ids;  // ascending
  std::vector<uint32_t> keys;
  std::vector<int64_t> amounts;

  void add(int32_t id, float logit, int64_t amount) {
    ids.push_back(id);
    keys.push_back(order_key(logit));
    amounts.push_back(amount);
  }
};

// Smallest leading set of the candidates whose amounts reach the target, in three radix passes.
Edge edge_of_amount(const Candidates& candidates, int64_t target) {
  constexpr int shifts[] = {21, 10, 0};
  constexpr int widths[] = {11, 11, 10};
  uint32_t prefix = 0;
  uint32_t mask = 0;
  std::vector<int64_t> sums(1 << 11);
  for (int level = 0; level < 3; ++level) {
    const uint32_t digit_mask = (1u << widths[level]) - 1;
    std::fill(sums.begin(), sums.end(), 0);
    for (size_t i = 0; i < candidates.keys.size(); ++i) {
      const uint32_t key = candidates.keys[i];
      if ((key & mask) == prefix) sums[(key >> shifts[level]) & digit_mask] += candidates.amounts[i];
    }
    uint32_t digit = digit_mask;
    while (digit > 0 && sums[digit] < target) target -= sums[digit--];
    prefix |= digit << shifts[level];
    mask |= digit_mask << shifts[level];
  }
  Edge edge{logit_of_key(prefix), -1};
  for (size_t i = 0; i < candidates.keys.size() && target > 0; ++i) {
    if (candidates.keys[i] != prefix) continue;
    target -= candidates.amounts[i];
    edge.last = candidates.ids[i];
  }
  return edge;
}

Edge edge_of_min_p(const Row& row, const Scale& scale, double min_p) {
  const double least = log_of(min_p);
  Edge edge{row.largest, row.size};
  for (int32_t block = 0; block < row.num_blocks; ++block) {
    if (scale(row.maxima[block]) < least) continue;
    const float* logits = row.logits + row.begin(block);
    for (int32_t i = 0; i < row.length(block); ++i) {
      if (logits[i] < edge.logit && scale(logits[i]) >= least) edge.logit = logits[i];
    }
  }
  return edge;
}

constexpr int k_buckets = 1024;
constexpr double k_per_unit = 32.0;

// Buckets of x of width 1/32, from 0 down; the last has everything below -32. Returns whether any is the
// wanted one.
SONORAN_CLONES bool find_buckets(const float* logits, int n, double inverse, double largest, int32_t wanted,
                                 int32_t* buckets) {
  int32_t any = 0;
  for (int i = 0; i < n; ++i) {
    const double depth = (static_cast<double>(logits[i]) * inverse - largest) * -k_per_unit;
    buckets[i] = static_cast<int32_t>(depth < k_buckets - 1.0 ? depth : k_buckets - 1.0);
    any |= buckets[i] == wanted ? 1 : 0;
  }
  return any != 0;
}

// The x below which tokens cannot be needed for top_p: the total is at least 2^44, the weight of the largest
// token, so all of them together weigh less than (1 - top_p) of it.
double needless_below(double top_p, int32_t size) {
  const double rest = 1.0 - top_p;
  return rest < 1e-9 ? -std::numeric_limits<double>::infinity() : log_of(rest / size) - 1.0;
}

// Smallest leading set within the edge that has top_p of the weight there: a histogram of x, then one bucket
// exactly.
Edge edge_of_weight(const Row& row, const Scale& scale, const Edge& edge, double top_p) {
  const double needless = needless_below(top_p, row.size);
  int64_t weights[k_block];
  int32_t buckets[k_block];
  std::vector<int64_t> sums(4 * k_buckets, 0);  // four tables, so that neighbours do not wait for each other
  const auto find = [&](int32_t block, int32_t wanted) {
    return find_buckets(row.logits + row.begin(block), row.length(block), scale.inverse_temperature,
                        scale.largest, wanted, buckets);
  };
  int64_t total = 0;
  for (int32_t block = 0; block < row.num_blocks; ++block) {
    const double x = scale(row.maxima[block]);
    if (row.maxima[block] < edge.logit || x < k_lightest) continue;
    total += block_weights(row, block, scale, edge, weights);
    if (x < needless) continue;
    find(block, 0);
    for (int32_t i = 0; i < row.length(block); ++i) sums[4 * buckets[i] + i % 4] += weights[i];
  }
  // One float64 product, rounded up: the NumPy definition does the same.
  const double product = std::ceil(top_p * static_cast<double>(total));
  int64_t target = product >= static_cast<double>(total) ? total : static_cast<int64_t>(product);
  const auto sum = [&sums](int32_t b) {
    return sums[4 * b] + sums[4 * b + 1] + sums[4 * b + 2] + sums[4 * b + 3];
  };
  int32_t wanted = 0;
  while (wanted < k_buckets - 1 && sum(wanted) < target) target -= sum(wanted++);
  Candidates candidates;
  for (int32_t block = 0; block < row.num_blocks; ++block) {
    if (row.maxima[block] < edge.logit || !find(block, wanted)) continue;
    for (int32_t i = 0; i < row.length(block); ++i) {
      const int32_t id = row.begin(block) + i;
      const float logit = row.logits[id];
      if (buckets[i] == wanted && edge.admits(logit, id)) candidates.add(id, logit, weight_of(scale(logit)));
    }
  }
  return edge_of_amount(candidates, target);
}

}  // namespace

Edge edge_of_count(const Row& row, int64_t n) {
  constexpr float infinity = std::numeric_limits<float>::infinity();
  const float lowest = row.bound_of_top(n);
  Candidates candidates;
  for (int32_t block = 0; block < row.num_blocks; ++block) {
    if (row.maxima[block] < lowest) continue;
    for (int32_t id = row.begin(block); id < row.begin(block) + row.length(block); ++id) {
      const float logit = row.logits[id];
      if (logit >= lowest && logit > -infinity) candidates.add(id, logit, 1);
    }
  }
  if (static_cast<int64_t>(candidates.ids.size()) <= n)
    return lowest > -infinity ? Edge{lowest, row.size} : Edge{};
  return edge_of_amount(candidates, n);
}

Edge edge_of_cut(const Row& row, const Cut& cut) {
  const Scale scale(row, cut.inverse_temperature);
  Edge edge;
  if (cut.min_p > 0.0) edge = edge_of_min_p(row, scale, cut.min_p);
  if (cut.top_k > 0) edge = Edge::stricter(edge, edge_of_count(row, cut.top_k));
  if (cut.top_p < 1.0) edge = edge_of_weight(row, scale, edge, cut.top_p);
  return edge;
}

}  // namespace sonoran::sampling
