// Attention of one row over paged KV memory, written once over Vec.
//
// KV layout of a layer, fp16. Slots come in tiles of 16. Keys: [tile][kv head][dimension][slot in tile], so a
// score of 16 keys needs no horizontal sum; values: [slot][kv head][dimension]. Sums run over the keys in
// order of their index (trunk, then extra slots) whatever the split into trunk and branch is.
#pragma once

#include <cstring>

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

// Scores of two tiles for H heads starting at head; second may equal first.
template <int H>
inline void score_tiles(const AttentionArgs& a, int head, const uint16_t* first, const uint16_t* second,
                        float* out1, float* out2, size_t stride) {
  Vec::F acc[2][H];
  for (auto& half : acc) {
    for (auto& v : half) v = Vec::zero();
  }
  const float* q = a.queries + static_cast<size_t>(head) * static_cast<size_t>(a.head_dim);
  for (int d = 0; d < a.head_dim; ++d) {
    const Vec::F k1 = Vec::load_half(first + 16 * d);
    const Vec::F k2 = Vec::load_half(second + 16 * d);
    for (int h = 0; h < H; ++h) {
      const Vec::F qd = Vec::set(q[h * a.head_dim + d]);
      acc[0][h] = Vec::fma(k1, qd, acc[0][h]);
      acc[1][h] = Vec::fma(k2, qd, acc[1][h]);
    }
  }
  for (int h = 0; h < H; ++h) {
    Vec::store(out2 + static_cast<size_t>(h) * stride, acc[1][h]);
    Vec::store(out1 + static_cast<size_t>(h) * stride, acc[0][h]);
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

template <int H>
void score_heads(const AttentionArgs& a, int head, float* scores, size_t stride) {
  const KeyWalk walk{a};
  const int tiles = (a.trunk + 15) / 16;
  for (int t = a.first / 16; t < tiles; t += 2) {
    const int u = t + 1 < tiles ? t + 1 : t;
    score_tiles<H>(a, head, walk.keys(walk.tile(t)), walk.keys(walk.tile(u)), scores + 16 * t,
                   scores + 16 * u, stride);
  }
  for (int e = 0; e < a.extras; e += 16) {
    const int n = a.extras - e < 16 ? a.extras - e : 16;
    gather_keys(walk, a.extra_slots + e, n, a.gathered);
    float lanes[H * 16];
    score_tiles<H>(a, head, a.gathered, a.gathered, lanes, lanes, 16);
    for (int h = 0; h < H; ++h) {
      std::memcpy(scores + static_cast<size_t>(h) * stride + a.trunk + e, lanes + 16 * h,
                  static_cast<size_t>(n) * sizeof(float));
    }
  }
}

// Turns the scores of keys [first, n) into weights that still have to be divided by the returned sum.
inline float soften(float* scores, int first, int n) {
  const int begin = first / 16 * 16;
  const int end = (n + 15) / 16 * 16;
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

// out[h][d .. d + 16 D) = sum over keys of weight * value / sums[h]
template <int H, int D>
inline void mix_values(const AttentionArgs& a, int head, int dim, const float* weights, size_t stride,
                       const float* sums) {
  const KeyWalk walk{a};
  Vec::F acc[H][D];
  for (auto& row : acc) {
    for (auto& v : row) v = Vec::zero();
  }
  const auto add = [&](int slot, int index) {
    const uint16_t* value = walk.values(slot) + dim;
    Vec::F v[D];
    for (int i = 0; i < D; ++i) v[i] = Vec::load_half(value + 16 * i);
    for (int h = 0; h < H; ++h) {
      const Vec::F w = Vec::set(weights[static_cast<size_t>(h) * stride + static_cast<size_t>(index)]);
      for (int i = 0; i < D; ++i) acc[h][i] = Vec::fma(v[i], w, acc[h][i]);
    }
  };
  for (int index = a.first; index < a.trunk;) {
    const int base = walk.tile(index / 16) * 16 - index / 16 * 16;
    const int end = index / 16 * 16 + 16 < a.trunk ? index / 16 * 16 + 16 : a.trunk;
    for (; index < end; ++index) add(base + index, index);
  }
  for (int e = a.first > a.trunk ? a.first - a.trunk : 0; e < a.extras; ++e)
    add(a.extra_slots[e], a.trunk + e);
  for (int h = 0; h < H; ++h) {
    const Vec::F inverse = Vec::set(1.0f / sums[h]);
    float* out = a.out + static_cast<size_t>(head + h) * static_cast<size_t>(a.head_dim) + dim;
    for (int i = 0; i < D; ++i) Vec::store(out + 16 * i, Vec::mul(acc[h][i], inverse));
  }
}

template <int H>
void attend_heads(const AttentionArgs& a, int head) {
  const int n = a.trunk + a.extras;
  const auto stride = static_cast<size_t>(n + 31) / 16 * 16;
  float sums[H];
  score_heads<H>(a, head, a.scores, stride);
  for (int h = 0; h < H; ++h) sums[h] = soften(a.scores + static_cast<size_t>(h) * stride, a.first, n);
  int dim = 0;
  for (; dim + 64 <= a.head_dim; dim += 64) mix_values<H, 4>(a, head, dim, a.scores, stride, sums);
  for (; dim < a.head_dim; dim += 16) mix_values<H, 1>(a, head, dim, a.scores, stride, sums);
}

// All query heads that share one kv head, in parts of nearly equal size.
void attend(const AttentionArgs& a) {
  const int parts = (a.heads + kMaxHeadsAtOnce - 1) / kMaxHeadsAtOnce;
  for (int part = 0; part < parts; ++part) {
    const int head = a.heads * part / parts;
    switch (a.heads * (part + 1) / parts - head) {
      case 4:
        attend_heads<4>(a, head);
        break;
      case 3:
        attend_heads<3>(a, head);
        break;
      case 2:
        attend_heads<2>(a, head);
        break;
      default:
        attend_heads<1>(a, head);
        break;
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
