// All weights of a model: matrices in the packed layout in one arena, vectors as padded floats.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "runtime/memory.hpp"
#include "runtime/thread_pool.hpp"
#include "weights/formats.hpp"

namespace sonoran {

struct MatrixSpec {
  std::string name;
  Format format;
  int outputs;
  int inputs;
};

class WeightStore {
 public:
  // Reserves memory for all matrices at once; nothing is loaded yet.
  explicit WeightStore(const std::vector<MatrixSpec>& specs);

  // Packs rows in file order and format `from` into the matrix; `bytes` must be the exact size of the rows.
  void load_matrix(const std::string& name, Format from, const uint8_t* rows, size_t bytes, ThreadPool& pool);
  void load_vector(const std::string& name, const float* values, size_t n);

  // Reads all matrices, as `packed` showed them before, from a file at `offset`; returns what `digest` is
  // now. Throws ModelError when the file ends too early. Matrices that are loaded afterwards take the place
  // of what was read.
  uint64_t read_packed(int file, size_t offset, ThreadPool& pool);
  const uint8_t* packed() const { return arena_.data(); }
  // A checksum of the packed bytes: tells damage, not malice.
  uint64_t digest(ThreadPool& pool) const;

  // Null if there is none of that name. Throws ModelError if a matrix was reserved but never loaded.
  const Matrix* matrix(const std::string& name) const;
  // Padded with zeros to a multiple of 16; null if absent. Throws ModelError if its length is not n.
  const float* vector(const std::string& name, int n) const;

  size_t bytes() const { return arena_.size(); }

 private:
  struct Vector {
    std::vector<float> values;
    size_t length;
  };
  Arena arena_;
  std::map<std::string, Matrix> matrices_;
  std::map<std::string, bool> loaded_;
  std::map<std::string, Vector> vectors_;
};

}  // namespace sonoran
