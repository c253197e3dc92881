#include "compiler/toolchain/cuda_disassembler.h"

#include <sys/wait.h>

#include <array>
#include <cstring>

#include "compiler/toolchain/process.h"
#include "runtime/base/env.h"

namespace bm::compiler {
namespace {

struct Tool {
  std::string program;
  const char* option;
};

Result<Tool> find_tool() {
  static constexpr std::array<std::pair<const char*, const char*>, 2> kTools = {
      {{"nvdisasm", "-c"}, {"cuobjdump", "-sass"}}};
  std::vector<std::string> folders;
  if (const std::string& root = settings().cuda_path; !root.empty())
    folders.push_back(root + "/bin/");
  folders.insert(folders.end(), {"/usr/local/cuda/bin/", ""});
  for (const auto& [name, option] : kTools)
    for (const std::string& folder : folders)
      if (auto found = find_program(folder + name))
        return Tool{*found, option};
      else if (found.error().code != Code::kNotFound)
        return tl::unexpected<Error>(std::move(found.error()));
  return fail(Code::kNotFound,
              "neither nvdisasm nor cuobjdump in CUDA_PATH, /usr/local/cuda/bin and PATH; install "
              "the CUDA toolkit's cuda-nvdisasm package");
}

}  // namespace

Result<std::string> cuda_disassemble(std::span<const std::byte> image) {
  const bool is_elf = image.size() >= 4 && std::memcmp(image.data(), "\177ELF", 4) == 0;
  if (!is_elf) {
    const std::string text = as_text(image);
    return text.substr(0, text.find('\0'));
  }
  const Tool tool = BM_TRY(find_tool());
  const MemoryFile cubin = BM_TRY(MemoryFile::create("k.cubin", image));
  const MemoryFile log = BM_TRY(MemoryFile::create("disassembly"));
  const int status = BM_TRY(run_program({tool.program, tool.option, kThird},
                                        {.output = log, .errors = log, .third = &cubin}));
  const std::string text = as_text(BM_TRY(log.contents()));
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
    return fail(Code::kCompile, "{}: {}", tool.program, text);
  return text;
}

}  // namespace bm::compiler
