// A captured program saved by one process replays in another at its first call.
#include "tensor/captured_program_file.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "tensor/captured_program.h"
#include "tensor/jit.h"
#include "tensor/programs.h"

namespace bm {
namespace {

using Floats = std::vector<float>;

Tensor of(Floats v) { return Tensor::from(v, {static_cast<int64_t>(v.size())}); }

std::vector<std::byte> read_all(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  const std::string text((std::istreambuf_iterator<char>(in)), {});
  const auto raw = std::as_bytes(std::span(text));
  return {raw.begin(), raw.end()};
}

void write_all(const std::string& path, std::span<const std::byte> bytes) {
  std::ofstream(path, std::ios::binary)
      .write(reinterpret_cast<const char*>(bytes.data()),
             static_cast<std::streamsize>(bytes.size()));
}

class CapturedFile : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = ::testing::TempDir() + "captured-XXXXXX";
    folder_ = mkdtemp(pattern.data());
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::string file(const std::string& name) const { return folder_ + "/" + name; }
  std::string folder_;
};

/// Matrix product with a constant, a state, a symbolic size and an input written in place.
struct Model {
  Var count{"count", 1, 8};
  Tensor weight =
      (Tensor::arange(64 * 8, DType::kF32).reshape({64, 8}) * 0.125F).contiguous().realize();
  Tensor state = Tensor::zeros({64}).contiguous().realize();
  Jit<std::function<std::vector<Tensor>(const Tensor&, const Tensor&)>> step{
      [this](const Tensor& x, const Tensor& counter) {
        Tensor y = x.linear(weight).contiguous().realize();
        state.assign(state + y.shrink({{0, SymInt(count)}, {0, 64}}).sum({0}));
        Tensor(counter).assign(counter + 1);
        return std::vector<Tensor>{(y * 2).contiguous(), (state + 0).contiguous(), counter};
      }};
};

Tensor input(int call) {
  Floats values;
  for (int i = 0; i < 64; ++i) values.push_back(static_cast<float>(i + call));
  return Tensor::from(values, {8, 8});
}

std::vector<Floats> values_of(std::span<Tensor* const> outputs) {
  std::vector<Floats> out;
  for (const Tensor* t : outputs) out.push_back(t->data<float>());
  return out;
}

std::string text_of(const std::vector<std::vector<Floats>>& calls) {
  std::string out;
  for (const auto& call : calls)
    for (const Floats& f : call) out += fmt::format("{}\n", fmt::join(f, " "));
  return out;
}

/// Runs in a process of its own: `BM_TEST_CAPTURED` names the folder.
std::string replay_loaded(const std::string& path) {
  const KernelRecorder kernels;
  const auto program = CapturedProgram::load(path);
  Tensor counter = of({100});
  std::vector<std::vector<Floats>> calls;
  for (int call = 0; call < 3; ++call) {
    program->vars()[0].set(2 + call);
    const Tensor x = input(10 * call);
    calls.push_back(values_of(program->run({x, counter})));
  }
  EXPECT_TRUE(kernels.kernels().empty()) << "no kernel is asked for: the file has them";
  return text_of(calls);
}

TEST_F(CapturedFile, AnotherProcessReplaysAtItsFirstCall) {
  if (const char* folder = std::getenv("BM_TEST_CAPTURED")) {
    std::ofstream(std::string(folder) + "/result")
        << replay_loaded(std::string(folder) + "/program");
    return;
  }
  Model model;
  Tensor counter = of({100});
  for (int i = 0; i < 3; ++i) model.step(input(i), counter);
  model.step.core().program()->save(file("program"));
  counter = of({100});
  std::vector<std::vector<Floats>> calls;
  for (int call = 0; call < 3; ++call) {
    model.count.set(2 + call);
    const auto got = model.step(input(10 * call), counter);
    std::vector<Floats> values;
    for (const Tensor& t : got) values.push_back(t.data<float>());
    calls.push_back(std::move(values));
  }
  EXPECT_EQ(replay_loaded(file("program")), text_of(calls)) << "in this process";
  // A new process, not a fork: devices do not survive one. It must need no compiler.
  const std::string command = fmt::format(
      "BM_TEST_CAPTURED='{}' BM_PLUGIN_DIR=/nonexistent BM_CACHE=0 '{}' "
      "--gtest_filter=CapturedFile.AnotherProcessReplaysAtItsFirstCall > '{}' 2>&1",
      folder_, std::filesystem::canonical("/proc/self/exe").string(), file("log"));
  ASSERT_EQ(std::system(command.c_str()), 0) << std::ifstream(file("log")).rdbuf();
  std::ifstream in(file("result"));
  EXPECT_EQ(std::string((std::istreambuf_iterator<char>(in)), {}), text_of(calls));
}

TEST_F(CapturedFile, EveryOutputModeAndViewsComeBack) {
  for (const Outputs mode : {Outputs::kReuse, Outputs::kFresh, Outputs::kDonate}) {
    Jit step([](const Tensor& x, const Tensor& v) { return (x + v).flip({0}).contiguous(); },
             {.outputs = mode});
    const Tensor grid = Tensor::arange(32, DType::kF32).reshape({4, 8}).contiguous().realize();
    const auto x = [](float v) { return Tensor::full({4, 2}, v).contiguous().realize(); };
    const auto view = [&](int64_t c) { return grid.shrink({{0, 4}, {c, c + 2}}); };
    step.capture(x(1), view(3));
    step.core().program()->save(file("program"));
    const auto loaded = CapturedProgram::load(file("program"));
    for (int i = 0; i < 4; ++i) {
      const Floats want = (x(static_cast<float>(i)) + view(3)).flip({0}).data<float>();
      EXPECT_EQ(loaded->run({x(static_cast<float>(i)), view(3)})[0]->data<float>(), want) << i;
    }
    EXPECT_THROW(loaded->run({x(1), view(2)}), Exception) << "another view";
    EXPECT_THROW(loaded->run({x(1)}), Exception);
    EXPECT_THROW(loaded->run({of({1}), view(3)}), Exception);
  }
}

TEST_F(CapturedFile, DamageAnywhereIsNoticedBeforeAnythingRuns) {
  Jit step([](const Tensor& x) { return x * 3 + 1; });
  step.capture(of({1, 2, 3}));
  step.core().program()->save(file("program"));
  const std::vector<std::byte> good = read_all(file("program"));
  ASSERT_TRUE(parse_image(good));
  for (size_t at = 0; at < good.size(); at += 1 + good.size() / 300) {
    std::vector<std::byte> bad = good;
    bad[at] ^= std::byte{0x20};
    EXPECT_FALSE(parse_image(bad)) << at;
    EXPECT_FALSE(parse_image(std::span(good).first(at))) << at;
  }
  std::vector<std::byte> bad = good;
  bad.back() ^= std::byte{1};
  write_all(file("bad"), bad);
  try {
    CapturedProgram::load(file("bad"));
    FAIL() << "no exception";
  } catch (const Exception& e) {
    EXPECT_EQ(e.code(), Code::kCorrupt);
    EXPECT_NE(std::string(e.what()).find(file("bad")), std::string::npos) << e.what();
  }
}

TEST_F(CapturedFile, OneThatOthersCouldHaveWrittenIsRefused) {
  Jit step([](const Tensor& x) { return x * 3 + 1; });
  step.capture(of({1, 2, 3}));
  step.core().program()->save(file("program"));
  const auto expect_refused = [&](const std::string& path, std::string_view word) {
    try {
      CapturedProgram::load(path);
      ADD_FAILURE() << "no exception: " << path;
    } catch (const Exception& e) {
      EXPECT_NE(std::string_view(e.what()).find(word), std::string_view::npos) << e.what();
    }
  };
  using std::filesystem::perms;
  const auto add = std::filesystem::perm_options::add;
  std::filesystem::permissions(file("program"), perms::others_write, add);
  expect_refused(file("program"), "chmod o-w");
  // Saving over it makes it ours again.
  step.core().program()->save(file("program"));
  EXPECT_NO_THROW(CapturedProgram::load(file("program")));
  std::filesystem::create_symlink("program", file("link"));
  expect_refused(file("link"), "symbolic link");
  std::filesystem::permissions(folder_, perms::group_write, add);
  expect_refused(file("program"), "chmod g-w");
}

TEST_F(CapturedFile, OtherFormatsAndProcessorsAreRefusedByName) {
  Jit step([](const Tensor& x) { return x * 3 + 1; });
  step.capture(of({1, 2, 3}));
  step.core().program()->save(file("program"));
  const std::vector<std::byte> good = read_all(file("program"));
  std::vector<std::byte> later = good;
  later[8] = std::byte{99};
  const auto other = parse_image(later);
  ASSERT_FALSE(other);
  EXPECT_EQ(other.error().code, Code::kUnsupported);
  EXPECT_NE(other.error().message.find("99"), std::string::npos) << other.error().message;

  auto image = parse_image(good);
  ASSERT_TRUE(image);
  image->devices[0].arch.features += ",+quantum";
  write_all(file("features"), write_image(*image));
  image->devices[0].arch.name = "pdp11";
  write_all(file("arch"), write_image(*image));
  for (const auto& [name, word] : {std::pair("features", "quantum"), std::pair("arch", "pdp11")}) {
    try {
      CapturedProgram::load(file(name));
      ADD_FAILURE() << "no exception";
    } catch (const Exception& e) {
      EXPECT_EQ(e.code(), Code::kUnsupported);
      EXPECT_NE(std::string(e.what()).find(word), std::string::npos) << e.what();
    }
  }
}

TEST_F(CapturedFile, WhatCannotBeSavedSaysSo) {
  Jit step([](const Tensor& x) { return x + 1; });
  step.capture(Tensor::from<float>({1}, "REF"));
  EXPECT_THROW(step.core().program()->save(file("program")), Exception);
  EXPECT_FALSE(std::filesystem::exists(file("program")));
  Jit other([](const Tensor& x) { return x + 1; });
  other.capture(of({1}));
  EXPECT_THROW(other.core().program()->save("/nonexistent/program"), Exception);
  EXPECT_THROW(other.core().program()->save("/dev/null"), Exception);
}

}  // namespace
}  // namespace bm
