#pragma once
// A boot of the modelled card written by hand, after the same sources as the model (kernel_gsp.c
// and what it calls, open-gpu-kernel-modules 570.144), for tests that spoil one step of it.

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "tests/sim/nv/chip/card.h"

namespace bm::sim::nv::card {

/// What the boot does wrong.
enum class Slip : uint8_t {
  kNone,
  // Bus.
  kUndocumentedRegister,
  kReadOnlyRegister,
  kBar1Virtual,
  kNoBusMaster,
  // Falcon.
  kNoReset,
  kNoScrubWait,
  kDmaMisaligned,
  kDmaNotPhysical,
  kCodeByte,
  kNotSecure,
  kNoSignature,
  kOldSignature,
  kParameterAddress,
  kEngineMask,
  kUcodeId,
  kBootVector,
  kNoTag,
  kMiddleOfBlock,
  kLoaderContext,
  // FWSEC and booter.
  kNoRomWait,
  kFrtsSize,
  kFrtsBeyond,
  kNoFwsec,
  kNoRiscv,
  kNoScrubber,
  // WPR meta.
  kMetaMagic,
  kMetaOverlap,
  kMetaMisaligned,
  kMetaFrts,
  kMetaImageBytes,
  kMetaHeap,
  kMetaNotMapped,
  kRadixShort,
  kRadixContent,
  kLoaderContent,
  kSignatureOfOther,
  // Queues.
  kNoRmArguments,
  kPageList,
  kQueueHeader,
  kNoSystemInfo,
  kChecksum,
  kSequence,
  kElements,
  kRpcSignature,
  kModifyExchanged,
  kResumeArguments,
  // FSP.
  kFspTooEarly,
  kFspHeader,
  kCotVersion,
  kCotHash,
  kCotKey,
  kFmcTarget,
  kMetaOffsets,
  // RM.
  kClassBytes,
  kControlBytes,
  kParent,
  kHandleTwice,
  kClassOfOther,
  kInstanceBeyond,
  kInstanceTwice,
  kInstanceProtected,
  kNoPageDirectory,
  kBufferSmall,
  // Pages.
  kReservedBits,
  kNoInvalidate,
  kPageNotMapped,
  kPageProtected,
  kPeer,
  // Afterwards.
  kWriteProtected,
  kForeignToken,
  kUserdUnmapped,
};

/// Files as NVIDIA's, with noise in them.
FirmwareFiles noise_files(const CardRow& row);
CardOptions noise_card(const std::string& chip);

/// Thread: one.
class HandBoot {
 public:
  HandBoot(Card& card, Slip slip = Slip::kNone);
  ~HandBoot();

  /// Until GSP_INIT_DONE. False: the card did not come so far.
  bool boot();
  /// Client, address space, a channel of graphics' with a compute object; its ring is mapped.
  bool make_channel();
  /// Lets the host engine release a semaphore; true when its value is there in time.
  bool release();
  /// UNLOADING_GUEST_DRIVER, FWSEC's SB and booter_unload where there are such.
  bool unload();

  uint32_t rd(uint32_t address) { return static_cast<uint32_t>(card_.read(0, address, 4)); }
  void wr(uint32_t address, uint32_t value) { card_.write(0, address, 4, value); }
  /// An answer's payload; its RPC result in `result`. Empty: there was none.
  std::vector<std::byte> call(uint32_t function, std::span<const std::byte> payload,
                              uint32_t* result = nullptr);
  uint32_t allocate(uint32_t parent, uint32_t handle, uint32_t number,
                    std::vector<std::byte> params);
  uint32_t control(uint32_t handle, uint32_t command, std::vector<std::byte> params,
                   std::vector<std::byte>* out = nullptr);

 private:
  struct Page {
    uint64_t bus = 0;
    std::byte* host = nullptr;
  };
  bool is(Slip slip) const { return slip_ == slip; }
  Page system(uint64_t bytes, bool is_mapped = true);
  bool wait(uint32_t address, uint32_t mask, uint32_t value);
  void reset(uint32_t base, bool into_riscv);
  bool run_dma(uint32_t base, const HsProgram& program, std::span<const std::byte> data);
  bool run_pio(uint32_t base, const HsProgram& program, std::span<const std::byte> data);
  bool run_loader(const HsProgram& program, std::span<const std::byte> data);
  void imem(uint32_t base, uint32_t at, std::span<const std::byte> code, uint32_t tag, bool secure);
  bool run_fwsec(uint32_t command);
  bool run_booter(const HsProgram& program, uint64_t mailbox);
  bool run_fsp();
  void make_meta(bool is_sizes_only);
  void make_queues();
  void send(uint32_t function, std::span<const std::byte> payload);
  bool receive(uint32_t function, std::vector<std::byte>* payload, uint32_t* result);
  bool run_sequencer(std::span<const std::byte> payload);
  void map_page(uint64_t address, uint64_t entry);

  Card& card_;
  const CardRow& row_;
  const Slip slip_;
  CardFirmware files_;
  std::vector<std::unique_ptr<std::byte[]>> memory_;
  std::vector<uint64_t> mapped_;
  uint64_t next_bus_ = 0x2'0000'0000;
  uint64_t frts_ = 0, next_table_ = 0x200000;
  Page meta_, queues_, libos_;
  uint32_t sequence_ = 0, status_read_ = 0, token_ = 0, gp_put_ = 0;
  uint64_t ring_at_ = 0, userd_at_ = 0, data_at_ = 0;
  uint32_t client_ = 0xc1d0'0001, object_ = 0xcf00'0000;
};

}  // namespace bm::sim::nv::card
