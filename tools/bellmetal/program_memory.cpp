// operator new of the program: notes what could not be had, and keeps a reserve for saying so.
#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <new>

#include "runtime/base/out_of_memory.h"
#include "tools/bellmetal/process_setup.h"

namespace {

/// Enough to unwind, make a message and print it; large enough to be a mapping of its own, which
/// goes back to the system.
constexpr size_t kReserve = size_t{512} << 10;

std::atomic<void*>& reserve() {
  static constinit std::atomic<void*> memory{nullptr};
  return memory;
}

/// Before the constructors of static objects: they allocate.
__attribute__((constructor(101))) void prepare() {
  bm::cli::set_up_process();
  reserve() = std::malloc(kReserve);
}

[[noreturn]] void refuse(size_t bytes) {
  bm::note_failed_allocation(bytes);
  std::free(reserve().exchange(nullptr));
  // Of code that cannot be unwound: it ends the process.
  if (const std::new_handler handler = std::get_new_handler()) handler();
  throw std::bad_alloc();
}

size_t at_least_one(size_t bytes) { return bytes == 0 ? 1 : bytes; }

}  // namespace

void* operator new(size_t bytes) {
  if (void* const memory = std::malloc(at_least_one(bytes))) [[likely]]
    return memory;
  refuse(bytes);
}
void* operator new(size_t bytes, std::align_val_t alignment) {
  void* memory = nullptr;
  // posix_memalign() refuses alignments below that of a pointer; LLVM asks for 1.
  const size_t least = std::max(static_cast<size_t>(alignment), sizeof(void*));
  if (::posix_memalign(&memory, least, at_least_one(bytes)) == 0) return memory;
  refuse(bytes);
}
void* operator new[](size_t bytes) { return operator new(bytes); }
void* operator new[](size_t bytes, std::align_val_t alignment) {
  return operator new(bytes, alignment);
}
// All of them, also those that would call these by default: a sanitizer has its own.
void* operator new(size_t bytes, const std::nothrow_t&) noexcept {
  return std::malloc(at_least_one(bytes));
}
void* operator new[](size_t bytes, const std::nothrow_t&) noexcept {
  return std::malloc(at_least_one(bytes));
}
void* operator new(size_t bytes, std::align_val_t alignment, const std::nothrow_t&) noexcept {
  void* memory = nullptr;
  const size_t least = std::max(static_cast<size_t>(alignment), sizeof(void*));
  return ::posix_memalign(&memory, least, at_least_one(bytes)) == 0 ? memory : nullptr;
}
void* operator new[](size_t bytes, std::align_val_t alignment, const std::nothrow_t& t) noexcept {
  return operator new(bytes, alignment, t);
}
void operator delete(void* memory, std::align_val_t, const std::nothrow_t&) noexcept {
  std::free(memory);
}
void operator delete[](void* memory, std::align_val_t, const std::nothrow_t&) noexcept {
  std::free(memory);
}
void operator delete(void* memory, const std::nothrow_t&) noexcept { std::free(memory); }
void operator delete[](void* memory, const std::nothrow_t&) noexcept { std::free(memory); }
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, size_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, size_t, std::align_val_t) noexcept { std::free(memory); }
void operator delete[](void* memory, size_t, std::align_val_t) noexcept { std::free(memory); }
