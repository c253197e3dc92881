#include "tools/nvsnoop/trap.h"

#include <signal.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>

#include "tools/nvsnoop/channels.h"
#include "tools/nvsnoop/record.h"

namespace nvsnoop {
namespace {

constexpr size_t kPage = 4096, kMaxPages = 64;
constexpr long long kTrapFlag = 0x100;  // EFLAGS.TF

// NOLINTBEGIN(cppcoreguidelines-avoid-non-const-global-variables)
std::atomic<uintptr_t> pages[kMaxPages];
std::atomic<uintptr_t> stepping{0};
struct sigaction previous_segv, previous_trap;
// NOLINTEND(cppcoreguidelines-avoid-non-const-global-variables)

void protect(uintptr_t page, int protection) { syscall(SYS_mprotect, page, kPage, protection); }

/// What the program had installed, or the default action.
void pass_on(const struct sigaction& previous, int number, siginfo_t* info, void* context) {
  if ((previous.sa_flags & SA_SIGINFO) != 0 && previous.sa_sigaction != nullptr) {
    previous.sa_sigaction(number, info, context);
  } else if (previous.sa_handler != SIG_DFL && previous.sa_handler != SIG_IGN) {
    previous.sa_handler(number);
  } else {
    ::signal(number, SIG_DFL);  // the instruction runs again and ends the program
  }
}

void on_store(int number, siginfo_t* info, void* context) {
  const auto fault = reinterpret_cast<uintptr_t>(info->si_addr);
  for (const auto& entry : pages) {
    const uintptr_t page = entry.load();
    if (page == 0 || fault < page || fault >= page + kPage) continue;
    Line("doorbell").hex("offset", fault - page);
    record_rings();
    protect(page, PROT_READ | PROT_WRITE);
    stepping = page;
#if defined(__x86_64__)
    static_cast<ucontext_t*>(context)->uc_mcontext.gregs[REG_EFL] |= kTrapFlag;
#endif
    return;
  }
  pass_on(previous_segv, number, info, context);
}

void on_step(int number, siginfo_t* info, void* context) {
  const uintptr_t page = stepping.exchange(0);
  if (page == 0) {
    pass_on(previous_trap, number, info, context);
    return;
  }
  protect(page, PROT_READ);
#if defined(__x86_64__)
  static_cast<ucontext_t*>(context)->uc_mcontext.gregs[REG_EFL] &= ~kTrapFlag;
#endif
}

void install(int number, void (*handler)(int, siginfo_t*, void*), struct sigaction* previous) {
  struct sigaction action{};
  action.sa_sigaction = handler;
  action.sa_flags = SA_SIGINFO | SA_RESTART;
  sigaction(number, &action, previous);
}

}  // namespace

void trap_doorbell(void* address) {
#if defined(__x86_64__)
  const char* wanted = std::getenv("NVSNOOP_DOORBELL");
  if (wanted != nullptr && wanted[0] == '0') return;
  static std::atomic_flag is_installed = ATOMIC_FLAG_INIT;
  if (!is_installed.test_and_set()) {
    install(SIGSEGV, on_store, &previous_segv);
    install(SIGTRAP, on_step, &previous_trap);
  }
  const auto page = reinterpret_cast<uintptr_t>(address);
  for (auto& entry : pages) {
    uintptr_t expected = 0;
    if (!entry.compare_exchange_strong(expected, page)) continue;
    protect(page, PROT_READ);
    Line("doorbell_page").hex("address", page);
    return;
  }
#else
  (void)address;
#endif
}

void forget_doorbell(void* address, size_t bytes) {
  const auto begin = reinterpret_cast<uintptr_t>(address);
  for (auto& entry : pages) {
    const uintptr_t page = entry.load();
    if (page >= begin && page < begin + bytes) entry = 0;
  }
}

}  // namespace nvsnoop
