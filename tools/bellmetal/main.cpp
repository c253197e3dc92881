#include "tools/bellmetal/commands.h"
#include "tools/bellmetal/interrupt.h"
#include "tools/bellmetal/output.h"

int main(int argc, char** argv) {
  bm::cli::keep_standard_streams();
  const int code = bm::cli::run_command_line(argc, argv);
  bm::cli::bound_exit();
  return bm::cli::finish_output(code);
}
