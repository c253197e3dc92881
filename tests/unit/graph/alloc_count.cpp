#include "alloc_count.h"

#include <cstddef>
#include <cstdlib>
#include <new>

namespace {
thread_local uint64_t count = 0;

void* counted(std::size_t size, std::size_t align) {
  ++count;
  const std::size_t rounded = (size + align - 1) / align * align;
  void* memory = align > __STDCPP_DEFAULT_NEW_ALIGNMENT__ ? std::aligned_alloc(align, rounded) : std::malloc(size ? size : 1);
  if (memory == nullptr) std::abort();
  return memory;
}
}  // namespace

namespace bm::fake {
uint64_t allocations_on_this_thread() { return count; }
}  // namespace bm::fake

void* operator new(std::size_t size) { return counted(size, 1); }
void* operator new[](std::size_t size) { return counted(size, 1); }
void* operator new(std::size_t size, std::align_val_t align) { return counted(size, static_cast<std::size_t>(align)); }
void* operator new[](std::size_t size, std::align_val_t align) { return counted(size, static_cast<std::size_t>(align)); }
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }
