// Attention of rows of one sequence over paged KV memory, written once over Vec.
//
// KV layout of a layer, fp16. Slots come in tiles of 16. Keys: [tile][kv head][dimension][slot in tile], so a
// score of 16 keys needs no horizontal sum; values: [slot][kv head][dimension]. Sums run over the keys in
// order of their index (trunk, then extra slots) whatever the split into trunk and branch is, and whatever
// rows are computed together: those share only the conversion of keys and values to floats.
#pragma once

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "kernels/elementwise.hpp"
#include "kernels/kernels.hpp"

namespace sonoran {
namespace {

struct KeyWalk {
  const AttentionArgs& a;

  int tile(int index) const {  // tile of trunk positions 16 * index ...
    return a.table[index / a.tiles_per_block] * a.tiles_per_block + index % a.tiles_per_block;
  }
  const uint16_t* keys(int tile) const {
    return a.keys +
           (static_cast<size_t>(tile) * static_cast<size_t>(a.kv_heads) + static_cast<size_t>(a.kv_head)) *
               static_cast<size_t>(a.head_dim) * 16;
  }
  const uint16_t* values(int slot) const {
    return a.values +
           (static_cast<size_t>(slot) * static_cast<size_t>(a.kv_heads) + static_cast<size_t>(a.kv_head)) *
               static_cast<size_t>(a.head_dim);
  }
};

inline Vec::F load_float(const float* p) { return Vec::load(p); }
inline Vec::F load_float(const uint16_t* p) { return Vec::load_half(p); }

// Where conversion costs (Vec::kConvertOnce), tiles and values are turned into floats in memory for all rows
// and heads; elsewhere they are read as they are.
using Stored = std::conditional_t<Vec::kConvertOnce, float, uint16_t>;

// Elements between two dimensions of a tile of keys; two converted tiles lie side by side.
inline constexpr int kKeyStep = Vec::kConvertOnce ? 32 : 16;

// n groups of 16 values, as floats `step` apart.
inline const float* as_stored(const uint16_t* from, int n, int step, float* to) {
  for (int i = 0; i < n; ++i) Vec::store(to + step * i, Vec::load_half(from + 16 * i));
  return to;
}
inline const uint16_t* as_stored(const uint16_t* from, int, int, uint16_t*) { return from; }

// What is wanted soon, asked for a little at a time: blocks lie anywhere in memory, so the processor does not
// see by itself what comes next, and of what is asked for at once only a few lines are under way.
struct Ahead {
  const uint16_t* first;
  const uint16_t* second;
  int step;  // elements of each that are asked for per dimension

  void prefetch(int d) const {
    __builtin_prefetch(first + step * d);
    __builtin_prefetch(second + step * d);
  }
};

// Scores of the keys of two tiles, [dimension][16], for H heads.
template <int H>
inline void score_keys(const float* queries, int head_dim, const Stored* first, const Stored* second,
                       const Ahead& ahead, float* out, size_t stride) {
  Vec::F acc[H][2];
  for (auto& head : acc) head[0] = head[1] = Vec::zero();
  for (int d = 0; d < head_dim; ++d) {
    ahead.prefetch(d);
    const Vec::F a = load_float(first + kKeyStep * d);
    const Vec::F b = load_float(second + kKeyStep * d);
    for (int h = 0; h < H; ++h) {
      const Vec::F q = Vec::set(queries[h * head_dim + d]);
      acc[h][0] = Vec::fma(a, q, acc[h][0]);
      acc[h][1] = Vec::fma(b, q, acc[h][1]);
    }
  }
  for (int h = 0; h < H; ++h) {
    Vec::store(out + static_cast<size_t>(h) * stride + 16, acc[h][1]);
    Vec::store(out + static_cast<size_t>(h) * stride, acc[h][0]);
  }
}

template <int Most, class Body>
inline void with_heads(int heads, int head, const Body& body) {
  if constexpr (Most > 1) {
    if (heads < Most) return with_heads<Most - 1>(heads, head, body);
  }
  body(std::integral_constant<int, Most>{}, head);
}

// Calls body(integral_constant H, head) for all heads, at most Most at a time, in parts of nearly equal size.
template <int Most, class Body>
inline void for_heads(int heads, const Body& body) {
  const int parts = (heads + Most - 1) / Most;
  for (int part = 0; part < parts; ++part) {
    const int head = heads * part / parts;
    with_heads<Most>(heads * (part + 1) / parts - head, head, body);
  }
}

// Copies the keys of up to 16 extra slots into one tile.
inline void gather_keys(const KeyWalk& walk, const int32_t* slots, int n, uint16_t* tile) {
  const int dims = walk.a.head_dim;
  std::memset(tile, 0, static_cast<size_t>(dims) * 16 * sizeof(uint16_t));
  for (int i = 0; i < n; ++i) {
    const uint16_t* from = walk.keys(slots[i] / 16) + slots[i] % 16;
    for (int d = 0; d < dims; ++d) tile[16 * d + i] = from[16 * d];
  }
}

// The scores of all keys of all rows. A row may get scores of keys that it does not see, where its own extra
// slots or nothing come later.
inline void score_rows(const AttentionArgs& a, int first_tile, int tiles) {
  const KeyWalk walk{a};
  auto* memory = reinterpret_cast<Stored*>(a.converted);
  const auto score = [&](const AttentionRow& row, const Stored* first, const Stored* second,
                         const Ahead& ahead, float* out) {
    for_heads<Vec::kMaxHeads>(a.heads, [&](auto heads, int head) {
      score_keys<heads()>(row.queries + static_cast<size_t>(head) * static_cast<size_t>(a.head_dim),
                          a.head_dim, first, second, ahead, out + static_cast<size_t>(head) * a.stride,
                          a.stride);
    });
  };
  for (int t = first_tile; t < tiles; t += 2) {
    const auto keys = [&](int tile) { return walk.keys(walk.tile(std::min(tile, tiles - 1))); };
    const Stored* first = as_stored(keys(t), a.head_dim, kKeyStep, memory);
    const Stored* second = t + 1 < tiles ? as_stored(keys(t + 1), a.head_dim, kKeyStep, memory + 16) : first;
    Ahead ahead{keys(t + 2), keys(t + 3), 16};
    for (int r = 0; r < a.num_rows; ++r) {
      const AttentionRow& row = a.rows[r];
      if (16 * t >= row.trunk || 16 * (t + 2) <= row.first) continue;
      score(row, first, second, ahead, a.row_scores(r) + 16 * t);
      ahead.step = 0;
    }
  }
  for (int r = 0; r < a.num_rows; ++r) {
    const AttentionRow& row = a.rows[r];
    for (int e = 0; e < row.extras; e += 16) {
      const int n = std::min(16, row.extras - e);
      gather_keys(walk, row.extra_slots + e, n, a.gathered);
      const Stored* keys = as_stored(a.gathered, a.head_dim, kKeyStep, memory);
      // Behind the scores of the row; the second 16 are of no use and overwritten.
      float* out = a.row_scores(r) + row.trunk + e;
      score(row, keys, keys, {a.gathered, a.gathered, 0}, out);
    }
  }
}

// Turns the scores of keys [first, n) into weights that still have to be divided by the returned sum.
inline float soften(float* scores, int first, int n, float cap) {
  const int begin = first / 16 * 16;
  const int end = (n + 15) / 16 * 16;
  if (cap > 0) softcap(scores + begin, end - begin, cap);
  for (int i = begin; i < first; ++i) scores[i] = -INFINITY;
  for (int i = n; i < end; ++i) scores[i] = -INFINITY;
  Vec::F top = Vec::set(-INFINITY);
  for (int i = begin; i < end; i += 16) top = Vec::max(top, Vec::load(scores + i));
  const Vec::F largest = Vec::set(reduce_max(top));
  for (int i = begin; i < end; i += 16) Vec::store(scores + i, exp(Vec::sub(Vec::load(scores + i), largest)));
  for (int i = begin; i < first; ++i) scores[i] = 0.0f;
  for (int i = n; i < end; ++i) scores[i] = 0.0f;
  Vec::F sum = Vec::zero();
  for (int i = begin; i < end; i += 16) sum = Vec::add(sum, Vec::load(scores + i));
  return reduce_add(sum);
}

// out[h][0 .. 16 D) += the sum of weight * value[dim .. dim + 16 D) over n keys, in their order; the values
// `ahead` are wanted soon.
template <int H, int D>
inline void mix_part(const Stored* const* values, const uint16_t* const* ahead, int dim, int n,
                     const float* weights, size_t stride, float* out, size_t out_stride) {
  Vec::F acc[H][D];
  for (int h = 0; h < H; ++h) {
    for (int i = 0; i < D; ++i) acc[h][i] = Vec::load(out + static_cast<size_t>(h) * out_stride + 16 * i);
  }
  for (int k = 0; k < n; ++k) {
    const Stored* value = values[k] + dim;
    for (int i = 0; i < D; i += 2) __builtin_prefetch(ahead[k] + dim + 16 * i);
    for (int h = 0; h < H; ++h) {
      const Vec::F w = Vec::set(weights[static_cast<size_t>(h) * stride + static_cast<size_t>(k)]);
      for (int i = 0; i < D; ++i) acc[h][i] = Vec::fma(load_float(value + 16 * i), w, acc[h][i]);
    }
  }
  for (int h = 0; h < H; ++h) {
    for (int i = 0; i < D; ++i) Vec::store(out + static_cast<size_t>(h) * out_stride + 16 * i, acc[h][i]);
  }
}

inline void mix_values(const AttentionArgs& a, const AttentionRow& row, const Stored* const* values,
                       const uint16_t* const* ahead, int n, const float* weights) {
  const auto dims = static_cast<size_t>(a.head_dim);
  for_heads<Vec::kMaxMixed>(a.heads, [&](auto heads, int head) {
    constexpr int H = heads();
    constexpr int D = 4 * H <= Vec::kMaxSums ? 4 : 2 * H <= Vec::kMaxSums ? 2 : 1;
    float* out = row.out + static_cast<size_t>(head) * dims;
    const float* w = weights + static_cast<size_t>(head) * a.stride;
    int dim = 0;
    for (; dim + 16 * D <= a.head_dim; dim += 16 * D)
      mix_part<H, D>(values, ahead, dim, n, w, a.stride, out + dim, dims);
    for (; dim < a.head_dim; dim += 16) mix_part<H, 1>(values, ahead, dim, n, w, a.stride, out + dim, dims);
  });
}

// Between them the sums lie in memory, which costs more the wider the registers are.
inline constexpr int kValuesAtOnce = Vec::kConvertOnce ? kKeysAtOnce : 8 * kKeysAtOnce;

// Values as they lie in memory, kKeysAtOnce more than are added up together: those are wanted next.
struct ValueRun {
  const uint16_t* at[kValuesAtOnce + kKeysAtOnce];
  const Stored* stored[kValuesAtOnce];

  template <class Where>
  ValueRun(const AttentionArgs& a, int n, const Where& where) {
    auto* memory = reinterpret_cast<Stored*>(a.converted);
    for (int i = 0; i < n + kKeysAtOnce; ++i) at[i] = where(i);
    for (int i = 0; i < n; ++i)
      stored[i] = as_stored(at[i], a.head_dim / 16, 16, memory + static_cast<ptrdiff_t>(i) * a.head_dim);
  }
};

// Adds up the values of all keys of all rows; row.out must be zero.
inline void mix_rows(const AttentionArgs& a, int first_tile, int tiles) {
  const KeyWalk walk{a};
  for (int t = first_tile; t < tiles; t += kValuesAtOnce / 16) {
    const int start = 16 * t;
    const int end = std::min(16 * tiles, start + kValuesAtOnce);
    const ValueRun values(a, end - start, [&](int i) {
      const int key = std::min(start + i, 16 * tiles - 1);
      return walk.values(walk.tile(key / 16) * 16 + key % 16);
    });
    for (int r = 0; r < a.num_rows; ++r) {
      const AttentionRow& row = a.rows[r];
      const int from = std::max(start, row.first);
      const int n = std::min(end, row.trunk) - from;
      const uint16_t* const* at = values.at + (from - start);
      if (n > 0)
        mix_values(a, row, values.stored + (from - start), r == 0 ? at + kKeysAtOnce : at, n,
                   a.row_scores(r) + from);
    }
  }
  for (int r = 0; r < a.num_rows; ++r) {
    const AttentionRow& row = a.rows[r];
    for (int e = std::max(0, row.first - row.trunk); e < row.extras; e += kValuesAtOnce) {
      const int n = std::min(kValuesAtOnce, row.extras - e);
      const ValueRun values(
          a, n, [&](int i) { return walk.values(row.extra_slots[std::min(e + i, row.extras - 1)]); });
      mix_values(a, row, values.stored, values.at + kKeysAtOnce, n, a.row_scores(r) + row.trunk + e);
    }
  }
}

void attend(const AttentionArgs& a) {
  int first_tile = a.rows[0].first / 16;
  int tiles = 0;
  for (int r = 0; r < a.num_rows; ++r) {
    first_tile = std::min(first_tile, a.rows[r].first / 16);
    tiles = std::max(tiles, (a.rows[r].trunk + 15) / 16);
  }
  score_rows(a, first_tile, tiles);
  const auto dims = static_cast<size_t>(a.head_dim);
  for (int r = 0; r < a.num_rows; ++r) {
    std::fill_n(a.rows[r].out, static_cast<size_t>(a.heads) * dims, 0.0f);
    for (int h = 0; h < a.heads; ++h) {
      float* scores = a.row_scores(r) + static_cast<size_t>(h) * a.stride;
      a.sums[r * a.heads + h] = soften(scores, a.rows[r].first, a.rows[r].keys(), a.softcap);
    }
  }
  mix_rows(a, first_tile, tiles);
  for (int r = 0; r < a.num_rows; ++r) {
    for (int h = 0; h < a.heads; ++h) {
      const Vec::F inverse = Vec::set(1.0f / a.sums[r * a.heads + h]);
      float* out = a.rows[r].out + static_cast<size_t>(h) * dims;
      for (size_t d = 0; d < dims; d += 16) Vec::store(out + d, Vec::mul(Vec::load(out + d), inverse));
    }
  }
}

// Writes the keys and values of one kv head of one row (head_dim floats each, padded) into its slot.
void store_kv(const float* key, const float* value, int slot, int kv_head, int kv_heads, int head_dim,
              uint16_t* keys, uint16_t* values) {
  const auto heads = static_cast<size_t>(kv_heads);
  const auto dims = static_cast<size_t>(head_dim);
  uint16_t* k =
      keys + (static_cast<size_t>(slot / 16) * heads + static_cast<size_t>(kv_head)) * dims * 16 + slot % 16;
  uint16_t* v = values + (static_cast<size_t>(slot) * heads + static_cast<size_t>(kv_head)) * dims;
  for (int d = 0; d < head_dim; d += 16) {
    uint16_t lanes[16];
    Vec::store_half(lanes, Vec::load(key + d));
    for (int i = 0; i < 16; ++i) k[16 * (d + i)] = lanes[i];
    Vec::store_half(v + d, Vec::load(value + d));
  }
}

}  // namespace
}  // namespace sonoran
