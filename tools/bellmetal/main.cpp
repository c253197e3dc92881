#include "tools/bellmetal/commands.h"
#include "tools/bellmetal/output.h"

int main(int argc, char** argv) {
  bm::cli::keep_standard_streams();
  return bm::cli::finish_output(bm::cli::run_command_line(argc, argv));
}
