#include "runtime/target.h"

#include <random>

#include <gtest/gtest.h>

extern "C" int fuzz_dev_grammar(const uint8_t* data, size_t size);

namespace bm::runtime {
namespace {

std::string canonical(std::string_view text) {
  const auto target = parse_target(text);
  return target ? to_string(*target) : "error: " + target.error().message;
}

std::string error_of(std::string_view text, std::span<const std::string_view> known = {}) {
  const auto targets = parse_targets(text, known);
  return targets ? "no error" : targets.error().message;
}

TEST(Target, PrintsTheCanonicalForm) {
  const std::pair<const char*, const char*> cases[] = {
      {"cpu", "CPU"},
      {"CPU:0", "CPU"},
      {"cpu:1", "CPU:1"},
      {"cpu:01", "CPU:1"},
      {" cpu:llvm ", "CPU:LLVM"},
      {"CPU:2:llvm", "CPU:2:LLVM"},
      {"CPU:LLVM:x86_64,znver2,-avx512f", "CPU:LLVM:x86_64,znver2,-avx512f"},
      {"AMD::gfx950", "AMD::gfx950"},
      {"amd:3::gfx950", "AMD:3::gfx950"},
      {"AMD:LLVM:gfx90a:sramecc+:xnack-", "AMD:LLVM:gfx90a:sramecc+:xnack-"},
      {"pci+amd", "PCI+AMD"},
      {"PCI:0,1,2,3+amd", "PCI:0-3+AMD"},
      {"PCI:3,1+AMD", "PCI:3,1+AMD"},
      {"PCI:0-1,5+NV:PTX:sm_90", "PCI:0-1,5+NV:PTX:sm_90"},
      {"kfd:7+amd:llvm:gfx90a:xnack+", "KFD:7+AMD:LLVM:gfx90a:xnack+"},
      {"CPU:", "CPU"},
      {"CPU::", "CPU"},
  };
  for (const auto& [text, expected] : cases) {
    EXPECT_EQ(canonical(text), expected) << text;
    EXPECT_EQ(canonical(canonical(text)), expected) << "not idempotent: " << text;
  }
}

TEST(Target, FillsEveryField) {
  const auto target = parse_target("pci:2-3+nv:1:ptx:sm_90a");
  ASSERT_TRUE(target.has_value());
  EXPECT_EQ(*target, (Target{.interface = "PCI",
                             .indices = {2, 3},
                             .device = "NV",
                             .unit = 1,
                             .renderer = "PTX",
                             .arch = "sm_90a"}));
}

TEST(Target, SplitsSeveralAtSemicolons) {
  const auto targets = parse_targets("CPU:CLANG; PCI+AMD");
  ASSERT_TRUE(targets.has_value());
  ASSERT_EQ(targets->size(), 2u);
  EXPECT_EQ(to_string((*targets)[0]), "CPU:CLANG");
  EXPECT_EQ(to_string((*targets)[1]), "PCI+AMD");
}

TEST(Target, AnEmptyInterfaceMayStandBeforeTheArchitecture) {
  for (const char* text : {"NULL:PTX::sm_90", "NULL:PTX:sm_90"}) {
    const auto target = parse_target(text);
    ASSERT_TRUE(target.has_value());
    EXPECT_EQ(target->renderer, "PTX");
    EXPECT_EQ(target->arch, "sm_90");
    EXPECT_EQ(to_string(*target), "NULL:PTX:sm_90");
  }
  EXPECT_EQ(parse_target("NULL:::gfx1100,84")->arch, "gfx1100,84");
}

TEST(Target, ErrorsQuoteTheOffendingPart) {
  const std::pair<const char*, const char*> cases[] = {
      {"", "empty target"},          {"CPU;", "empty target in \"CPU;\""},
      {"+CPU", "no interface name"}, {"PCI+", "no device name"},
      {"PCI:x+AMD", "\"x\""},        {"PCI:3-1+AMD", "\"3-1\""},
      {"PCI:1,1+AMD", "unit 1"},     {"PCI:+AMD", "\"\""},
      {"CPU:1x", "\"1x\""},          {"CPU:99999999999", "99999999999"},
      {"C-PU", "\"C-PU\""},          {"CPU:LL-VM", "\"LL-VM\""},
      {"CPU:LLVM:a b", "blank"},     {"PCI:0-99999+AMD", "99999"},
  };
  for (const auto& [text, part] : cases) {
    const std::string message = error_of(text);
    EXPECT_NE(message.find(part), message.npos) << text << " → " << message;
  }
}

TEST(Target, UnknownDeviceOffersTheNearestName) {
  const std::string_view known[] = {"CPU", "AMD", "NV", "NULL"};
  EXPECT_EQ(error_of("AMP", known), "unknown device \"AMP\", did you mean \"AMD\"?");
  EXPECT_EQ(error_of("cpuu", known), "unknown device \"CPUU\", did you mean \"CPU\"?");
  EXPECT_EQ(error_of("WEBGPUXYZ", known),
            "unknown device \"WEBGPUXYZ\" (there are: CPU AMD NV NULL)");
  EXPECT_EQ(error_of("nv", known), "no error");
}

TEST(Target, FuzzHarnessHoldsOnRandomText) {
  constexpr std::string_view kAlphabet = "cpuAMD:;+,-0123 gf_";
  std::mt19937 random(7);
  for (int round = 0; round < 20000; ++round) {
    std::string text(random() % 24, ' ');
    for (char& c : text) c = kAlphabet[random() % kAlphabet.size()];
    fuzz_dev_grammar(reinterpret_cast<const uint8_t*>(text.data()), text.size());
  }
}

}  // namespace
}  // namespace bm::runtime
