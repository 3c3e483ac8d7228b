#include "model/weight_store.hpp"

#include <algorithm>

#include "core/error.hpp"
#include "weights/pack.hpp"

namespace sonoran {

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
