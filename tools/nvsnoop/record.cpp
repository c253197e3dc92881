#include "tools/nvsnoop/record.h"

#include <fcntl.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace nvsnoop {
namespace {

// State of a preloaded library cannot live anywhere else.
// NOLINTBEGIN(cppcoreguidelines-avoid-non-const-global-variables)
constexpr size_t kBufferBytes = 512 * 1024, kBuffers = 8;
char buffers[kBuffers][kBufferBytes];
std::atomic<bool> is_taken[kBuffers];
std::atomic<uint64_t> sequence{0};
int log_fd = -1;
// NOLINTEND(cppcoreguidelines-avoid-non-const-global-variables)

/// A free line buffer, or nullptr: that line is then lost, and its number shows it.
char* take_buffer() {
  for (size_t i = 0; i < kBuffers; ++i)
    if (!is_taken[i].exchange(true)) return buffers[i];
  return nullptr;
}

uint64_t now_ns() {
  timespec t{};
  clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<uint64_t>(t.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(t.tv_nsec);
}

}  // namespace

void open_log() {
  const char* pattern = std::getenv("NVSNOOP_OUT");
  if (pattern == nullptr) pattern = "nvsnoop.%p.jsonl";
  char path[4096];
  size_t used = 0;
  for (const char* p = pattern; *p != 0 && used + 32 < sizeof path; ++p) {
    if (p[0] == '%' && p[1] == 'p') {
      used += static_cast<size_t>(std::snprintf(path + used, 16, "%d", getpid()));
      ++p;
    } else {
      path[used++] = *p;
    }
  }
  path[used] = 0;
  // Directly: open() is one of the functions this library stands in for.
  log_fd = static_cast<int>(
      syscall(SYS_openat, AT_FDCWD, path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
}

Line::Line(const char* call) : buffer_(log_fd >= 0 ? take_buffer() : nullptr) {
  const uint64_t n = sequence.fetch_add(1);
  if (buffer_ == nullptr) return;
  put("{\"n\":");
  char digits[24];
  std::snprintf(digits, sizeof digits, "%llu", static_cast<unsigned long long>(n));
  put(digits);
  number("t", now_ns());
  number("tid", static_cast<uint64_t>(syscall(SYS_gettid)));
  text("call", call);
}

Line::~Line() {
  if (buffer_ == nullptr) return;
  put("}\n");
  size_t done = 0;
  while (done < used_) {
    const auto wrote = syscall(SYS_write, log_fd, buffer_ + done, used_ - done);
    if (wrote <= 0) break;
    done += static_cast<size_t>(wrote);
  }
  is_taken[static_cast<size_t>(buffer_ - buffers[0]) / kBufferBytes] = false;
}

void Line::put(char c) {
  if (used_ < kBufferBytes) buffer_[used_++] = c;
}
void Line::put(const char* s) {
  while (*s != 0) put(*s++);
}
void Line::key(const char* name) {
  put(",\"");
  put(name);
  put("\":");
}

Line& Line::number(const char* name, uint64_t value) {
  if (buffer_ == nullptr) return *this;
  char digits[24];
  std::snprintf(digits, sizeof digits, "%llu", static_cast<unsigned long long>(value));
  key(name);
  put(digits);
  return *this;
}

Line& Line::hex(const char* name, uint64_t value) {
  char digits[24];
  std::snprintf(digits, sizeof digits, "0x%llx", static_cast<unsigned long long>(value));
  return text(name, digits);
}

Line& Line::text(const char* name, const char* value) {
  if (buffer_ == nullptr) return *this;
  key(name);
  put('"');
  for (; *value != 0 && used_ + 64 < kBufferBytes; ++value) {
    const auto c = static_cast<unsigned char>(*value);
    if (c == '"' || c == '\\') put('\\');
    put(c < 0x20 || c >= 0x7f ? '?' : static_cast<char>(c));
  }
  put('"');
  return *this;
}

Line& Line::bytes(const char* name, const void* data, size_t count) {
  if (buffer_ == nullptr) return *this;
  key(name);
  put('"');
  const auto* at = static_cast<const unsigned char*>(data);
  for (size_t i = 0; i < count && used_ + 64 < kBufferBytes; ++i) {
    constexpr char kDigits[] = "0123456789abcdef";
    put(kDigits[at[i] >> 4]);
    put(kDigits[at[i] & 15]);
  }
  put('"');
  return *this;
}

size_t read_memory(void* target, const void* source, size_t count) {
  if (source == nullptr || count == 0) return 0;
  iovec to{target, count}, from{const_cast<void*>(source), count};
  // Through the kernel, which refuses a bad pointer instead of dying of it. Page by page would be
  // needed for a range that ends in an unmapped page: then what comes before it is enough.
  const auto got = syscall(SYS_process_vm_readv, getpid(), &to, 1L, &from, 1L, 0L);
  if (got > 0) return static_cast<size_t>(got);
  const size_t in_page = 4096 - reinterpret_cast<uintptr_t>(source) % 4096;
  if (in_page >= count) return 0;
  to.iov_len = from.iov_len = in_page;
  const auto part = syscall(SYS_process_vm_readv, getpid(), &to, 1L, &from, 1L, 0L);
  return part > 0 ? static_cast<size_t>(part) : 0;
}

}  // namespace nvsnoop
