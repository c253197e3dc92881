#include "tools/bellmetal/commands.h"
#include "tools/bellmetal/interrupt.h"
#include "tools/bellmetal/output.h"
#include "tools/bellmetal/process_setup.h"

int main(int argc, char** argv) {
  bm::cli::keep_standard_streams();
  if (argc > 1) bm::cli::name_command(argv[1]);
  const int code = bm::cli::run_on_large_stack(bm::cli::run_command_line, argc, argv);
  bm::cli::bound_exit();
  return bm::cli::finish_output(code);
}
