// Planted faults of a driver: each is named by the model, and by the item that it is.

#include <algorithm>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/unit/sim_nv_chip/hand_boot.h"

namespace bm::sim::nv::card {
namespace {

struct Case {
  Slip slip;
  const char* chip;
  const char* says;  ///< a part of the violation's text
};

constexpr Case kCases[] = {
    {Slip::kUndocumentedRegister, "ga102", "undocumented register: write of 0x1 to 0x123450"},
    {Slip::kReadOnlyRegister, "ga102", "NV_PMC_BOOT_0 is read-only"},
    {Slip::kBar1Virtual, "ga102", "BAR 1 in virtual mode"},
    {Slip::kNoBusMaster, "ga102", "while bus mastering is off"},
    {Slip::kNoReset, "ga102", "before a reset"},
    {Slip::kNoReset, "tu102", "before a reset"},
    {Slip::kNoScrubWait, "ga102", "before the scrub of its memories has ended"},
    {Slip::kNoScrubWait, "tu102", "before the scrub of its memories has ended"},
    {Slip::kDmaMisaligned, "ga102", "no multiples of 256"},
    {Slip::kDmaNotPhysical, "ga102", "which is not physical"},
    {Slip::kCodeByte, "ga102", "code differs from FWSEC at 0x5"},
    {Slip::kCodeByte, "tu102", "code differs from FWSEC at 0x5"},
    {Slip::kNotSecure, "ga102", "is not loaded as secure"},
    {Slip::kNoSignature, "ad102", "the slot of FWSEC's signature was not filled"},
    {Slip::kOldSignature, "ga102", "FWSEC's signature is not that of fuse version 1"},
    {Slip::kParameterAddress, "ga102", "BROM_PARAADDR is"},
    {Slip::kEngineMask, "ga102", "BROM_ENGIDMASK is"},
    {Slip::kUcodeId, "ga102", "BROM_CURR_UCODE_ID is"},
    {Slip::kBootVector, "ga102", "boot vector"},
    {Slip::kNoTag, "tu102", "without a tag"},
    {Slip::kMiddleOfBlock, "tu102", "which is no block's beginning"},
    {Slip::kLoaderContext, "tu102", "the boot loader's ctxDma is 0x3"},
    {Slip::kNoRomWait, "ga102", "started before the ROM has finished its boot"},
    {Slip::kFrtsSize, "ga102", "FRTS at"},
    {Slip::kFrtsBeyond, "tu102", "beyond video memory"},
    {Slip::kNoFwsec, "ga102", "no WPR2, FWSEC has not run"},
    {Slip::kNoRiscv, "ga102", "was not reset into RISC-V"},
    {Slip::kNoScrubber, "ad102", "memory was not scrubbed"},
    {Slip::kMetaMagic, "ga102", "WPR meta: wrong magic"},
    {Slip::kMetaMagic, "gb202", "WPR meta: wrong magic"},
    {Slip::kMetaOverlap, "ga102", "gspFwHeap and gspFw overlap"},
    {Slip::kMetaMisaligned, "ga100", "gspFw at"},
    {Slip::kMetaFrts, "ga102", "FWSEC made it at"},
    {Slip::kMetaImageBytes, "ga102", "sizeOfRadix3Elf is"},
    {Slip::kMetaHeap, "gh100", "gspFwHeapSize"},
    {Slip::kMetaNotMapped, "ga102", "was never mapped for DMA"},
    {Slip::kRadixShort, "ga102", "radix list: level 2 covers"},
    {Slip::kRadixContent, "gb202", "the GSP image differs from the file in page 0"},
    {Slip::kLoaderContent, "ga102", "boot loader differs from the file"},
    {Slip::kSignatureOfOther, "ga102", "signature is not .fwsignature_ga10x"},
    {Slip::kNoRmArguments, "ga102", "libos arguments without RMARGS"},
    {Slip::kPageList, "ga102", "the page list of the queues"},
    {Slip::kQueueHeader, "ga102", "command queue of version 0"},
    {Slip::kNoSystemInfo, "ga102", "starts without SET_SYSTEM_INFO"},
    {Slip::kChecksum, "ga102", "wrong checksum"},
    {Slip::kSequence, "ga102", "sequence number 1 where 0 is next"},
    {Slip::kElements, "ga102", "an RPC of"},
    {Slip::kRpcSignature, "ga102", "an RPC of header version"},
    {Slip::kModifyExchanged, "ga102", "CPU sequencer: NV_PBUS_SW_SCRATCH(0x30) is 0xff, not 0x5f"},
    {Slip::kResumeArguments, "tu102", "resume: libos arguments at"},
    {Slip::kFspTooEarly, "gb202", "a message before its boot has finished"},
    {Slip::kFspHeader, "gh100", "not a single packet"},
    {Slip::kCotVersion, "gb202", "chain of trust: version 3"},
    {Slip::kCotHash, "gb202", "the hash is not the file's"},
    {Slip::kCotKey, "gh100", "the public key is not the file's"},
    {Slip::kFmcTarget, "gb100", "a target that is not system memory"},
    {Slip::kMetaOffsets, "gb202", "the FMC computes it"},
    {Slip::kClassBytes, "ga102", "the class has 56"},
    {Slip::kControlBytes, "ga102", "it has 4"},
    {Slip::kParent, "ga102", "allocation of class 0x2080 under class"},
    {Slip::kHandleTwice, "ga102", "is in use"},
    {Slip::kClassOfOther, "ga102", "the chip has none"},
    {Slip::kInstanceBeyond, "ga102", "is beyond video memory"},
    {Slip::kInstanceTwice, "ga102", "is its"},
    {Slip::kInstanceProtected, "ga102", "is in the write-protected region"},
    {Slip::kNoPageDirectory, "ga102", "without a page directory"},
    {Slip::kBufferSmall, "ga102", "context buffer 0 of 0x1000 bytes"},
    {Slip::kReservedBits, "ga102", "reserved bits 0x400000000"},
    {Slip::kReservedBits, "gb202", "reserved bits 0x80000000000000"},
    {Slip::kNoInvalidate, "ga102", "before the TLB invalidate"},
    {Slip::kNoInvalidate, "gh100", "before the TLB invalidate"},
    {Slip::kPageNotMapped, "ga102", "was never mapped for DMA"},
    {Slip::kPageProtected, "ga102", "in the write-protected region"},
    {Slip::kPeer, "ga102", "names a peer"},
    {Slip::kWriteProtected, "ga102", "write of BAR 1"},
    {Slip::kForeignToken, "ga102", "a token of no channel"},
    {Slip::kUserdUnmapped, "ga102", "has its USERD there"},
    {Slip::kUserdUnmapped, "gb202", "has its USERD there"},
};

class Slips : public ::testing::TestWithParam<Case> {};

TEST_P(Slips, AreNamed) {
  const Case& one = GetParam();
  CardOptions options = noise_card(one.chip);
  options.needs_scrub = one.slip == Slip::kNoScrubber;
  Card card(options);
  HandBoot driver(card, one.slip);
  // How far it comes is the driver's matter.
  if (driver.boot() && driver.make_channel()) (void)driver.release();
  const auto violations = card.violations();
  EXPECT_TRUE(std::ranges::any_of(
      violations,
      [&](const std::string& text) { return text.find(one.says) != std::string::npos; }))
      << "wanted: " << one.says << "\nsaid: " << testing::PrintToString(violations);
}

INSTANTIATE_TEST_SUITE_P(Planted, Slips, ::testing::ValuesIn(kCases), [](const auto& one) {
  return std::string(one.param.chip) + "_" + std::to_string(one.index);
});

}  // namespace
}  // namespace bm::sim::nv::card
