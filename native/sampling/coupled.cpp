#include "sampling/coupled.hpp"

#include <algorithm>
#include <bit>
#include <functional>
#include <limits>

namespace sonoran::sampling {

namespace {

constexpr double k_infinity = std::numeric_limits<double>::infinity();
constexpr double k_largest_noise = 36.75;
constexpr int k_lanes = 16;

struct Scored {
  double score;
  int32_t id;
  bool operator<(const Scored& other) const {
    return score != other.score ? score > other.score : id < other.id;
  }
};

// An upper bound of x + gumbel from the first word of noise alone, in float32 with a margin for its rounding.
// v > word / 2^32 and -log(-log(1 - v)) <= -log v; log2 of a float is at least its bits read as a fixed-point
// number.
SONORAN_INLINE float upper_bound(double x, uint32_t word) {
  const float half = static_cast<float>(static_cast<int32_t>(word >> 1));
  const float log2_half = static_cast<float>(std::bit_cast<int32_t>(half)) * 0x1p-23f - 127.0f;
  return static_cast<float>(x) + (31.0f - log2_half) * 0.6931472f + 1e-3f;
}

// Marks which of the 64 tokens from first on may reach the bound; returns whether any may.
SONORAN_CLONES bool mark_block(NoiseKey key, const float* logits, int32_t first, double inverse,
                               double largest, double bound, int32_t* marks) {
  uint32_t blocks[k_lanes];
  uint32_t words[4][k_lanes];
  for (int j = 0; j < k_lanes; ++j) blocks[j] = (static_cast<uint32_t>(first) >> 2) + j;
  philox<k_lanes>(key, k_gumbel_high, blocks, words);
  uint32_t high[k_block];
  for (int k = 0; k < 4; ++k) {
    for (int j = 0; j < k_lanes; ++j) high[4 * j + k] = words[k][j];
  }
  const float least = static_cast<float>(bound);
  int32_t any = 0;
  for (int i = 0; i < k_block; ++i) {
    const double x = static_cast<double>(logits[i]) * inverse - largest;
    marks[i] = upper_bound(x, high[i]) >= least ? 1 : 0;
    any |= marks[i];
  }
  return any != 0;
}

// The best n so far, and the score that a token must reach to matter.
class Best {
 public:
  Best(NoiseKey key, int64_t n, int64_t exclude) : key_(key), n_(n), exclude_(exclude) {}

  double bound() const { return bound_; }

  // n tokens that take part in any case give a bound before the scan begins.
  void raise_bound(const Row& row, const Scale& scale, const Edge& edge, const std::vector<int32_t>& ids) {
    std::vector<double> scores;
    for (const int32_t id : ids) {
      if (id != exclude_ && edge.admits(row.logits[id], id))
        scores.push_back(scale(row.logits[id]) + gumbel(key_, id));
    }
    if (static_cast<int64_t>(scores.size()) < n_) return;
    std::nth_element(scores.begin(), scores.begin() + (n_ - 1), scores.end(), std::greater<>());
    bound_ = scores[n_ - 1];
  }

  void offer(int32_t id, double x) {
    if (id == exclude_) return;
    const Scored scored{x + gumbel(key_, id), id};
    if (scored.score < bound_) return;
    if (static_cast<int64_t>(heap_.size()) == n_) {
      if (!(scored < heap_.front())) return;
      std::pop_heap(heap_.begin(), heap_.end());
      heap_.pop_back();
    }
    heap_.push_back(scored);
    std::push_heap(heap_.begin(), heap_.end());
    if (static_cast<int64_t>(heap_.size()) == n_) bound_ = std::max(bound_, heap_.front().score);
  }

  std::vector<int32_t> ids() {
    std::sort(heap_.begin(), heap_.end());
    std::vector<int32_t> result;
    for (const Scored& scored : heap_) result.push_back(scored.id);
    return result;
  }

 private:
  NoiseKey key_;
  int64_t n_;
  int64_t exclude_;
  double bound_ = -k_infinity;
  std::vector<Scored> heap_;  // worst first
};

}  // namespace

std::vector<int32_t> coupled_top(const Row& row, const Cut& cut, NoiseKey key, int64_t n, int64_t exclude) {
  if (n <= 0) return {};
  const Scale scale(row, cut.inverse_temperature);
  const Edge edge = edge_of_cut(row, cut);
  Best best(key, n, exclude);
  // The more leading tokens are looked at first, the higher the bound and the less is scored later.
  best.raise_bound(row, scale, edge, top(row, std::max<int64_t>(n + 1, 8), -1));
  int32_t marks[k_block];
  for (int32_t block = 0; block < row.num_blocks; ++block) {
    if (row.maxima[block] < edge.logit || scale(row.maxima[block]) + k_largest_noise < best.bound()) continue;
    const int32_t first = row.begin(block);
    const int32_t length = row.length(block);
    if (length < k_block) {
      std::fill(marks, marks + length, 1);
    } else if (!mark_block(key, row.logits + first, first, scale.inverse_temperature, scale.largest,
                           best.bound(), marks)) {
      continue;
    }
    for (int32_t i = 0; i < length; ++i) {
      const float logit = row.logits[first + i];
      if (marks[i] != 0 && edge.admits(logit, first + i)) best.offer(first + i, scale(logit));
    }
  }
  return best.ids();
}

}  // namespace sonoran::sampling
