#include "tools/bellmetal/commands.h"

int main(int argc, char** argv) { return bm::cli::run_command_line(argc, argv); }
