#include "tests/unit/graph/alloc_count.h"

#include <cstddef>
#include <cstdlib>
#include <new>

// Sanitizers bring operators of their own, which may be replaced only with g++.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define BM_COUNT_ALLOCATIONS 0
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer) || \
    __has_feature(memory_sanitizer)
#define BM_COUNT_ALLOCATIONS 0
#endif
#endif
#ifndef BM_COUNT_ALLOCATIONS
#define BM_COUNT_ALLOCATIONS 1
#endif

#if BM_COUNT_ALLOCATIONS
namespace {
thread_local uint64_t count = 0;

void* counted(std::size_t size, std::size_t align) {
  ++count;
  const std::size_t rounded = (size + align - 1) / align * align;
  void* memory = align > __STDCPP_DEFAULT_NEW_ALIGNMENT__ ? std::aligned_alloc(align, rounded)
                                                          : std::malloc(size ? size : 1);
  if (memory == nullptr) std::abort();
  return memory;
}
}  // namespace

void* operator new(std::size_t size) { return counted(size, 1); }
void* operator new[](std::size_t size) { return counted(size, 1); }
void* operator new(std::size_t size, const std::nothrow_t&) noexcept { return counted(size, 1); }
void* operator new[](std::size_t size, const std::nothrow_t&) noexcept { return counted(size, 1); }
void* operator new(std::size_t size, std::align_val_t align) {
  return counted(size, static_cast<std::size_t>(align));
}
void* operator new[](std::size_t size, std::align_val_t align) {
  return counted(size, static_cast<std::size_t>(align));
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete(void* memory, const std::nothrow_t&) noexcept { std::free(memory); }
void operator delete[](void* memory, const std::nothrow_t&) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }
#endif

namespace bm::fake {
#if BM_COUNT_ALLOCATIONS
std::optional<uint64_t> allocations_on_this_thread() { return count; }
#else
std::optional<uint64_t> allocations_on_this_thread() { return std::nullopt; }
#endif
}  // namespace bm::fake
