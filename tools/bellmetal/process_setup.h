#pragma once
// What the program sets up for its process: ends that say why, and a stack to work on.

namespace bm::cli {

/// Exhausted memory where nothing can be unwound, a stack that is too small and files beyond
/// `ulimit -f` end in a line on stderr or an error of the call instead of a signal. Once, before
/// there are threads.
void set_up_process();
/// What such a line names; outlives the process.
void name_command(const char* command);

/// main_function(argc, argv) on a stack of 8 MiB or more, whatever `ulimit -s` says.
int run_on_large_stack(int (*main_function)(int, const char* const*), int argc,
                       const char* const* argv);

}  // namespace bm::cli
