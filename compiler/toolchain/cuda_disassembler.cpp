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
      if (auto found = find_program(folder + name)) return Tool{*found, option};
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
  const WorkFolder folder = BM_TRY(WorkFolder::create({"k.cubin", "log"}));
  BM_TRY(write_file(folder.file("k.cubin"), as_text(image)));
  const int status =
      BM_TRY(run_program({tool.program, tool.option, folder.file("k.cubin")}, folder.file("log")));
  const std::string text = as_text(BM_TRY(read_file(folder.file("log"))));
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
    return fail(Code::kCompile, "{}: {}", tool.program, text);
  return text;
}

}  // namespace bm::compiler
