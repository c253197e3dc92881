#include "tests/unit/out_of_memory/failing_new.h"

#include <cstdlib>
#include <new>

#include "runtime/base/out_of_memory.h"

namespace {

thread_local uint64_t left = 0;  // allocations until the one that fails; 0: none will
thread_local bool is_over = false;
thread_local bool fails_on = false;

void* allocate(std::size_t bytes, std::size_t alignment) {
  if ((fails_on && is_over) || (left != 0 && --left == 0)) {
    is_over = true;
    bm::note_failed_allocation(bytes);
    throw std::bad_alloc();
  }
  const std::size_t size = (bytes + alignment) / alignment * alignment;
  void* const memory = std::aligned_alloc(alignment, size);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

constexpr std::size_t kUsual = alignof(std::max_align_t);

}  // namespace

namespace bm::testing {

FailingNew::FailingNew(uint64_t n, Which which) {
  is_over = false;
  fails_on = which == Which::kFromThere;
  left = n;
}
FailingNew::~FailingNew() {
  left = 0;
  fails_on = false;
}
bool FailingNew::has_failed() const { return is_over; }

}  // namespace bm::testing

void* operator new(std::size_t bytes) { return allocate(bytes, kUsual); }
void* operator new[](std::size_t bytes) { return allocate(bytes, kUsual); }
void* operator new(std::size_t bytes, std::align_val_t alignment) {
  return allocate(bytes, static_cast<std::size_t>(alignment));
}
void* operator new[](std::size_t bytes, std::align_val_t alignment) {
  return allocate(bytes, static_cast<std::size_t>(alignment));
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }
