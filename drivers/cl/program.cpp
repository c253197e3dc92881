#include "drivers/cl/program.h"

#include <algorithm>
#include <charconv>
#include <cstring>

#include "runtime/base/byte_reader.h"
#include "runtime/base/out_of_memory.h"

namespace bm::cl {
namespace {

// Binary image: magic, length of the identity, identity, the driver's bytes. Text cannot begin so.
constexpr std::string_view kMagic =
    "\x7f"
    "BMCL001";
constexpr size_t kLogBytes = 16 << 10;

std::string_view text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}
bool is_binary(const hal::CodeObject& code) { return text_of(code.image).starts_with(kMagic); }

/// PoCL packs what lies in its own cache of kernels, which another process may be changing: a
/// binary without the program itself was seen, and clCreateProgramWithBinary of it ends the process
/// by an assertion.
Status check_whole(const std::string& kernel, std::span<const std::byte> binary) {
  const std::string_view text = text_of(binary);
  if (text.starts_with("poclbin") && text.find("/program.bc") == std::string_view::npos)
    return fail(Code::kUnsupported, "kernel '{}': PoCL's binary lacks the program", kernel);
  return {};
}

Result<std::span<const std::byte>> unwrap(const hal::CodeObject& code, std::string_view identity) {
  ByteReader in(code.image);
  BM_TRY(in.skip(kMagic.size()));
  const uint32_t length = BM_TRY(in.read<uint32_t>());
  const std::string_view made_by = BM_TRY(in.text(length));
  if (made_by != identity)
    return fail(Code::kInvalidArgument, "kernel '{}': binary of \"{}\", this is \"{}\"", code.entry,
                made_by, identity);
  return in.bytes(in.remaining());
}

}  // namespace

std::string quote_line(std::string_view log, std::string_view source) {
  for (size_t at = log.find(':'); at != std::string_view::npos; at = log.find(':', at + 1)) {
    size_t line = 0;
    const char* const begin = log.data() + at + 1;
    const char* const log_end = log.data() + log.size();
    const auto [end, problem] = std::from_chars(begin, log_end, line);
    const bool is_place = problem == std::errc() && end + 1 < log_end && *end == ':' &&
                          end[1] >= '0' && end[1] <= '9';
    if (!is_place || line == 0) continue;
    size_t start = 0;
    for (size_t i = 1; i < line && start != std::string_view::npos; ++i) {
      start = source.find('\n', start);
      if (start != std::string_view::npos) ++start;
    }
    if (start == std::string_view::npos || start >= source.size()) continue;
    return fmt::format("line {}: {}", line, source.substr(start, source.find('\n', start) - start));
  }
  return {};
}

Result<std::unique_ptr<ClProgram>> ClProgram::load(ContextPtr context,
                                                   const hal::CodeObject& code) {
  const hal::Arch& arch = context->info.arch;
  if (code.arch != arch.name)
    return fail(Code::kInvalidArgument, "kernel '{}' was made for '{}', this device is '{}'",
                code.entry, code.arch, arch.name);
  std::unique_ptr<ClProgram> program(new ClProgram(std::move(context), code));
  BM_TRY(program->build());
  BM_TRY(program->check_limits());
  return program;
}

Result<OwnedProgram> ClProgram::create() const {
  const Api& api = context_->api;
  cl_int error = CL_SUCCESS;
  cl_program program = nullptr;
  if (is_binary(code_)) {
    const auto bytes = BM_TRY(unwrap(code_, context_->info.identity));
    BM_TRY(check_whole(code_.entry, bytes));
    const auto* data = reinterpret_cast<const unsigned char*>(bytes.data());
    const size_t size = bytes.size();
    program = api.clCreateProgramWithBinary(context_->handle, 1, &context_->unit.device, &size,
                                            &data, nullptr, &error);
  } else {
    const char* text = reinterpret_cast<const char*>(code_.image.data());
    const size_t size = code_.image.size();
    program = api.clCreateProgramWithSource(context_->handle, 1, &text, &size, &error);
  }
  OwnedProgram owned(api, program);
  BM_TRY(check(error, fmt::format("kernel '{}'", code_.entry)));
  return owned;
}

Status ClProgram::build() {
  const Api& api = context_->api;
  program_ = BM_TRY(create());
  // PoCL's compiler throws std::bad_alloc through the call, the program's lock held: its release
  // would wait for ever.
  const EndsOutOfMemory ends("OpenCL compiler");
  cl_int error = api.clBuildProgram(program_.get(), 1, &context_->unit.device,
                                    context_->info.build_options.c_str(), nullptr, nullptr);
  if (error != CL_SUCCESS) return tl::unexpected<Error>(build_error(error));
  kernel_ = BM_TRY(new_kernel());
  return {};
}

Error ClProgram::build_error(cl_int error) const {
  const Api& api = context_->api;
  size_t bytes = 0;
  std::string log;
  if (api.clGetProgramBuildInfo(program_.get(), context_->unit.device, CL_PROGRAM_BUILD_LOG, 0,
                                nullptr, &bytes) == CL_SUCCESS) {
    log.resize(bytes);
    api.clGetProgramBuildInfo(program_.get(), context_->unit.device, CL_PROGRAM_BUILD_LOG, bytes,
                              log.data(), nullptr);
  }
  log.resize(std::min(log.find_last_not_of(std::string_view("\0\n ", 3)) + 1, kLogBytes));
  const std::string line = is_binary(code_) ? "" : quote_line(log, text_of(code_.image));
  // Only what a compiler says is a compile error; a build may also run out of memory.
  const Code code = code_of(error) == Code::kInvalidArgument ? Code::kCompile : code_of(error);
  return {code, fmt::format("kernel '{}' does not build for {} ({}){}{}\n{}", code_.entry,
                            context_->info.arch.cpu, error_name(error), line.empty() ? "" : "\n",
                            line, log)};
}

Result<OwnedKernel> ClProgram::new_kernel() const {
  cl_int error = CL_SUCCESS;
  OwnedKernel kernel(context_->api,
                     context_->api.clCreateKernel(program_.get(), code_.entry.c_str(), &error));
  BM_TRY(check(error, fmt::format("kernel '{}'", code_.entry)));
  return kernel;
}

Status ClProgram::check_limits() const {
  const Api& api = context_->api;
  const DeviceInfo& info = context_->info;
  const uint32_t wanted = code_.num_buffers + code_.num_vars;
  cl_uint arguments = 0;
  BM_TRY(check(
      api.clGetKernelInfo(kernel_.get(), CL_KERNEL_NUM_ARGS, sizeof arguments, &arguments, nullptr),
      "CL_KERNEL_NUM_ARGS"));
  if (arguments != wanted)
    return fail(Code::kInvalidArgument, "kernel '{}' takes {} arguments, its code object says {}",
                code_.entry, arguments, wanted);
  if (wanted * sizeof(uint64_t) > info.max_argument_bytes)
    return fail(Code::kUnsupported,
                "kernel '{}': {} arguments of 8 bytes exceed the limit of {} bytes", code_.entry,
                wanted, info.max_argument_bytes);
  const hal::Dim3 block = code_.block;
  size_t most_threads = info.arch.max_block;
  cl_ulong local_bytes = 0;
  const cl_device_id device = context_->unit.device;
  BM_TRY(check(api.clGetKernelWorkGroupInfo(kernel_.get(), device, CL_KERNEL_WORK_GROUP_SIZE,
                                            sizeof most_threads, &most_threads, nullptr),
               "CL_KERNEL_WORK_GROUP_SIZE"));
  BM_TRY(check(api.clGetKernelWorkGroupInfo(kernel_.get(), device, CL_KERNEL_LOCAL_MEM_SIZE,
                                            sizeof local_bytes, &local_bytes, nullptr),
               "CL_KERNEL_LOCAL_MEM_SIZE"));
  const uint64_t threads = uint64_t{block.x} * block.y * block.z;
  if (threads == 0 || threads > most_threads || block.x > info.max_block[0] ||
      block.y > info.max_block[1] || block.z > info.max_block[2])
    return fail(Code::kInvalidArgument,
                "kernel '{}': blocks of {} x {} x {} threads; at most {} threads, {} x {} x {}",
                code_.entry, block.x, block.y, block.z, most_threads, info.max_block[0],
                info.max_block[1], info.max_block[2]);
  local_bytes = std::max<cl_ulong>(local_bytes, code_.shared_memory_bytes);
  if (local_bytes > info.arch.shared_memory_bytes)
    return fail(Code::kUnsupported, "kernel '{}' needs {} bytes of local memory, the device has {}",
                code_.entry, local_bytes, info.arch.shared_memory_bytes);
  return {};
}

Result<std::vector<std::byte>> ClProgram::raw_binary() const {
  const Api& api = context_->api;
  size_t bytes = 0;  // the context has one device
  BM_TRY(check(
      api.clGetProgramInfo(program_.get(), CL_PROGRAM_BINARY_SIZES, sizeof bytes, &bytes, nullptr),
      "CL_PROGRAM_BINARY_SIZES"));
  if (bytes == 0)
    return fail(Code::kUnsupported, "kernel '{}': the driver gives no binary", code_.entry);
  std::vector<std::byte> binary(bytes);
  auto* data = reinterpret_cast<unsigned char*>(binary.data());
  BM_TRY(check(api.clGetProgramInfo(program_.get(), CL_PROGRAM_BINARIES, sizeof data,
                                    static_cast<void*>(&data), nullptr),
               "CL_PROGRAM_BINARIES"));
  BM_TRY(check_whole(code_.entry, binary));
  return binary;
}

Result<std::vector<std::byte>> ClProgram::binary() const {
  const std::vector<std::byte> raw = BM_TRY(raw_binary());
  const std::string& identity = context_->info.identity;
  const auto length = static_cast<uint32_t>(identity.size());
  std::vector<std::byte> image;
  const auto append = [&image](const void* data, size_t bytes) {
    const auto* begin = static_cast<const std::byte*>(data);
    image.insert(image.end(), begin, begin + bytes);
  };
  append(kMagic.data(), kMagic.size());
  append(&length, sizeof length);
  append(identity.data(), identity.size());
  append(raw.data(), raw.size());
  return image;
}

}  // namespace bm::cl
