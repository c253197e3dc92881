#include "tests/sim/notify/filter.h"

#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>

namespace bm::sim::notify {
namespace {

sock_filter load(size_t offset) {
  return BPF_STMT(BPF_LD | BPF_W | BPF_ABS, static_cast<uint32_t>(offset));
}
sock_filter give(uint32_t answer) { return BPF_STMT(BPF_RET | BPF_K, answer); }
sock_filter jump(uint16_t how, uint32_t value, uint8_t yes, uint8_t no) {
  return BPF_JUMP(static_cast<uint16_t>(BPF_JMP | how | BPF_K), value, yes, no);
}

}  // namespace

int install_filter(const std::vector<uint8_t>& types, bool has_bare_requests) {
  constexpr uint32_t kNotify = SECCOMP_RET_USER_NOTIF, kAllow = SECCOMP_RET_ALLOW;
  std::vector<sock_filter> code;
  const auto answer_if = [&](uint16_t how, uint32_t value, uint32_t answer) {
    code.push_back(jump(how, value, 0, 1));
    code.push_back(give(answer));
  };
  code.push_back(load(offsetof(seccomp_data, arch)));
  code.push_back(jump(BPF_JEQ, AUDIT_ARCH_X86_64, 1, 0));
  code.push_back(give(kAllow));
  code.push_back(load(offsetof(seccomp_data, nr)));
  answer_if(BPF_JEQ, SYS_openat, kNotify);
  answer_if(BPF_JEQ, SYS_open, kNotify);
  answer_if(BPF_JEQ, SYS_close, kNotify);
  code.push_back(jump(BPF_JEQ, SYS_ioctl, 1, 0));
  code.push_back(give(kAllow));
  code.push_back(load(offsetof(seccomp_data, args) + 8));
  if (has_bare_requests) {
    // 256 … stays for the types below; 0x30000000 … are the unified memory module's two large ones.
    code.push_back(jump(BPF_JGE, 0x100, 1, 0));
    code.push_back(give(kNotify));
    answer_if(BPF_JEQ, 0x30000001, kNotify);
    answer_if(BPF_JEQ, 0x30000002, kNotify);
  }
  code.push_back(BPF_STMT(BPF_ALU | BPF_AND | BPF_K, 0xff00));
  for (const uint8_t type : types) answer_if(BPF_JEQ, uint32_t{type} << 8, kNotify);
  code.push_back(give(kAllow));
  const sock_fprog program{static_cast<unsigned short>(code.size()), code.data()};
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) return -errno;
  // Killable waits (5.19) keep signals from interrupting calls that are being answered.
  for (const unsigned long killable : {1ul << 5, 0ul}) {
    const long fd = syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER,
                            SECCOMP_FILTER_FLAG_NEW_LISTENER | killable, &program);
    if (fd >= 0) return static_cast<int>(fd);
    if (errno != EINVAL) break;
  }
  return -errno;
}

}  // namespace bm::sim::notify
