// Every method, ring entry and descriptor the driver emits, as words. The files name the header
// that each case was checked against. BM_UPDATE_GOLDEN=1 rewrites them.
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>

#include "drivers/nv/methods/bank0.h"
#include "drivers/nv/methods/compute.h"
#include "drivers/nv/methods/copy.h"
#include "drivers/nv/methods/push.h"
#include "drivers/nv/methods/qmd.h"

namespace bm::nv {
namespace {

constexpr uint64_t kFirst = 0x12'3456'7890, kSecond = 0x0a'bcde'f120;

class Golden {
 public:
  explicit Golden(std::string name) : path_("tests/golden/nv/" + name + ".txt") {}

  void words(const char* title, const char* source, std::span<const uint32_t> words) {
    text_ += fmt::format("# {}\n# source: {}\n", title, source);
    for (size_t i = 0; i < words.size(); ++i)
      text_ += fmt::format("{:08x}{}", words[i], i % 8 == 7 || i + 1 == words.size() ? '\n' : ' ');
    text_ += '\n';
  }
  /// Words that are not zero, one a line.
  void sparse(const char* title, const char* source, std::span<const uint32_t> words) {
    text_ += fmt::format("# {}\n# source: {}\n# {} words, zero where not listed\n", title, source,
                         words.size());
    for (size_t i = 0; i < words.size(); ++i)
      if (words[i] != 0) text_ += fmt::format("{:3} {:08x}\n", i, words[i]);
    text_ += '\n';
  }
  void check() const {
    if (std::getenv("BM_UPDATE_GOLDEN")) {
      std::ofstream(path_) << text_;
      return;
    }
    std::ostringstream want;
    want << std::ifstream(path_).rdbuf();
    EXPECT_EQ(text_, want.str()) << path_;
  }

 private:
  std::string path_, text_;
};

/// Words of `emit(push)`, checked against the method tables of every class that may run them.
template <class Emit>
std::vector<uint32_t> push_words(const Emit& emit) {
  std::vector<uint32_t> words;
  Push push(words, {.channel = 0xc56f, .compute = 0xc7c0, .copy = 0xc7b5});
  emit(push);
  constexpr ChannelClasses kAll[] = {{0xc46f, 0xc5c0, 0xc5b5}, {0xc56f, 0xc6c0, 0xc6b5},
                                     {0xc56f, 0xc7c0, 0xc7b5}, {0xc56f, 0xc9c0, 0xc7b5},
                                     {0xc86f, 0xcbc0, 0xc8b5}, {0xc96f, 0xcdc0, 0xc9b5},
                                     {0xca6f, 0xcec0, 0xcab5}};
  for (const ChannelClasses& classes : kAll) {
    const Status good = check_push(words, classes);
    EXPECT_TRUE(good || good.error().message.find("0x2c0") != std::string::npos)
        << good.error().message;
  }
  return words;
}

TEST(NvGolden, Host) {
  Golden golden("host");
  const auto host = [&](const char* title, const char* source, const auto& emit) {
    golden.words(title, source, push_words(emit));
  };
  host("bind compute class cbc0 to subchannel 1", "clc56f.h NVC56F_SET_OBJECT",
       [](Push& p) { set_object(p, Subchannel::kCompute, 0xcbc0); });
  host("bind copy class c8b5 to subchannel 4", "clc56f.h NVC56F_SET_OBJECT",
       [](Push& p) { set_object(p, Subchannel::kCopy, 0xc8b5); });
  host("acquire 64 bits, circular, switching time slices",
       "clc56f.h NVC56F_SEM_ADDR_LO … SEM_EXECUTE", [](Push& p) { acquire(p, kFirst, kSecond); });
  host("release 64 bits when idle", "clc56f.h NVC56F_SEM_ADDR_LO … SEM_EXECUTE",
       [](Push& p) { release(p, kFirst, kSecond); });
  host("release 64 bits with timestamp when idle", "clc56f.h NVC56F_SEM_EXECUTE RELEASE_TIMESTAMP",
       [](Push& p) { release(p, kFirst, kSecond, true); });
  host("wake event waiters", "clc56f.h NVC56F_NON_STALL_INTERRUPT", [](Push& p) { interrupt(p); });
  golden.check();
}

TEST(NvGolden, Ring) {
  Golden golden("ring");
  const auto entry = [&](const char* title, uint64_t address, uint32_t words) {
    const uint64_t value = ring_entry(address, words);
    const uint32_t both[] = {lo32(value), hi32(value)};
    golden.words(title, "clc56f.h NVC56F_GP_ENTRY0_GET, GP_ENTRY1_GET_HI, GP_ENTRY1_LENGTH", both);
  };
  entry("5 words at 0x1000200300", 0x10'0020'0300, 5);
  entry("most words at the last address", 0xff'ffff'fffc, kMaxEntryWords);
  golden.check();
}

TEST(NvGolden, Compute) {
  Golden golden("compute");
  const auto compute = [&](const char* title, const char* source, const auto& emit) {
    golden.words(title, source, push_words(emit));
  };
  compute("first push: class and windows",
          "clc7c0.h NVC7C0_SET_SHADER_LOCAL_MEMORY_WINDOW_A/B, SET_SHADER_SHARED_MEMORY_WINDOW_A/B",
          [](Push& p) { setup_compute(p, 0x7294'0000'0000, 0x7293'0000'0000); });
  compute("local memory", "clc7c0.h NVC7C0_SET_SHADER_LOCAL_MEMORY_A/B, _NON_THROTTLED_A/B/C",
          [](Push& p) { set_local_memory(p, {kFirst & ~uint64_t{0xffff}, 0x1'2345'8000, 0xff}); });
  compute("wait for idle", "clc7c0.h NVC7C0_WAIT_FOR_IDLE", [](Push& p) { wait_for_idle(p); });
  compute("invalidate caches",
          "clc7c0.h NVC7C0_INVALIDATE_SKED_CACHES, INVALIDATE_SHADER_CACHES_NO_WFI",
          [](Push& p) { invalidate_caches(p); });
  compute("launch, Turing", "clc5c0.h NVC5C0_SEND_PCAS_A, SEND_SIGNALING_PCAS_B",
          [](Push& p) { launch(p, LaunchMethod::kPcasB, 0, kFirst & ~uint64_t{0xff}); });
  compute("launch, Ampere and later", "clc7c0.h NVC7C0_SEND_PCAS_A, SEND_SIGNALING_PCAS2_B",
          [](Push& p) { launch(p, LaunchMethod::kPcas2B, 3, kFirst & ~uint64_t{0xff}); });
  compute("inline write of three words",
          "clc7c0.h NVC7C0_LINE_LENGTH_IN, LINE_COUNT, OFFSET_OUT_UPPER, OFFSET_OUT, LAUNCH_DMA, "
          "LOAD_INLINE_DATA",
          [](Push& p) {
            const uint32_t words[] = {1, 0x22222222, 0xffffffff};
            write_inline(p, kFirst, words);
          });
  const uint32_t nop[] = {kComputeNoOperationHeader};
  golden.words("header of a launch that is switched off", "clc7c0.h NVC7C0_NO_OPERATION", nop);
  golden.check();
}

TEST(NvGolden, Copy) {
  Golden golden("copy");
  const auto copy = [&](const char* title, const char* source, const auto& emit) {
    golden.words(title, source, push_words(emit));
  };
  copy("one copy of 4099 bytes",
       "clc7b5.h NVC7B5_OFFSET_IN_UPPER … OFFSET_OUT_LOWER, LINE_LENGTH_IN, LAUNCH_DMA",
       [](Push& p) { copy_piece(p, kFirst, kSecond, 4099); });
  copy("flush, then {payload, timestamp}", "clc7b5.h NVC7B5_SET_SEMAPHORE_A, LAUNCH_DMA",
       [](Push& p) { flush_and_release(p, kFirst, 7); });
  copy("fill of 64 bytes", "clc7b5.h NVC7B5_SET_REMAP_CONST_A … SET_REMAP_COMPONENTS, LAUNCH_DMA",
       [](Push& p) { fill(p, kFirst, 64, 0x01020304); });
  copy("fill of 2 GiB and 4 bytes: two launches", "clc7b5.h NVC7B5_LINE_LENGTH_IN",
       [](Push& p) { fill(p, kFirst, kLargestCopy + 4, 0); });
  copy("one 64-bit word from constants A and B",
       "clc7b5.h NVC7B5_SET_REMAP_CONST_A, SET_REMAP_COMPONENTS NUM_DST_COMPONENTS_TWO",
       [](Push& p) { write_constant(p, kFirst, 0x1122'3344'5566'7788); });
  const uint32_t nop[] = {kCopyNopHeader};
  golden.words("header of a copy that is switched off", "clc7b5.h NVC7B5_NOP", nop);
  golden.check();
}

/// Every field of a launch with a value of its own.
LaunchShape full_shape() {
  LaunchShape shape;
  shape.program = 0x10'0123'4500;
  shape.program_bytes = 0x2345;
  shape.registers = 168;
  shape.barriers = 3;
  shape.shared_bytes = 0x4480;
  shape.min_shared_config_kib = 32;
  shape.shared_config_kib = 64;
  shape.max_shared_config_kib = 100;
  shape.local_bytes = 0x260;
  shape.sass_version = 0x90;
  shape.block = {32, 8, 4};
  shape.grid = {0x12345, 0x6789, 0xabc};
  shape.banks[0] = {0x10'0200'0100, 0x240};
  shape.banks[3] = {0x10'0300'0200, 0x10000};
  return shape;
}

void check_qmd(const char* name, QmdVersion version, const char* header) {
  Golden golden(name);
  std::vector<uint32_t> words(qmd_format(version).dwords);
  LaunchShape shape = full_shape();
  encode_qmd(version, shape, words);
  golden.sparse("launch with banks 0 and 3", header, words);
  if (has_exact_release(version)) {
    add_release(version, words, 0, kFirst & ~uint64_t{7}, 0x1122'3344'5566'7788);
    add_release(version, words, 1, kSecond & ~uint64_t{7}, 0x99aa'bbcc'ddee'ff00);
  }
  link_qmd(version, words, 0x10'0400'0300);
  golden.sparse("the same with its releases, followed by another", header, words);
  if (qmd_format(version)[QmdKey::kClusterX].exists()) {
    shape.has_cluster = true;
    shape.cluster = {2, 3, 4};
    encode_qmd(version, shape, words);
    golden.sparse("grid of clusters", header, words);
  }
  golden.check();
}
TEST(NvGolden, Qmd2_3) { check_qmd("qmd_2_3", QmdVersion::k2_3, "clc5c0qmd.h QMDV02_03"); }
TEST(NvGolden, Qmd3_0) { check_qmd("qmd_3_0", QmdVersion::k3_0, "clc9c0qmd.h QMDV03_00"); }
TEST(NvGolden, Qmd4_0) { check_qmd("qmd_4_0", QmdVersion::k4_0, "clcbc0qmd.h QMDV04_00"); }
TEST(NvGolden, Qmd5_0) { check_qmd("qmd_5_0", QmdVersion::k5_0, "clcec0qmd.h QMDV05_00"); }

TEST(NvGolden, Bank0) {
  Golden golden("bank0");
  const Bank0Facts facts = {.block = {1, 2, 3},
                            .grid = {4, 6, 9},
                            .cluster = {1, 2, 3},
                            .has_cluster = true,
                            .shared_window = 0x7294'0000'0000,
                            .local_window = 0x7293'0000'0000,
                            .grid_id = 0x12'3456'7800,
                            .sm_count = 132,
                            .dynamic_shared = 0x4400,
                            .reserved_shared = 0x400};
  for (const ChipRow& chip : chips()) {
    for (const bool is_ptx : {false, true}) {
      const Bank0Layout layout = bank0_layout(chip, is_ptx);
      std::vector<uint32_t> words(layout.params / 4, 0xdeadbeef);
      const auto bytes = std::as_writable_bytes(std::span(words));
      encode_bank0(layout, facts, bytes);
      if (is_ptx) encode_ptx_counts(7, 2, bytes);
      golden.sparse(fmt::format("{}{}", chip.name, is_ptx ? ", PTX text" : "").c_str(),
                    "machine code of probe kernels by ptxas 13.0.88, see chips.cpp", words);
    }
  }
  golden.check();
}

}  // namespace
}  // namespace bm::nv
