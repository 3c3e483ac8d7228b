// Large zeroed memory, on huge pages where the system grants them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <new>
#include <vector>

namespace sonoran {

// Memory that begins at a cache line; from the size of a huge page on it asks for huge pages.
void* allocate_lines(size_t bytes);
void free_lines(void* p, size_t bytes);

// For vectors that kernels read: a load of a whole cache line must not touch two.
template <class T>
struct LineAllocator {
  using value_type = T;
  LineAllocator() = default;
  template <class U>
  LineAllocator(const LineAllocator<U>&) {}
  T* allocate(size_t n) { return static_cast<T*>(allocate_lines(n * sizeof(T))); }
  void deallocate(T* p, size_t n) { free_lines(p, n * sizeof(T)); }
  bool operator==(const LineAllocator&) const { return true; }
};

template <class T>
using LineVector = std::vector<T, LineAllocator<T>>;

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
