// How a process ends where memory runs out and nothing can be unwound.

#include "tools/bellmetal/process_setup.h"

#include <gtest/gtest.h>

#include <csignal>
#include <exception>
#include <new>
#include <stdexcept>

#include "runtime/base/out_of_memory.h"

namespace bm::cli {
namespace {

/// What the program's operator new does (program_memory.cpp).
[[noreturn]] void run_out() {
  note_failed_allocation(4711);
  throw std::bad_alloc();
}

struct RunsOutAtItsEnd {
  ~RunsOutAtItsEnd() { run_out(); }
};

/// What g++ makes of a destructor that throws and that it has put inline.
struct TerminatesAtItsEnd {
  ~TerminatesAtItsEnd() { std::terminate(); }
};

TEST(ProcessSetup, MemoryThatRunsOutInADestructorIsALineAndCode1) {
  EXPECT_EXIT(
      {
        set_up_process();
        name_command("trying");
        const RunsOutAtItsEnd late;
      },
      testing::ExitedWithCode(1), "bellmetal: out of memory: trying, 4711 bytes");
}

TEST(ProcessSetup, AlsoWhereNobodyHasCaughtTheException) {
  EXPECT_EXIT(
      {
        set_up_process();
        name_command("trying");
        const TerminatesAtItsEnd late;
        run_out();
      },
      testing::ExitedWithCode(1), "bellmetal: out of memory: trying, 4711 bytes");
}

[[noreturn]] void make_a_mistake(const char* what) { throw std::logic_error(what); }

TEST(ProcessSetup, OtherExceptionsAreMistakesOfOurs) {
  struct Throws {
    ~Throws() { make_a_mistake("what it is"); }
  };
  EXPECT_EXIT(
      {
        set_up_process();
        const Throws late;
      },
      testing::KilledBySignal(SIGABRT), "internal error: what it is");
  EXPECT_EXIT(
      {
        note_failed_allocation(0);
        set_up_process();
        const TerminatesAtItsEnd late;
        make_a_mistake("told by nobody");
      },
      testing::KilledBySignal(SIGABRT), "");
}

}  // namespace
}  // namespace bm::cli
