#include "drivers/nv/gsp/sequencer.h"

#include <array>
#include <cstring>
#include <vector>

#include "drivers/nv/abi/gsp.h"

namespace bm::nv::gsp {
namespace {

using abi::gsp::RunCpuSequencer;

// rmgspseq.h, GSP_SEQ_BUF_OPCODE_*.
enum class Op : uint32_t {
  kWrite,
  kModify,
  kPoll,
  kDelay,
  kStore,
  kCoreReset,
  kCoreStart,
  kCoreWaitForHalt,
  kCoreResume,
};
constexpr std::array<uint32_t, 9> kOperands = {2, 3, 5, 1, 2, 0, 0, 0, 0};

// TIMEOUT: what the kernel waits where the list says nothing.
constexpr uint64_t kPollUs = 4'000'000;
// TIMEOUT: a list that wants more than this of the host is damaged.
constexpr uint32_t kMostDelayUs = 10'000'000;
// TIMEOUT: 2 s in nouveau and nova-core, for the core's halt and the reload through SEC2.
constexpr uint64_t kCoreUs = 2'000'000;
constexpr uint32_t kHandoffDone = 1u << 26;
constexpr uint64_t kCoreActiveUs = 2'000'000;

Status resume(Bus& bus, SequencerTargets& targets) {
  BM_TRY(targets.gsp.reset_into_riscv());
  targets.gsp.write_mailboxes(targets.libos_address);
  targets.sec2.start();
  BM_TRY(bus.wait_for(reg::kBsiScratch14, kHandoffDone, kHandoffDone, kCoreUs,
                      "SEC2 does not start the GSP again"));
  if (const Mailboxes seen = targets.sec2.mailboxes(); seen.low != 0)
    return fail(Code::kIo, "SEC2 reports {:#x} instead of starting the GSP again", seen.low);
  bus.write(targets.gsp.reg(falcon_reg::kOs), targets.app_version);
  return targets.gsp.wait_riscv_active(kCoreActiveUs);
}

}  // namespace

Result<uint32_t> run_sequence(Bus& bus, SequencerTargets targets,
                              std::span<const std::byte> payload) {
  const auto header =
      BM_TRY(abi::gsp::Gsp<RunCpuSequencer>::decode(payload, "the list of RUN_CPU_SEQUENCER"));
  const uint64_t words = header.get(RunCpuSequencer::cmdIndex);
  if (words > (payload.size() - RunCpuSequencer::kBytes) / 4)
    return fail(Code::kCorrupt, "RUN_CPU_SEQUENCER: {} words at 0x4, and {:#x} bytes came", words,
                payload.size());
  std::vector<uint32_t> list(words);
  if (words != 0) std::memcpy(list.data(), payload.data() + RunCpuSequencer::kBytes, words * 4);
  uint32_t count = 0;
  for (size_t at = 0; at < list.size(); ++count) {
    const uint32_t code = list[at];
    if (code >= kOperands.size())
      return fail(Code::kCorrupt, "RUN_CPU_SEQUENCER: operation {:#x} at word {}", code, at);
    const uint32_t operands = kOperands[code];
    if (list.size() - at - 1 < operands)
      return fail(Code::kCorrupt, "RUN_CPU_SEQUENCER: the list of {} words ends within word {}",
                  list.size(), at);
    const uint32_t* const args = list.data() + at + 1;
    const auto op = static_cast<Op>(code);
    const bool has_register = op <= Op::kPoll || op == Op::kStore;
    if (has_register && (args[0] % 4 != 0 || args[0] >= bus.registers().size()))
      return fail(Code::kCorrupt, "RUN_CPU_SEQUENCER: register {:#x} at word {}", args[0], at + 1);
    const Register named{"a register of RUN_CPU_SEQUENCER", has_register ? args[0] : 0};
    switch (op) {
      case Op::kWrite: bus.write(named, args[1]); break;
      case Op::kModify: {
        const uint32_t seen = bus.read(named);
        bus.write(named, (seen & ~args[1]) | args[2]);
        break;
      }
      case Op::kPoll:
        BM_TRY(bus.wait_for(named, args[1], args[2], args[3] == 0 ? kPollUs : args[3],
                            fmt::format("{:#x} does not settle (error {:#x})", args[0], args[4])));
        break;
      case Op::kDelay:
        if (args[0] > kMostDelayUs)
          return fail(Code::kCorrupt, "RUN_CPU_SEQUENCER: a delay of {} us at word {}", args[0],
                      at + 1);
        bus.sleep_us(args[0]);
        break;
      case Op::kStore: static_cast<void>(bus.read(named)); break;  // for lists of the GSP's own
      case Op::kCoreReset:
        BM_TRY(targets.gsp.reset());
        targets.gsp.allow_no_context();
        break;
      case Op::kCoreStart: targets.gsp.start(); break;
      case Op::kCoreWaitForHalt:
        BM_TRY(targets.gsp.wait_halted(kCoreUs, "what RUN_CPU_SEQUENCER started"));
        break;
      case Op::kCoreResume: BM_TRY(resume(bus, targets)); break;
    }
    BM_TRY(bus.status());
    at += 1 + operands;
  }
  return count;
}

}  // namespace bm::nv::gsp
