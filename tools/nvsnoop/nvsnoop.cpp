// libnvsnoop.so: records what a program asks of the nvidia kernel driver.
//   LD_PRELOAD=libnvsnoop.so NVSNOOP_OUT=trace.jsonl PROGRAM…     then tools/nvdecode trace.jsonl
// Each ioctl on a /dev/nvidia* descriptor becomes one line with the structure before and after, and
// the parameters it points to; each store to a doorbell becomes the push buffers it submits
// (trap.h).

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <sys/mman.h>
#include <sys/types.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "tools/nvsnoop/channels.h"
#include "tools/nvsnoop/record.h"
#include "tools/nvsnoop/trap.h"

namespace nvsnoop {
namespace {

// Source: open-gpu-kernel-modules 595.45.04, nv_escape.h, nv-ioctl-numbers.h, nvos.h (NVOS21,
// NVOS54, NVOS64), nv-unix-nvos-params-wrappers.h (NVOS33 with descriptor), uvm_ioctl.h.
constexpr unsigned kRmControl = 0x2a, kRmAlloc = 0x2b, kRmMapMemory = 0x4e, kXfer = 0xd3;
constexpr size_t kMaxStructBytes = 16 * 1024, kMaxParameterBytes = 64 * 1024;
constexpr size_t kUvmBytes = 256, kUvmMapExternal = 0x21, kUvmMapExternalBytes = 9264;
constexpr size_t kUnsizedAllocationBytes = 512;

enum class Node : unsigned char { kNone, kControl, kGpu, kUvm };
constexpr size_t kMaxFds = 4096;

// NOLINTBEGIN(cppcoreguidelines-avoid-non-const-global-variables)
Node nodes[kMaxFds];
// Per thread: too large for a stack a program may have chosen, too small to matter.
thread_local unsigned char before[kMaxStructBytes], after[kMaxStructBytes];
thread_local unsigned char inner_before[kMaxParameterBytes], inner_after[kMaxParameterBytes];
// NOLINTEND(cppcoreguidelines-avoid-non-const-global-variables)

const char* name_of(Node node) {
  switch (node) {
    case Node::kControl: return "ctl";
    case Node::kGpu: return "gpu";
    case Node::kUvm: return "uvm";
    case Node::kNone: break;
  }
  return "";
}

Node node_of(const char* path) {
  if (path == nullptr || std::strncmp(path, "/dev/nvidia", 11) != 0) return Node::kNone;
  if (std::strcmp(path + 11, "ctl") == 0) return Node::kControl;
  if (std::strcmp(path + 11, "-uvm") == 0) return Node::kUvm;
  return path[11] >= '0' && path[11] <= '9' ? Node::kGpu : Node::kNone;
}

Node node_of(int fd) {
  return fd >= 0 && static_cast<size_t>(fd) < kMaxFds ? nodes[fd] : Node::kNone;
}
void set_node(int fd, Node node) {
  if (fd >= 0 && static_cast<size_t>(fd) < kMaxFds) nodes[fd] = node;
}

template <class Function>
Function* next(const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}

template <class T>
T field(const unsigned char* from, size_t offset) {
  T value;
  std::memcpy(&value, from + offset, sizeof value);
  return value;
}

/// Where the parameters of a structure lie.
struct Inner {
  const void* address = nullptr;
  size_t bytes = 0;
};

Inner inner_of(unsigned number, const unsigned char* data, size_t bytes) {
  if (number == kRmControl && bytes >= 32)
    return {field<const void*>(data, 16), field<uint32_t>(data, 24)};
  if (number == kRmAlloc && bytes >= 32) {
    const size_t size = field<uint32_t>(data, bytes >= 48 ? 32 : 24);
    return {field<const void*>(data, 16), size != 0 ? size : kUnsizedAllocationBytes};
  }
  if (number == kXfer && bytes >= 16)
    return {field<const void*>(data, 8), field<uint32_t>(data, 4)};
  return {};
}

/// Learns where rings and doorbells are.
void follow(unsigned number, const unsigned char* data, size_t bytes, size_t inner_bytes) {
  if (number == kRmAlloc && bytes >= 32) {
    const uint32_t status = field<uint32_t>(data, bytes >= 48 ? 40 : 28);
    if (status == 0)
      object_allocated(field<uint32_t>(data, 8), field<uint32_t>(data, 12), inner_before,
                       inner_bytes);
  }
  if (number == kRmMapMemory && bytes >= 52 && field<uint32_t>(data, 40) == 0)
    mapping_prepared(field<int>(data, 48), field<uint32_t>(data, 8));
}

int record_ioctl(int fd, unsigned long request, void* argument, Node node) {
  static auto* real = next<int(int, unsigned long, ...)>("ioctl");
  const unsigned number = node == Node::kUvm ? static_cast<unsigned>(request) : request & 0xff;
  size_t bytes = (request >> 16) & 0x3fff;
  if (node == Node::kUvm) bytes = number == kUvmMapExternal ? kUvmMapExternalBytes : kUvmBytes;
  bytes = read_memory(before, argument, std::min(bytes, kMaxStructBytes));
  const Inner inner = inner_of(number, before, node == Node::kUvm ? 0 : bytes);
  const size_t inner_bytes =
      read_memory(inner_before, inner.address, std::min(inner.bytes, kMaxParameterBytes));

  const int result = real(fd, request, argument);
  const int error = errno;
  {
    Line line("ioctl");
    line.number("fd", static_cast<uint64_t>(fd)).text("node", name_of(node));
    line.hex("request", request).hex("nr", number);
    line.bytes("in", before, bytes);
    line.bytes("out", after, read_memory(after, argument, bytes));
    if (inner_bytes != 0) {
      line.bytes("in2", inner_before, inner_bytes);
      line.bytes("out2", inner_after, read_memory(inner_after, inner.address, inner_bytes));
    }
    line.number("errno", result < 0 ? static_cast<uint64_t>(error) : 0);
  }
  if (result >= 0 && node != Node::kUvm) follow(number, after, bytes, inner_bytes);
  errno = error;
  return result;
}

int record_open(const char* path, int fd) {
  const int error = errno;
  const Node node = node_of(path);
  if (node != Node::kNone) {
    Line("open")
        .text("path", path)
        .number("fd", fd < 0 ? 0 : static_cast<uint64_t>(fd))
        .number("errno", fd < 0 ? static_cast<uint64_t>(error) : 0);
    set_node(fd, node);
  }
  errno = error;
  return fd;
}

void* record_mmap(void* wanted, size_t bytes, int protection, int flags, int fd, void* got) {
  const int error = errno;
  const Node node = node_of(fd);
  if (node != Node::kNone) {
    const bool is_made = got != MAP_FAILED;
    Line("mmap")
        .number("fd", static_cast<uint64_t>(fd))
        .text("node", name_of(node))
        .hex("wanted", reinterpret_cast<uintptr_t>(wanted))
        .hex("address", is_made ? reinterpret_cast<uintptr_t>(got) : 0)
        .number("bytes", bytes)
        .hex("protection", static_cast<unsigned>(protection))
        .hex("flags", static_cast<unsigned>(flags))
        .number("errno", is_made ? 0 : static_cast<uint64_t>(error));
    if (is_made && mapping_made(fd, got, bytes)) trap_doorbell(got);
  }
  errno = error;
  return got;
}

void start() __attribute__((constructor));
void start() {
  open_log();
  char version[256] = "";
  const int fd = next<int(const char*, int, ...)>("open")("/proc/driver/nvidia/version", O_RDONLY);
  if (fd >= 0) {
    const auto got = read(fd, version, sizeof version - 1);
    version[got > 0 ? got : 0] = 0;
    close(fd);
  }
  for (char& c : version)
    if (c == '\n') c = 0;
  Line("start").number("pid", static_cast<uint64_t>(getpid())).text("driver", version);
}

}  // namespace
}  // namespace nvsnoop

// --- the functions stood in for

#define NVSNOOP_EXPORT extern "C" __attribute__((visibility("default")))

namespace {

/// `mode` of open(2), which is only there when a file may be made.
mode_t mode_of(int flags, va_list list) {
  return (flags & (O_CREAT | O_TMPFILE)) != 0 ? static_cast<mode_t>(va_arg(list, unsigned)) : 0;
}

}  // namespace

#define NVSNOOP_OPEN(name)                                                \
  NVSNOOP_EXPORT int name(const char* path, int flags, ...) {             \
    static auto* real = nvsnoop::next<int(const char*, int, ...)>(#name); \
    va_list list;                                                         \
    va_start(list, flags);                                                \
    const mode_t mode = mode_of(flags, list);                             \
    va_end(list);                                                         \
    return nvsnoop::record_open(path, real(path, flags, mode));           \
  }
NVSNOOP_OPEN(open)
NVSNOOP_OPEN(open64)
// What FORTIFY makes of calls without a mode (glibc, bits/fcntl2.h).
NVSNOOP_EXPORT int __open_2(const char* path, int flags) { return open(path, flags); }
NVSNOOP_EXPORT int __open64_2(const char* path, int flags) { return open64(path, flags); }

#define NVSNOOP_OPENAT(name)                                                   \
  NVSNOOP_EXPORT int name(int folder, const char* path, int flags, ...) {      \
    static auto* real = nvsnoop::next<int(int, const char*, int, ...)>(#name); \
    va_list list;                                                              \
    va_start(list, flags);                                                     \
    const mode_t mode = mode_of(flags, list);                                  \
    va_end(list);                                                              \
    return nvsnoop::record_open(path, real(folder, path, flags, mode));        \
  }
NVSNOOP_OPENAT(openat)
NVSNOOP_OPENAT(openat64)

NVSNOOP_EXPORT int close(int fd) {
  static auto* real = nvsnoop::next<int(int)>("close");
  if (nvsnoop::node_of(fd) != nvsnoop::Node::kNone) {
    nvsnoop::Line("close").number("fd", static_cast<uint64_t>(fd));
    nvsnoop::set_node(fd, nvsnoop::Node::kNone);
  }
  return real(fd);
}

NVSNOOP_EXPORT int dup(int fd) {
  static auto* real = nvsnoop::next<int(int)>("dup");
  const int copy = real(fd);
  nvsnoop::set_node(copy, nvsnoop::node_of(fd));
  return copy;
}

NVSNOOP_EXPORT int ioctl(int fd, unsigned long request, ...) {
  static auto* real = nvsnoop::next<int(int, unsigned long, ...)>("ioctl");
  va_list list;
  va_start(list, request);
  void* argument = va_arg(list, void*);
  va_end(list);
  const nvsnoop::Node node = nvsnoop::node_of(fd);
  if (node == nvsnoop::Node::kNone) return real(fd, request, argument);
  return nvsnoop::record_ioctl(fd, request, argument, node);
}

#define NVSNOOP_MMAP(name)                                                                  \
  NVSNOOP_EXPORT void* name(void* address, size_t bytes, int protection, int flags, int fd, \
                            off_t offset) {                                                 \
    static auto* real = nvsnoop::next<void*(void*, size_t, int, int, int, off_t)>(#name);   \
    return nvsnoop::record_mmap(address, bytes, protection, flags, fd,                      \
                                real(address, bytes, protection, flags, fd, offset));       \
  }
NVSNOOP_MMAP(mmap)
NVSNOOP_MMAP(mmap64)

NVSNOOP_EXPORT int munmap(void* address, size_t bytes) {
  static auto* real = nvsnoop::next<int(void*, size_t)>("munmap");
  nvsnoop::mapping_gone(address, bytes);
  nvsnoop::forget_doorbell(address, bytes);
  return real(address, bytes);
}
