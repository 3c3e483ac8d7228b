#include "runtime/memory.hpp"

#include <sys/mman.h>

#include <new>
#include <utility>

namespace sonoran {

namespace {
constexpr size_t kHugePage = size_t{2} << 20;
}

Arena::Arena(size_t bytes) : size_(bytes) {
  if (bytes == 0) return;
  mapped_ = bytes + kHugePage;
  void* p =
      mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED) throw std::bad_alloc();
  mapping_ = static_cast<uint8_t*>(p);
  const auto address = reinterpret_cast<uintptr_t>(p);
  data_ = mapping_ + ((address + kHugePage - 1) / kHugePage * kHugePage - address);
#if defined(MADV_HUGEPAGE)
  // Small pages cost a page-table walk every 4 KiB of streamed weights; a refusal only costs speed.
  madvise(data_, bytes, MADV_HUGEPAGE);
#endif
}

Arena::~Arena() {
  if (mapping_ != nullptr) munmap(mapping_, mapped_);
}

Arena::Arena(Arena&& other) noexcept { *this = std::move(other); }

Arena& Arena::operator=(Arena&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(mapping_, other.mapping_);
  std::swap(size_, other.size_);
  std::swap(mapped_, other.mapped_);
  return *this;
}

}  // namespace sonoran
