#include "sampling/select.hpp"

#include <algorithm>

namespace sonoran::sampling {

namespace {

// Calls visit(block) for every block with a token within the edge.
template <class Visit>
void for_blocks(const Row& row, const Edge& edge, Visit visit) {
  for (int32_t block = 0; block < row.num_blocks; ++block) {
    if (row.maxima[block] >= edge.logit) visit(block);
  }
}

}  // namespace

Selection select(const Row& row, const Cut& cut, int64_t limit) {
  const Scale scale(row, cut.inverse_temperature);
  Edge edge = edge_of_cut(row, cut);
  if (limit > 0) edge = Edge::stricter(edge, edge_of_count(row, limit));
  Selection kept;
  int64_t weights[k_block];
  size_t n = 0;
  for_blocks(row, edge, [&](int32_t block) {
    if (kept.ids.size() < n + k_block) {
      const size_t room = std::min<size_t>(2 * n, row.size) + k_block;
      kept.ids.resize(room);
      kept.x.resize(room);
      kept.weights.resize(room);
    }
    block_weights(row, block, scale, edge, weights);
    for (int32_t i = 0; i < row.length(block); ++i) {
      const int32_t id = row.begin(block) + i;
      kept.ids[n] = id;
      kept.x[n] = scale(row.logits[id]);
      kept.weights[n] = weights[i];
      n += edge.admits(row.logits[id], id) ? 1 : 0;
    }
  });
  kept.ids.resize(n);
  kept.x.resize(n);
  kept.weights.resize(n);
  return kept;
}

std::vector<int32_t> top(const Row& row, int64_t n, int64_t exclude) {
  std::vector<int32_t> ids;
  if (n <= 0) return ids;
  const bool skips = exclude >= 0 && exclude < row.size;
  const Edge edge = edge_of_count(row, n + (skips ? 1 : 0));
  for_blocks(row, edge, [&](int32_t block) {
    for (int32_t id = row.begin(block); id < row.begin(block) + row.length(block); ++id) {
      if (edge.admits(row.logits[id], id) && id != exclude) ids.push_back(id);
    }
  });
  std::sort(ids.begin(), ids.end(), [&row](int32_t a, int32_t b) {
    return row.logits[a] != row.logits[b] ? row.logits[a] > row.logits[b] : a < b;
  });
  if (static_cast<int64_t>(ids.size()) > n) ids.resize(n);
  return ids;
}

int32_t inverse_sample(const Row& row, const Cut& cut, uint64_t bits) {
  const Scale scale(row, cut.inverse_temperature);
  const Edge edge = edge_of_cut(row, cut);
  std::vector<int64_t> sums;
  const auto total = static_cast<unsigned __int128>(total_weight(row, scale, edge, &sums));
  auto wanted = static_cast<int64_t>((total * bits) >> k_uniform_bits);
  int32_t block = 0;
  while (wanted >= sums[block]) wanted -= sums[block++];
  int64_t weights[k_block];
  block_weights(row, block, scale, edge, weights);
  int32_t i = 0;
  while (wanted >= weights[i]) wanted -= weights[i++];
  return row.begin(block) + i;
}

Mass mass(const Row& row, const Cut& cut, int64_t token) {
  const Scale scale(row, cut.inverse_temperature);
  const Edge edge = edge_of_cut(row, cut);
  const int64_t total = total_weight(row, scale, edge, nullptr);
  if (token < 0 || token >= row.size) return {0, total};
  const float logit = row.logits[token];
  return {edge.admits(logit, static_cast<int32_t>(token)) ? weight_of(scale(logit)) : 0, total};
}

double logsumexp(const Row& row) {
  const int64_t total = total_weight(row, Scale(row, 1.0), Edge{}, nullptr);
  return static_cast<double>(row.largest) + log_of(static_cast<double>(total)) - k_weight_bits * k_ln2;
}

}  // namespace sonoran::sampling
