// Preloaded library that makes the n-th call of a function of the C library fail, in one program.
//
//   SWEEP_PROGRAM  file name of the program under test; its children and parents are left alone
//   SWEEP_REPORT   file of one Report: calls counted, where the failure was planted, where it died
//   SWEEP_CALL     a name of kCalls; without it calls are only counted
//   SWEEP_AT       the call that fails, counted from 1
//   SWEEP_ERRNO    what it says
//   SWEEP_ON       1: every later call of the function fails too
//
// Nothing here allocates after start-up: `malloc` is one of the functions.
#include <assert.h>
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <execinfo.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>

extern "C" {
void* __libc_malloc(size_t);
void* __libc_calloc(size_t, size_t);
void* __libc_realloc(void*, size_t);
void* __libc_memalign(size_t, size_t);
}

namespace {

// The formatter never settles on where the backslashes go.
// clang-format off
#define SWEEP_CALLS(X)                                                                             \
  X(malloc)                                                                                        \
  X(open)                                                                                          \
  X(fopen) X(opendir) X(read) X(write) X(pread) X(pwrite) X(lseek) X(close) X(mmap_memory)         \
      X(mmap_file) X(munmap) X(mprotect) X(madvise) X(ioctl) X(poll) X(fstat) X(stat) X(access)    \
          X(rename) X(unlink) X(mkdir) X(rmdir) X(mkdtemp) X(ftruncate) X(fsync) X(fcntl) X(flock) \
              X(dup) X(pipe) X(socket) X(readlink) X(realpath) X(getcwd) X(pthread_create) X(fork) \
                  X(posix_spawn) X(waitpid) X(dlopen) X(sched_getaffinity) X(memfd_create)         \
                      X(eventfd) X(syscall)
// clang-format on

enum Call : int {
#define X(name) k_##name,
  SWEEP_CALLS(X)
#undef X
      kCalls
};
constexpr const char* kNames[] = {
#define X(name) #name,
    SWEEP_CALLS(X)
#undef X
};

/// The file SWEEP_REPORT; read by sweep.py, which knows the layout.
struct Report {
  uint64_t is_active;     ///< the program under test found itself
  uint64_t planted;       ///< calls that were made to fail
  uint64_t counts[64];    ///< calls by kCalls
  char planted_at[8192];  ///< one frame a line: library symbol+offset
  char died_at[8192];     ///< the same for a deadly signal
  char exited_at[8192];   ///< the same for an end without unwinding, while which a thread may die
};
static_assert(kCalls <= 64);

Report* report = nullptr;
int wanted = -1, wanted_errno = 0;
uint64_t wanted_at = 0;
bool wants_on = false;
thread_local int inside = 0;

struct Quiet {
  Quiet() { ++inside; }
  ~Quiet() { --inside; }
};

size_t append(char* to, size_t at, size_t room, const char* text) {
  while (*text != 0 && at + 1 < room) to[at++] = *text++;
  to[at] = 0;
  return at;
}

size_t append_hex(char* to, size_t at, size_t room, uint64_t value) {
  char digits[20];
  int n = 0;
  do {
    digits[n++] = "0123456789abcdef"[value & 15];
    value >>= 4;
  } while (value != 0);
  char text[24];
  for (int i = 0; i < n; ++i) text[i] = digits[n - 1 - i];
  text[n] = 0;
  return append(to, at, room, text);
}

void write_stack(char* to, size_t room) {
  void* frames[64];
  const int n = backtrace(frames, 64);
  size_t at = 0;
  for (int i = 0; i < n; ++i) {
    Dl_info info{};
    const bool known = dladdr(frames[i], &info) != 0;
    const char* file = known && info.dli_fname != nullptr ? info.dli_fname : "?";
    if (const char* slash = strrchr(file, '/')) file = slash + 1;
    at = append(to, at, room, file);
    at = append(to, at, room, " ");
    if (known && info.dli_sname != nullptr) at = append(to, at, room, info.dli_sname);
    at = append(to, at, room, "+");
    const auto base = reinterpret_cast<uint64_t>(known ? info.dli_fbase : nullptr);
    at = append_hex(to, at, room, reinterpret_cast<uint64_t>(frames[i]) - base);
    at = append(to, at, room, "\n");
  }
}

/// Counts the call; true when it must fail, with errno set.
bool fails(Call call) {
  if (report == nullptr || inside != 0) return false;
  const uint64_t n = __atomic_add_fetch(&report->counts[call], 1, __ATOMIC_RELAXED);
  if (call != wanted || (wants_on ? n < wanted_at : n != wanted_at)) return false;
  const Quiet quiet;
  if (__atomic_add_fetch(&report->planted, 1, __ATOMIC_RELAXED) == 1)
    write_stack(report->planted_at, sizeof report->planted_at);
  errno = wanted_errno;
  return true;
}

void on_death(int number) {
  static bool is_dying = false;
  static thread_local bool is_first = false;
  // Of several threads that die at once the first one is told, whole.
  if (!is_first && __atomic_exchange_n(&is_dying, true, __ATOMIC_ACQ_REL))
    for (;;) pause();
  const Quiet quiet;
  if (!is_first && report != nullptr && report->died_at[0] == 0) {
    is_first = true;
    write_stack(report->died_at, sizeof report->died_at);
  }
  signal(number, SIG_DFL);
  raise(number);
}

template <class F>
F next(F /*like*/, const char* name) {
  const Quiet quiet;
  return reinterpret_cast<F>(dlsym(RTLD_NEXT, name));
}
#define NEXT(name) static const auto real = next(&::name, #name)

__attribute__((constructor)) void start() {
  const Quiet quiet;
  const char* const program = getenv("SWEEP_PROGRAM");
  const char* const file = getenv("SWEEP_REPORT");
  if (program == nullptr || file == nullptr) return;
  char self[4096];
  const ssize_t length = syscall(SYS_readlink, "/proc/self/exe", self, sizeof self - 1);
  if (length <= 0) return;
  self[length] = 0;
  const char* const slash = strrchr(self, '/');
  if (strcmp(slash != nullptr ? slash + 1 : self, program) != 0) return;
  const int fd = static_cast<int>(syscall(SYS_openat, AT_FDCWD, file, O_RDWR | O_CLOEXEC));
  if (fd < 0) return;
  void* const at = reinterpret_cast<void*>(
      // The seventh argument lies on the stack: all 64 bits of it are the offset.
      syscall(SYS_mmap, nullptr, sizeof(Report), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0L));
  syscall(SYS_close, fd);
  if (at == MAP_FAILED) return;
  auto* const found = static_cast<Report*>(at);
  if (const char* call = getenv("SWEEP_CALL"))
    for (int i = 0; i < kCalls; ++i)
      if (strcmp(kNames[i], call) == 0) wanted = i;
  if (const char* n = getenv("SWEEP_AT")) wanted_at = strtoull(n, nullptr, 10);
  if (const char* n = getenv("SWEEP_ERRNO")) wanted_errno = atoi(n);
  if (const char* n = getenv("SWEEP_ON")) wants_on = *n == '1';
  void* warm[4];
  backtrace(warm, 4);  // loads the unwinder now
  static char stack[1 << 16];
  const stack_t alternate{.ss_sp = stack, .ss_flags = 0, .ss_size = sizeof stack};
  sigaltstack(&alternate, nullptr);
  struct sigaction action{};
  action.sa_handler = on_death;
  action.sa_flags = SA_ONSTACK | SA_NODEFER;
  for (const int number : {SIGABRT, SIGSEGV, SIGBUS, SIGILL, SIGFPE})
    sigaction(number, &action, nullptr);
  found->is_active = 1;
  report = found;
}

/// In the child of fork() the counters belong to the parent.
__attribute__((constructor)) void watch_forks() {
  pthread_atfork(nullptr, nullptr, [] { report = nullptr; });
}

}  // namespace

extern "C" {

// The functions of memory; operator new of the C++ library calls malloc.
void* malloc(size_t size) { return fails(k_malloc) ? nullptr : __libc_malloc(size); }
void* calloc(size_t n, size_t size) { return fails(k_malloc) ? nullptr : __libc_calloc(n, size); }
void* realloc(void* p, size_t size) { return fails(k_malloc) ? nullptr : __libc_realloc(p, size); }
void* memalign(size_t alignment, size_t size) {
  return fails(k_malloc) ? nullptr : __libc_memalign(alignment, size);
}
void* aligned_alloc(size_t alignment, size_t size) {
  return fails(k_malloc) ? nullptr : __libc_memalign(alignment, size);
}
int posix_memalign(void** out, size_t alignment, size_t size) {
  if (fails(k_malloc)) return ENOMEM;
  *out = __libc_memalign(alignment, size);
  return *out != nullptr ? 0 : ENOMEM;
}

#define SWEEP_OPEN(name)                                                                        \
  int name(const char* path, int flags, ...) {                                                  \
    va_list rest;                                                                               \
    va_start(rest, flags);                                                                      \
    const mode_t mode = va_arg(rest, mode_t);                                                   \
    va_end(rest);                                                                               \
    if (fails(k_open)) return -1;                                                               \
    static const auto real = next(static_cast<int (*)(const char*, int, ...)>(nullptr), #name); \
    return real(path, flags, mode);                                                             \
  }
SWEEP_OPEN(open)
SWEEP_OPEN(open64)

#define SWEEP_OPENAT(name)                                                      \
  int name(int folder, const char* path, int flags, ...) {                      \
    va_list rest;                                                               \
    va_start(rest, flags);                                                      \
    const mode_t mode = va_arg(rest, mode_t);                                   \
    va_end(rest);                                                               \
    if (fails(k_open)) return -1;                                               \
    static const auto real =                                                    \
        next(static_cast<int (*)(int, const char*, int, ...)>(nullptr), #name); \
    return real(folder, path, flags, mode);                                     \
  }
SWEEP_OPENAT(openat)
SWEEP_OPENAT(openat64)

int ioctl(int fd, unsigned long request, ...) {
  va_list rest;
  va_start(rest, request);
  void* const argument = va_arg(rest, void*);
  va_end(rest);
  if (fails(k_ioctl)) return -1;
  static const auto real = next(static_cast<int (*)(int, unsigned long, ...)>(nullptr), "ioctl");
  return real(fd, request, argument);
}

#define SWEEP_FCNTL(name)                                                               \
  int name(int fd, int command, ...) {                                                  \
    va_list rest;                                                                       \
    va_start(rest, command);                                                            \
    void* const argument = va_arg(rest, void*);                                         \
    va_end(rest);                                                                       \
    if (fails(k_fcntl)) return -1;                                                      \
    static const auto real = next(static_cast<int (*)(int, int, ...)>(nullptr), #name); \
    return real(fd, command, argument);                                                 \
  }
SWEEP_FCNTL(fcntl)
SWEEP_FCNTL(fcntl64)

long syscall(long number, ...) {
  va_list rest;
  va_start(rest, number);
  long a[6];
  for (long& x : a) x = va_arg(rest, long);
  va_end(rest);
  // A futex does not touch the outside, and a thread that cannot wait cannot go on.
  if (number != SYS_futex && fails(k_syscall)) return -1;
  // The raw instruction: looking up the next syscall() may itself need one.
  register long r10 asm("r10") = a[3];
  register long r8 asm("r8") = a[4];
  register long r9 asm("r9") = a[5];
  long result = 0;
  asm volatile("syscall"
               : "=a"(result)
               : "a"(number), "D"(a[0]), "S"(a[1]), "d"(a[2]), "r"(r10), "r"(r8), "r"(r9)
               : "rcx", "r11", "memory");
  if (result < 0 && result > -4096) {
    errno = static_cast<int>(-result);
    return -1;
  }
  return result;
}

#define SWEEP_MMAP(name)                                                                      \
  void* name(void* at, size_t size, int protection, int flags, int fd, off_t offset) {        \
    if (fails((flags & MAP_ANONYMOUS) != 0 ? k_mmap_memory : k_mmap_file)) return MAP_FAILED; \
    NEXT(name);                                                                               \
    return real(at, size, protection, flags, fd, offset);                                     \
  }
SWEEP_MMAP(mmap)
SWEEP_MMAP(mmap64)

#define SWEEP(type, failed, call, name, parameters, arguments) \
  type name parameters {                                       \
    if (fails(k_##call)) return failed;                        \
    NEXT(name);                                                \
    return real arguments;                                     \
  }
SWEEP(FILE*, nullptr, fopen, fopen, (const char* path, const char* mode), (path, mode))
SWEEP(FILE*, nullptr, fopen, fopen64, (const char* path, const char* mode), (path, mode))
SWEEP(DIR*, nullptr, opendir, opendir, (const char* path), (path))
SWEEP(ssize_t, -1, read, read, (int fd, void* to, size_t n), (fd, to, n))
SWEEP(ssize_t, -1, write, write, (int fd, const void* from, size_t n), (fd, from, n))
SWEEP(ssize_t, -1, pread, pread, (int fd, void* to, size_t n, off_t at), (fd, to, n, at))
SWEEP(ssize_t, -1, pread, pread64, (int fd, void* to, size_t n, off64_t at), (fd, to, n, at))
SWEEP(ssize_t, -1, pwrite, pwrite, (int fd, const void* from, size_t n, off_t at),
      (fd, from, n, at))
SWEEP(ssize_t, -1, pwrite, pwrite64, (int fd, const void* from, size_t n, off64_t at),
      (fd, from, n, at))
SWEEP(off_t, -1, lseek, lseek, (int fd, off_t at, int whence), (fd, at, whence))
SWEEP(off64_t, -1, lseek, lseek64, (int fd, off64_t at, int whence), (fd, at, whence))
SWEEP(int, -1, munmap, munmap, (void* at, size_t size), (at, size))
SWEEP(int, -1, mprotect, mprotect, (void* at, size_t size, int how), (at, size, how))
SWEEP(int, -1, madvise, madvise, (void* at, size_t size, int how), (at, size, how))
SWEEP(int, -1, poll, poll, (pollfd * fds, nfds_t n, int ms), (fds, n, ms))
SWEEP(int, -1, fstat, fstat, (int fd, struct stat* to), (fd, to))
SWEEP(int, -1, fstat, fstat64, (int fd, struct stat64* to), (fd, to))
SWEEP(int, -1, stat, stat, (const char* path, struct stat* to), (path, to))
SWEEP(int, -1, stat, stat64, (const char* path, struct stat64* to), (path, to))
SWEEP(int, -1, stat, lstat, (const char* path, struct stat* to), (path, to))
SWEEP(int, -1, stat, lstat64, (const char* path, struct stat64* to), (path, to))
SWEEP(int, -1, access, access, (const char* path, int how), (path, how))
SWEEP(int, -1, rename, rename, (const char* from, const char* to), (from, to))
SWEEP(int, -1, rename, renameat, (int a, const char* from, int b, const char* to), (a, from, b, to))
SWEEP(int, -1, unlink, unlink, (const char* path), (path))
SWEEP(int, -1, unlink, unlinkat, (int folder, const char* path, int flags), (folder, path, flags))
SWEEP(int, -1, mkdir, mkdir, (const char* path, mode_t mode), (path, mode))
SWEEP(int, -1, rmdir, rmdir, (const char* path), (path))
SWEEP(char*, nullptr, mkdtemp, mkdtemp, (char* pattern), (pattern))
SWEEP(int, -1, ftruncate, ftruncate, (int fd, off_t size), (fd, size))
SWEEP(int, -1, ftruncate, ftruncate64, (int fd, off64_t size), (fd, size))
SWEEP(int, -1, fsync, fsync, (int fd), (fd))
SWEEP(int, -1, fsync, fdatasync, (int fd), (fd))
SWEEP(int, -1, flock, flock, (int fd, int how), (fd, how))
SWEEP(int, -1, dup, dup, (int fd), (fd))
SWEEP(int, -1, pipe, pipe2, (int fds[2], int flags), (fds, flags))
SWEEP(int, -1, socket, socket, (int domain, int type, int protocol), (domain, type, protocol))
SWEEP(ssize_t, -1, readlink, readlink, (const char* path, char* to, size_t n), (path, to, n))
SWEEP(char*, nullptr, realpath, realpath, (const char* path, char* to), (path, to))
SWEEP(char*, nullptr, getcwd, getcwd, (char* to, size_t n), (to, n))
SWEEP(pid_t, -1, fork, fork, (), ())
SWEEP(pid_t, -1, waitpid, waitpid, (pid_t pid, int* status, int how), (pid, status, how))
SWEEP(void*, nullptr, dlopen, dlopen, (const char* path, int how), (path, how))
SWEEP(int, -1, sched_getaffinity, sched_getaffinity, (pid_t pid, size_t n, cpu_set_t* set),
      (pid, n, set))
SWEEP(int, -1, memfd_create, memfd_create, (const char* name, unsigned flags), (name, flags))
// These return what is wrong.
SWEEP(int, wanted_errno, pthread_create, pthread_create,
      (pthread_t * to, const pthread_attr_t* how, void* (*run)(void*), void* with),
      (to, how, run, with))
SWEEP(int, wanted_errno, posix_spawn, posix_spawn,
      (pid_t * pid, const char* path, const posix_spawn_file_actions_t* actions,
       const posix_spawnattr_t* how, char* const* arguments, char* const* environment),
      (pid, path, actions, how, arguments, environment))

int eventfd(unsigned value, int flags) {
  if (fails(k_eventfd)) return -1;
  static const auto real = next(static_cast<int (*)(unsigned, int)>(nullptr), "eventfd");
  return real(value, flags);
}

/// An end without unwinding: where it was decided.
void _exit(int code) {
  if (report != nullptr && report->exited_at[0] == 0) {
    const Quiet quiet;
    write_stack(report->exited_at, sizeof report->exited_at);
  }
  syscall(SYS_exit_group, code);
  __builtin_unreachable();
}

/// Libraries that put handlers of their own on SIGABRT hide where they gave up.
void abort() {
  static const auto real = next(static_cast<void (*)()>(nullptr), "abort");
  if (report != nullptr && report->died_at[0] == 0) {
    const Quiet quiet;
    write_stack(report->died_at, sizeof report->died_at);
  }
  real();
  __builtin_unreachable();
}

/// assert() of a library does not go through abort() above, and may have taken SIGABRT's handler
/// away.
void __assert_fail(const char* said, const char* file, unsigned line, const char* function) {
  static const auto real = next(&::__assert_fail, "__assert_fail");
  if (report != nullptr && report->died_at[0] == 0) {
    const Quiet quiet;
    write_stack(report->died_at, sizeof report->died_at);
  }
  real(said, file, line, function);
  __builtin_unreachable();
}

/// A descriptor is closed even when close() says otherwise.
int close(int fd) {
  static const auto real = next(static_cast<int (*)(int)>(nullptr), "close");
  const bool fail = fails(k_close);
  const int said = errno;
  const int result = real(fd);
  if (!fail) return result;
  errno = said;
  return -1;
}

}  // extern "C"
