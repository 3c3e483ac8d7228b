#include "model/weight_store.hpp"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cerrno>
#include <cstring>
#include <functional>

#include "core/error.hpp"
#include "weights/pack.hpp"

namespace sonoran {

namespace {

constexpr size_t kPiece = size_t{4} << 20;

// Eight lanes, so that it keeps up with the copy; each step is a bijection of its lane, so a changed word
// shows.
uint64_t hash_piece(const uint8_t* bytes, size_t n) {
  constexpr uint64_t kOdd = 0x9e3779b97f4a7c15u;
  uint64_t lanes[8];
  for (uint64_t i = 0; i < 8; ++i) lanes[i] = (n + i) * kOdd;
  uint64_t words[8];
  for (size_t at = 0; at < n; at += sizeof words) {
    const size_t left = std::min(sizeof words, n - at);
    if (left < sizeof words) std::memset(words, 0, sizeof words);
    std::memcpy(words, bytes + at, left);
    for (int i = 0; i < 8; ++i) lanes[i] = std::rotl(lanes[i] ^ words[i], 29) * kOdd;
  }
  uint64_t all = n;
  for (const uint64_t lane : lanes) all = std::rotl(all ^ lane, 29) * kOdd;
  return all ^ (all >> 32);
}

// Hashes `n` bytes piece by piece, each after `first_touch` has seen to it, and folds the hashes in order.
uint64_t hash_pieces(const uint8_t* bytes, size_t n, ThreadPool& pool,
                     const std::function<void(size_t, size_t)>& first_touch) {
  std::vector<uint64_t> hashes((n + kPiece - 1) / kPiece);
  pool.run(static_cast<int>(hashes.size()), [&](int task, int) {
    const size_t begin = static_cast<size_t>(task) * kPiece;
    const size_t size = std::min(kPiece, n - begin);
    first_touch(begin, size);
    hashes[static_cast<size_t>(task)] = hash_piece(bytes + begin, size);
  });
  return hash_piece(reinterpret_cast<const uint8_t*>(hashes.data()), hashes.size() * sizeof(uint64_t));
}

}  // namespace

WeightStore::WeightStore(const std::vector<MatrixSpec>& specs) {
  size_t total = 0;
  std::vector<size_t> offsets;
  for (const auto& spec : specs) {
    offsets.push_back(total);
    const Matrix m = plan_matrix(spec.format, spec.outputs, spec.inputs);
    matrices_[spec.name] = m;
    loaded_[spec.name] = false;
    total += m.bytes();
  }
  arena_ = Arena(total);
  for (size_t i = 0; i < specs.size(); ++i) matrices_[specs[i].name].data = arena_.data() + offsets[i];
}

void WeightStore::load_matrix(const std::string& name, Format from, const uint8_t* rows, size_t bytes,
                              ThreadPool& pool) {
  const auto it = matrices_.find(name);
  if (it == matrices_.end()) throw ModelError("no matrix " + name + " was reserved");
  const Matrix& m = it->second;
  const FormatInfo& info = format_info(from);
  const size_t expected = static_cast<size_t>(m.outputs) * static_cast<size_t>(m.inputs / info.file_group) *
                          static_cast<size_t>(info.file_bytes);
  if (m.inputs % info.file_group != 0 || bytes != expected) {
    throw ModelError(name + ": expected " + std::to_string(expected) + " bytes of " + info.name + ", got " +
                     std::to_string(bytes));
  }
  constexpr int kBlocksPerTask = 4;
  const int tasks = (m.blocks() + kBlocksPerTask - 1) / kBlocksPerTask;
  pool.run(tasks, [&](int task, int) {
    const int first = task * kBlocksPerTask;
    pack_blocks(m, from, rows, first, std::min(first + kBlocksPerTask, m.blocks()));
  });
  loaded_[name] = true;
}

uint64_t WeightStore::read_packed(int file, size_t offset, ThreadPool& pool) {
  std::atomic<bool> failed{false};
  const uint64_t hash = hash_pieces(arena_.data(), arena_.size(), pool, [&](size_t begin, size_t size) {
    for (size_t done = 0; done < size;) {
      const ssize_t got =
          pread(file, arena_.data() + begin + done, size - done, static_cast<off_t>(offset + begin + done));
      if (got <= 0) {
        if (got < 0 && errno == EINTR) continue;
        failed = true;
        return;
      }
      done += static_cast<size_t>(got);
    }
  });
  if (failed) throw ModelError("packed weights cannot be read: the file ends too early");
  for (auto& [name, loaded] : loaded_) loaded = true;
  return hash;
}

uint64_t WeightStore::digest(ThreadPool& pool) const {
  return hash_pieces(arena_.data(), arena_.size(), pool, [](size_t, size_t) {});
}

void WeightStore::load_vector(const std::string& name, const float* values, size_t n) {
  Vector& v = vectors_[name];
  v.length = n;
  v.values.assign((n + 15) / 16 * 16, 0.0f);
  std::copy(values, values + n, v.values.begin());
}

const Matrix* WeightStore::matrix(const std::string& name) const {
  const auto it = matrices_.find(name);
  if (it == matrices_.end()) return nullptr;
  if (!loaded_.at(name)) throw ModelError("matrix " + name + " was not loaded");
  return &it->second;
}

const float* WeightStore::vector(const std::string& name, int n) const {
  const auto it = vectors_.find(name);
  if (it == vectors_.end()) return nullptr;
  if (it->second.length != static_cast<size_t>(n)) {
    throw ModelError(name + " has " + std::to_string(it->second.length) + " values, expected " +
                     std::to_string(n));
  }
  return it->second.values.data();
}

}  // namespace sonoran
