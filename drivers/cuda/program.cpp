#include "drivers/cuda/program.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cstring>

#include "runtime/base/elf.h"
#include "runtime/base/log.h"
#include "runtime/base/paired_image.h"

namespace bm::cuda {
namespace {

constexpr size_t kLogBytes = 16 << 10;

bool is_cubin(std::span<const std::byte> image) {
  return image.size() >= 4 && std::memcmp(image.data(),
                                          "\x7f"
                                          "ELF",
                                          4) == 0;
}

/// The driver is told no size: what it will read must lie inside.
Status check_image(const hal::CodeObject& code) {
  if (!is_cubin(code.image)) {
    if (code.image.empty())
      return fail(Code::kInvalidArgument, "kernel '{}' has no image", code.entry);
    return {};
  }
  auto parsed = elf::File::parse(split_image(code.image).code);
  if (!parsed)
    return tl::unexpected(std::move(parsed.error()).within(fmt::format("kernel '{}'", code.entry)));
  if (parsed->machine() == elf::kMachineCuda) return {};
  return fail(Code::kInvalidArgument, "kernel '{}': an ELF file of machine {}, not a cubin",
              code.entry, parsed->machine());
}

/// PTX without its comments.
std::string without_comments(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    const size_t begin = text.find('/');
    out += text.substr(0, begin);
    if (begin == text.npos) break;
    text.remove_prefix(begin);
    const bool is_line = text.starts_with("//");
    if (!is_line && !text.starts_with("/*")) {
      out += '/';
      text.remove_prefix(1);
      continue;
    }
    const size_t end = is_line ? text.find('\n') : text.find("*/", 2);
    text.remove_prefix(end == text.npos ? text.size() : end + (is_line ? 0 : 2));
    out += ' ';
  }
  return out;
}

bool is_name(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '$';
}

}  // namespace

bool has_grid_wait(std::string_view text, std::string_view kernel) {
  constexpr std::string_view kEntry = ".entry", kWait = "griddepcontrol.wait";
  const std::string plain = without_comments(text);
  for (size_t at = plain.find(kEntry); at != plain.npos; at = plain.find(kEntry, at)) {
    at += kEntry.size();
    const size_t name = plain.find_first_not_of(" \t\r\n", at);
    const std::string_view rest = std::string_view(plain).substr(std::min(name, plain.size()));
    const bool is_it =
        rest.starts_with(kernel) && (rest.size() == kernel.size() || !is_name(rest[kernel.size()]));
    if (!is_it) continue;
    // Its body ends where the next function begins.
    const size_t end = std::min(rest.find(kEntry), rest.find(".func"));
    return rest.substr(0, end).find(kWait) != rest.npos;
  }
  return false;
}

Result<std::unique_ptr<CudaProgram>> CudaProgram::load(ContextPtr context,
                                                       const hal::CodeObject& code) {
  const hal::Arch& arch = context->info.arch;
  if (code.arch != arch.name)
    return fail(Code::kInvalidArgument, "kernel '{}' was made for '{}', this device is '{}'",
                code.entry, code.arch, arch.name);
  BM_TRY(check_image(code));
  const Current current(*context);
  std::unique_ptr<CudaProgram> program(new CudaProgram(std::move(context), code));
  BM_TRY(program->load_module());
  BM_TRY(program->check_arguments());
  BM_TRY(program->check_limits());
  BM_TRY(program->plan_shared());
  program->plan_early_start();
  return program;
}

CudaProgram::~CudaProgram() {
  if (module_ == nullptr) return;
  const Current current(*context_);
  context_->give_back(
      [context = context_.get(), module = module_] { context->api.cuModuleUnload(module); });
}

Status CudaProgram::load_module() {
  const Api& api = context_->api;
  const bool is_text = !is_cubin(code_.image);
  // Text ends where a zero is, and the program's own copy of it may.
  if (is_text && code_.image.back() != std::byte{0}) code_.image.push_back(std::byte{0});
  Status loaded = load_image(code_.image.data(), is_text);
  const PairedImage pair = split_image(code_.image);
  if (!loaded && !pair.text.empty() && !context_->health.is_bad() &&
      loaded.error().code != Code::kOutOfMemory) {
    log("cuda", LogLevel::kInfo, "{}; its PTX is loaded instead", loaded.error().message);
    loaded = load_image(reinterpret_cast<const std::byte*>(pair.text.data()), true);
  }
  BM_TRY(std::move(loaded));
  const CuResult error = api.cuModuleGetFunction(&function_, module_, code_.entry.c_str());
  if (error == kErrorNotFound)
    return fail(Code::kInvalidArgument, "the image has no kernel '{}'", code_.entry);
  return context_->done(error, fmt::format("kernel '{}'", code_.entry));
}

Status CudaProgram::load_image(const std::byte* image, bool is_text) {
  const Api& api = context_->api;
  std::string log;
  CuResult error = kSuccess;
  if (api.cuModuleLoadDataEx != nullptr) {
    log.resize(kLogBytes);
    std::array<int, 2> options{kJitErrorLog, kJitErrorLogBytes};
    // Numbers are passed as if they were pointers.
    std::array<void*, 2> values{log.data(), reinterpret_cast<void*>(uintptr_t{kLogBytes})};
    error = api.cuModuleLoadDataEx(&module_, image, options.size(), options.data(), values.data());
    log.resize(std::min(log.find('\0'), log.size()));
  } else {
    error = api.cuModuleLoadData(&module_, image);
  }
  if (error == kSuccess) return {};
  module_ = nullptr;
  Status failed = context_->failed(
      error, fmt::format("kernel '{}' ({}) does not load", code_.entry, is_text ? "PTX" : "cubin"));
  // Whatever else it may be, an image the driver does not take has not been compiled well.
  if (failed.error().code == Code::kInvalidArgument) failed.error().code = Code::kCompile;
  if (!log.empty()) failed.error().message += "\n" + log;
  return failed;
}

/// Since CUDA 12.4 the driver tells the parameters.
Status CudaProgram::check_arguments() const {
  const Api& api = context_->api;
  if (api.cuFuncGetParamInfo == nullptr) return {};
  const uint32_t wanted = argument_words();
  uint32_t count = 0;
  size_t offset = 0, bytes = 0;
  while (count <= wanted && api.cuFuncGetParamInfo(function_, count, &offset, &bytes) == kSuccess) {
    if (offset != count * sizeof(uint64_t) || bytes != sizeof(uint64_t))
      return fail(Code::kInvalidArgument,
                  "kernel '{}': argument {} is {} bytes at {}, not a word of 8 at {}", code_.entry,
                  count, bytes, offset, count * sizeof(uint64_t));
    ++count;
  }
  if (count == wanted) return {};
  return fail(Code::kInvalidArgument, "kernel '{}' takes {}{} arguments, its code object says {}",
              code_.entry, count > wanted ? "more than " : "", count > wanted ? wanted : count,
              wanted);
}

Status CudaProgram::check_limits() const {
  const Api& api = context_->api;
  const DeviceInfo& info = context_->info;
  const auto ask = [&](FunctionAttribute what, int& value) {
    return context_->done(api.cuFuncGetAttribute(&value, what, function_), "cuFuncGetAttribute");
  };
  int most_threads = 0, registers = 0;
  BM_TRY(ask(kFuncMaxThreads, most_threads));
  BM_TRY(ask(kFuncRegisters, registers));
  const hal::Dim3 block = code_.block;
  const uint64_t threads = uint64_t{block.x} * block.y * block.z;
  if (threads == 0 || block.x > info.max_block[0] || block.y > info.max_block[1] ||
      block.z > info.max_block[2])
    return fail(Code::kInvalidArgument,
                "kernel '{}': blocks of {} x {} x {} threads; at most {} x {} x {}", code_.entry,
                block.x, block.y, block.z, info.max_block[0], info.max_block[1], info.max_block[2]);
  if (threads > static_cast<uint64_t>(most_threads))
    return fail(Code::kInvalidArgument,
                "kernel '{}': blocks of {} threads; with its {} registers a thread at most {}",
                code_.entry, threads, registers, most_threads);
  return {};
}

/// What a kernel declares itself has a lower limit than what its launches ask for.
Status CudaProgram::plan_shared() {
  const Api& api = context_->api;
  const DeviceInfo& info = context_->info;
  const auto refuse = [&](uint64_t bytes, uint32_t limit) {
    return fail(Code::kUnsupported, "kernel '{}' needs {} bytes of shared memory, the limit is {}",
                code_.entry, bytes, limit);
  };
  int declared = 0;
  BM_TRY(context_->done(api.cuFuncGetAttribute(&declared, kFuncSharedBytes, function_),
                        "cuFuncGetAttribute"));
  const uint32_t own = std::max(static_cast<uint32_t>(declared), code_.shared_memory_bytes);
  if (own > info.arch.shared_memory_bytes) return refuse(own, info.arch.shared_memory_bytes);
  if (code_.launch_memory_bytes == 0) return {};
  const uint64_t all = uint64_t{own} + code_.launch_memory_bytes;
  if (all > info.launch_shared_bytes) return refuse(all, info.launch_shared_bytes);
  launch_shared_bytes_ = code_.launch_memory_bytes;
  return context_->done(
      api.cuFuncSetAttribute(function_, kFuncDynamicShared, static_cast<int>(launch_shared_bytes_)),
      "cuFuncSetAttribute");
}

/// Of machine code nothing tells, so it is launched behind its predecessor as ever.
void CudaProgram::plan_early_start() {
  constexpr uint32_t kFirstCapability = 90;
  if (context_->info.capability < kFirstCapability || context_->api.cuLaunchKernelEx == nullptr ||
      is_cubin(code_.image))
    return;
  const std::string_view text(reinterpret_cast<const char*>(code_.image.data()),
                              code_.image.size());
  waits_for_grid_ = has_grid_wait(text, code_.entry);
}

Status CudaProgram::check_grid(hal::Dim3 grid) const {
  const std::array<uint32_t, 3>& most = context_->info.max_grid;
  const std::array<uint32_t, 3> wanted{grid.x, grid.y, grid.z};
  for (size_t axis = 0; axis < 3; ++axis)
    if (wanted[axis] > most[axis])
      return fail(Code::kInvalidArgument, "kernel '{}': {} blocks along {}, at most {}",
                  code_.entry, wanted[axis], "xyz"[axis], most[axis]);
  return {};
}

}  // namespace bm::cuda
