#include "runtime/memory.hpp"

#include <sys/mman.h>

#include <new>
#include <utility>

namespace sonoran {

namespace {
constexpr size_t kHugePage = size_t{2} << 20;

std::align_val_t alignment(size_t bytes) { return std::align_val_t{bytes < kHugePage ? 64 : kHugePage}; }

// Small pages cost a page-table walk every 4 KiB of what is streamed; a refusal only costs speed.
void ask_for_huge_pages([[maybe_unused]] void* p, [[maybe_unused]] size_t bytes) {
#if defined(MADV_HUGEPAGE)
  madvise(p, bytes, MADV_HUGEPAGE);
#endif
}

}  // namespace

void* allocate_lines(size_t bytes) {
  void* p = ::operator new(bytes, alignment(bytes));
  if (bytes >= kHugePage) ask_for_huge_pages(p, bytes / kHugePage * kHugePage);
  return p;
}

void free_lines(void* p, size_t bytes) { ::operator delete(p, alignment(bytes)); }

Arena::Arena(size_t bytes) : size_(bytes) {
  if (bytes == 0) return;
  mapped_ = bytes + kHugePage;
  void* p =
      mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED) throw std::bad_alloc();
  mapping_ = static_cast<uint8_t*>(p);
  const auto address = reinterpret_cast<uintptr_t>(p);
  data_ = mapping_ + ((address + kHugePage - 1) / kHugePage * kHugePage - address);
  ask_for_huge_pages(data_, bytes);
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
