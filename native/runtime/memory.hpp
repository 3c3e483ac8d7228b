// Large zeroed memory, on huge pages where the system grants them.
#pragma once

#include <cstddef>
#include <cstdint>

namespace sonoran {

class Arena {
 public:
  Arena() = default;
  explicit Arena(size_t bytes);
  ~Arena();
  Arena(Arena&& other) noexcept;
  Arena& operator=(Arena&& other) noexcept;
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  uint8_t* data() const { return data_; }
  size_t size() const { return size_; }

 private:
  uint8_t* data_ = nullptr;
  uint8_t* mapping_ = nullptr;
  size_t size_ = 0;
  size_t mapped_ = 0;
};

}  // namespace sonoran
