#include "runtime/base/out_of_memory.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <new>
#include <stdexcept>
#include <system_error>

#include "runtime/base/scoped_fd.h"

namespace bm {
namespace {

// Of the thread whose allocation failed; the message is made after unwinding, far from the size.
thread_local uint64_t failed_bytes = 0;

/// Resident bytes of the process; 0 where nobody says.
uint64_t resident_bytes() noexcept {
  const ScopedFd fd(::open("/proc/self/statm", O_RDONLY | O_CLOEXEC));
  std::array<char, 128> text{};
  if (fd.get() < 0 || ::read(fd.get(), text.data(), text.size() - 1) <= 0) return 0;
  unsigned long long total = 0, resident = 0;
  if (std::sscanf(text.data(), "%llu %llu", &total, &resident) != 2) return 0;
  return resident * static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
}

using Text = std::array<char, 512>;

size_t write_text(Text& text, const char* before, std::string_view what) noexcept {
  const auto length = static_cast<int>(std::min<size_t>(what.size(), 200));
  int n = 0;
  if (const uint64_t bytes = failed_allocation_bytes(); bytes != 0)
    n = std::snprintf(text.data(), text.size(), "%sout of memory: %.*s, %llu bytes", before, length,
                      what.data(), static_cast<unsigned long long>(bytes));
  else
    n = std::snprintf(text.data(), text.size(),
                      "%sout of memory: %.*s, the process holds %llu bytes", before, length,
                      what.data(), static_cast<unsigned long long>(resident_bytes()));
  return std::min(static_cast<size_t>(std::max(n, 0)), text.size() - 2);
}

/// The innermost EndsOutOfMemory of this thread. Initial-exec: a first use must not allocate.
[[gnu::tls_model("initial-exec")]] thread_local const char* ends_inside = nullptr;
std::new_handler previous_new_handler = nullptr;

void on_failed_new() {
  if (ends_inside != nullptr) end_out_of_memory(ends_inside);
  if (previous_new_handler == nullptr) throw std::bad_alloc();
  previous_new_handler();
}

}  // namespace

EndsOutOfMemory::EndsOutOfMemory(const char* what) noexcept : outer_(ends_inside) {
  static const bool is_installed = [] {
    previous_new_handler = std::set_new_handler(on_failed_new);
    return true;
  }();
  (void)is_installed;
  ends_inside = what;
}

EndsOutOfMemory::~EndsOutOfMemory() { ends_inside = outer_; }

void note_failed_allocation(uint64_t bytes) noexcept { failed_bytes = bytes; }
uint64_t failed_allocation_bytes() noexcept { return failed_bytes; }

Error out_of_memory(std::string_view what) noexcept {
  Text text;
  const size_t length = write_text(text, "", what);
  try {
    return {Code::kOutOfMemory, std::string(text.data(), length)};
  } catch (const std::bad_alloc&) {
    return {Code::kOutOfMemory, "out of memory"};  // short enough to need none
  }
}

Error error_of_exception(std::string_view what) {
  try {
    throw;
  } catch (const std::bad_alloc&) {
    return out_of_memory(what);
  } catch (const std::length_error& e) {
    return {Code::kOutOfMemory,
            fmt::format("out of memory: {}: a size beyond every memory ({})", what, e.what())};
  } catch (const std::system_error& e) {
    return {code_from_errno(e.code().value()), fmt::format("{}: {}", what, e.what())};
  }
}

void end_out_of_memory(std::string_view what) noexcept {
  Text text;
  size_t length = write_text(text, "bellmetal: ", what);
  text[length++] = '\n';
  for (size_t done = 0; done < length;) {
    const ssize_t n = ::write(STDERR_FILENO, text.data() + done, length - done);
    if (n <= 0) break;
    done += static_cast<size_t>(n);
  }
  ::_exit(EXIT_FAILURE);
}

}  // namespace bm
