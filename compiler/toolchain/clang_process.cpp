// clang as a process.
#include <sys/resource.h>
#include <sys/wait.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <sstream>

#include "compiler/toolchain/process.h"
#include "compiler/toolchain/quote_line.h"
#include "compiler/toolchain/toolchain.h"
#include "runtime/base/elf.h"
#include "runtime/base/env.h"

namespace bm::compiler {
namespace {

/// Clang's name for what it reads from stdin.
constexpr std::string_view kSourceName = "<stdin>:";

Result<std::string> find_clang() {
  if (const std::string& wanted = settings().clang; !wanted.empty()) return find_program(wanted);
  for (const char* name : {"clang-22", "clang-19", "clang"})
    if (auto found = find_program(name); found || found.error().code != Code::kNotFound)
      return found;
  return fail(
      Code::kNotFound,
      "no clang in PATH (tried clang-22, clang-19, clang); install clang-19 or set BM_CLANG");
}

Result<std::string> ask_version(const std::string& program) {
  const MemoryFile log = BM_TRY(MemoryFile::create("clang log"));
  BM_TRY(run_program({program, "--version"}, {.output = log, .errors = log}));
  const std::string text = as_text(BM_TRY(log.contents()));
  return text.substr(0, text.find('\n'));
}

std::vector<std::string> command(const std::string& program, const TargetInfo& target) {
  std::vector<std::string> args = {
      program, "--target=" + target.triple, "-x", "c", "-std=gnu11", "-O2", "-c", "-fPIC",
      "-ffreestanding", "-w",
      // Numerics and code shape were decided before: nothing may be contracted, reordered or
      // widened.
      "-fno-math-errno", "-ffp-contract=off", "-fno-vectorize", "-fno-slp-vectorize", "-fwrapv",
      "-fno-strict-aliasing", "-fno-stack-protector", "-fno-asynchronous-unwind-tables",
      "-fno-ident",
      // It would leave files about its own faults in the folder of temporary files.
      "-fno-crash-diagnostics", "-mprefer-vector-width=512", "-Xclang", "-target-cpu", "-Xclang",
      target.cpu};
  // Entries that are called through pointers start with endbr64, as the program's own do.
  if (target.triple.starts_with("x86_64")) args.emplace_back("-fcf-protection=branch");
  std::istringstream features(target.features);
  for (std::string f; std::getline(features, f, ',');) {
    if (f.empty() || f == "-prefer-256-bit") continue;
    args.insert(args.end(), {"-Xclang", "-target-feature", "-Xclang", f});
  }
  if (settings().checked)
    args.insert(args.end(), {"-fsanitize=undefined,float-cast-overflow,integer-divide-by-zero",
                             "-fno-sanitize=function", "-fsanitize-trap=all"});
  args.insert(args.end(), {"-o", "-", "-"});
  return args;
}

/// A virtual folder with a file "-" for each source, as that of stdin is called in an object: no
/// byte of it tells how it was made.
std::string source_path(size_t i) { return fmt::format("/bellmetal/{}/-", i); }
std::string overlay(std::span<const MemoryFile> sources) {
  std::string text = R"({"version": 0, "use-external-names": false, "roots": [)";
  for (size_t i = 0; i < sources.size(); ++i)
    text += fmt::format(R"({}{{"name": "{}", "type": "file", "external-contents": "{}"}})",
                        i == 0 ? "" : ", ", source_path(i), sources[i].name());
  return text + "]}";
}

/// Length of the object that `bytes` begins with: LLVM writes the section headers last. 0: none.
uint64_t object_bytes(std::span<const std::byte> bytes) {
  constexpr size_t kHeaderBytes = 64, kSectionsAt = 40, kEntryBytesAt = 58;
  if (bytes.size() < kHeaderBytes) return 0;
  uint64_t sections = 0;
  std::array<uint16_t, 2> entries{};  // bytes of one, number
  std::memcpy(&sections, bytes.data() + kSectionsAt, sizeof sections);
  std::memcpy(entries.data(), bytes.data() + kEntryBytesAt, sizeof entries);
  const uint64_t length = sections + uint64_t{entries[0]} * entries[1];
  return sections < bytes.size() && length <= bytes.size() ? length : 0;
}

bool has_code(std::span<const std::byte> object) {
  const auto file = elf::File::parse(object);
  return file && std::ranges::any_of(file->symbols(), [](const elf::Symbol& s) {
           return s.type == elf::SymbolType::kFunction && s.is_defined();
         });
}

/// The objects of all sources and, behind them, of an empty one: so their order is known.
std::vector<std::vector<std::byte>> split_objects(std::span<const std::byte> all) {
  std::vector<std::vector<std::byte>> objects;
  while (const uint64_t length = object_bytes(all)) {
    objects.emplace_back(all.begin(), all.begin() + static_cast<int64_t>(length));
    if (!elf::File::parse(objects.back())) return {};
    all = all.subspan(length);
  }
  if (!all.empty() || objects.empty() || has_code(objects.back())) return {};
  objects.pop_back();
  return std::ranges::all_of(objects, has_code) ? std::move(objects)
                                                : std::vector<std::vector<std::byte>>{};
}

/// First error of a log with the source line it points at.
std::string describe_log(const std::string& log, std::string_view source) {
  const size_t at = log.find(kSourceName);
  if (at == std::string::npos) return log;
  return quote_line(log, std::atoi(log.c_str() + at + kSourceName.size()), source);
}

/// What ended a compiler, and the remedy where it is known: with little stack clang dies without a
/// word (19.1.7 under 64 KiB).
std::string describe_signal(int signal) {
  constexpr rlim_t kEnoughStack = rlim_t{1} << 20;
  const char* const name = sigabbrev_np(signal);
  std::string text = fmt::format("signal {}{}{}", signal, name == nullptr ? "" : " SIG",
                                 name == nullptr ? "" : name);
  rlimit limit{};
  if (signal == SIGSEGV && ::getrlimit(RLIMIT_STACK, &limit) == 0 && limit.rlim_cur < kEnoughStack)
    text += fmt::format(" under a stack limit of {} KiB: raise it (ulimit -s 8192)",
                        limit.rlim_cur / 1024);
  return text;
}

}  // namespace

Result<std::string> clang_version() {
  // One answer per process: the program does not change under us.
  static const Result<std::string> known = []() -> Result<std::string> {
    const std::string program = BM_TRY(find_clang());
    return program + " " + BM_TRY(ask_version(program));
  }();
  return known;
}

Result<std::vector<std::byte>> clang_compile(std::string_view source, const TargetInfo& target) {
  const std::string program = BM_TRY(find_clang());
  const MemoryFile input = BM_TRY(MemoryFile::create("k.c", std::as_bytes(std::span(source))));
  const MemoryFile object = BM_TRY(MemoryFile::create("k.o"));
  const MemoryFile log = BM_TRY(MemoryFile::create("clang log"));
  const int status = BM_TRY(
      run_program(command(program, target), {.output = object, .errors = log, .input = &input}));
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
    const std::string text = as_text(BM_TRY(log.contents()));
    if (WIFSIGNALED(status))
      return fail(Code::kCompile, "{} died of {}{}{}", program, describe_signal(WTERMSIG(status)),
                  text.empty() ? "" : ": ", text);
    return fail(Code::kCompile, "{}: {}", program, describe_log(text, source));
  }
  return object.contents();
}

Result<std::vector<std::vector<std::byte>>> clang_compile_all(std::span<const std::string> sources,
                                                              const TargetInfo& target) {
  const std::string program = BM_TRY(find_clang());
  std::vector<std::string> args = command(program, target);
  std::vector<MemoryFile> files;
  for (const std::string& source : sources) {
    // The driver would start a process for each; what it hands on is all compiled by one.
    args.insert(args.end(), {"-Xclang", source_path(files.size())});
    files.push_back(BM_TRY(MemoryFile::create("k.c", std::as_bytes(std::span(source)))));
  }
  const std::string text = overlay(files);
  const MemoryFile layer = BM_TRY(MemoryFile::create("files", std::as_bytes(std::span(text))));
  args.insert(args.end(), {"-ivfsoverlay", kThird});
  const MemoryFile log = BM_TRY(MemoryFile::create("clang log"));
  // Into a file LLVM would write every header where the first object's is.
  std::vector<std::byte> stream;
  const int status = BM_TRY(run_program(
      args, {.output = log, .errors = log, .third = &layer, .named = files, .stream = &stream}));
  std::vector<std::vector<std::byte>> objects = split_objects(stream);
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0 || objects.size() != sources.size())
    return fail(Code::kCompile, "{} made {} objects of {} sources: {}", program, objects.size(),
                sources.size(), as_text(BM_TRY(log.contents())));
  return objects;
}

}  // namespace bm::compiler
