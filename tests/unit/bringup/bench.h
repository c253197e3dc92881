#pragma once
// A modelled card behind a socket of this process, and commands that go to it.

#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include <CLI/CLI.hpp>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/sim/pci/remote.h"
#include "tests/unit/amd_am/rig.h"
#include "tools/bellmetal/commands.h"
#include "tools/bellmetal/exit_code.h"

namespace bm::test {

struct Outcome {
  int exit = -1;
  std::string out, err;
  nlohmann::json json() const { return nlohmann::json::parse(out, nullptr, false); }
};

/// As `bellmetal WORDS…`, with the bench's commands alone.
inline Outcome run_command(const std::vector<std::string>& words) {
  std::vector<const char*> arguments = {"bellmetal"};
  for (const std::string& word : words) arguments.push_back(word.c_str());
  CLI::App app("", "bellmetal");
  app.require_subcommand(1);
  cli::Run run;
  cli::add_gpu(app, run);
  cli::add_doctor(app, run);
  testing::internal::CaptureStdout();
  testing::internal::CaptureStderr();
  Outcome outcome;
  try {
    app.parse(static_cast<int>(arguments.size()), arguments.data());
    outcome.exit = run();
  } catch (const CLI::ParseError& error) {
    outcome.exit = app.exit(error) == 0 ? cli::kOk : cli::kUsage;
  }
  outcome.out = testing::internal::GetCapturedStdout();
  outcome.err = testing::internal::GetCapturedStderr();
  return outcome;
}

/// Serves the card of a rig, one client after another, until it ends.
class Bench {
 public:
  explicit Bench(const sim::amd::ChipOptions& options = {}) : rig(options) {
    std::string name = "/tmp/bringup-XXXXXX";
    folder_ = mkdtemp(name.data());
    // As the machine's firmware leaves a card.
    const sim::amd::ChipFunction as_started(rig.card);
    uint16_t port = 0;
    listener_ = sim::listen_at(socket_path(), &port);
    EXPECT_GE(listener_, 0) << socket_path();
    server_ = std::thread([this] {
      for (;;) {
        const int client = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
        if (client < 0) return;
        sim::RemoteServer(*rig.card).serve(client);
        close(client);
      }
    });
  }
  ~Bench() {
    shutdown(listener_, SHUT_RDWR);
    server_.join();
    close(listener_);
    std::filesystem::remove_all(folder_);
  }
  Bench(const Bench&) = delete;
  Bench& operator=(const Bench&) = delete;

  std::string file(const std::string& name) const { return folder_ + "/" + name; }
  std::string selector() const { return "remote:" + socket_path(); }

  /// `bellmetal gpu WORDS…` with the card and its firmware.
  Outcome gpu(std::vector<std::string> words) const {
    words.insert(words.begin(), "gpu");
    for (const std::string& word :
         {std::string("--pci"), selector(), std::string("--firmware-dir"), rig.folder.path()})
      words.push_back(word);
    return run_command(words);
  }

  CardRig rig;

 private:
  std::string socket_path() const { return folder_ + "/card.sock"; }

  std::string folder_;
  int listener_ = -1;
  std::thread server_;
};

}  // namespace bm::test
