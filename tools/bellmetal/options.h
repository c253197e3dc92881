#pragma once
// What the larger commands were asked to do: filled by cmd_*.cpp, acted on by run_*.cpp.

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace bm::cli {

/// A model and where it runs.
struct ModelOptions {
  std::string path;                ///< of a GGUF file
  uint32_t context = 0;            ///< positions; 0: the model's, at most 4096
  std::string cache_type = "f16";  ///< of keys and values: f16, int8, f32
  std::string device;              ///< empty: DEV or the first usable one; several divide the model
  uint32_t stages = 1;        ///< processes that divide the model; this one has the first blocks
  uint32_t threads = 0;       ///< of the CPU device; 0: BM_THREADS or all
  std::string bundle;         ///< of `bellmetal bake`; empty: BM_BUNDLE or none
  bool keep_weights = false;  ///< BM_KEEP_WEIGHTS does the same
  bool json = false;          ///< also how errors are told
};

/// How tokens are chosen and when the text ends; see models/sampler.h.
struct SamplingOptions {
  /// Those of the command line by their long names: the model's file has a say in the others.
  std::set<std::string> given;
  float temperature = 0;  ///< 0: always the most likely token
  uint32_t top_k = 0;     ///< 0: all
  float top_p = 1;
  float min_p = 0;
  float typical_p = 1;
  float top_n_sigma = 0;  ///< 0: all
  float dynatemp_range = 0, dynatemp_exponent = 1;
  float xtc_probability = 0, xtc_threshold = 0.1f;
  float dry_multiplier = 0, dry_base = 1.75f;
  uint32_t dry_allowed_length = 2;
  int64_t dry_last_n = -1;                ///< −1: all
  std::vector<std::string> dry_breakers;  ///< empty: the usual ones; "none"
  float repeat_penalty = 1;
  uint32_t repeat_window = 64;
  float frequency_penalty = 0;
  float presence_penalty = 0;
  uint32_t mirostat = 0;  ///< 1 or 2; 0: off
  float mirostat_tau = 5;
  float mirostat_eta = 0.1f;
  std::vector<std::string> logit_bias;  ///< "15043+1.5", "15043-inf"
  std::optional<uint64_t> seed;         ///< empty: BM_SEED or 0
  int64_t max_tokens = 128;             ///< −1: until the context is full
  std::vector<std::string> stop;        ///< the text ends before these
  std::string grammar, grammar_file;    ///< GBNF
  std::string json_schema, json_schema_file;
  std::optional<uint32_t> logprobs;  ///< so many likeliest tokens beside each one chosen
};

/// Writes tokens until max_tokens, an end-of-text token, a stop string or Ctrl-C.
struct GenerateOptions {
  ModelOptions model;
  SamplingOptions sampling;
  std::string prompt;       ///< "-": stdin
  std::string prompt_file;  ///< in place of it
  bool is_split = false;    ///< by layers over the ranks of mpirun
};

/// A conversation: on a terminal with line editing, else a message per line of stdin.
struct ChatOptions {
  ModelOptions model;
  SamplingOptions sampling;
  std::string system;
  std::string template_file;    ///< empty: the template in the model file
  std::string variables;        ///< JSON object for the template; empty: none
  bool is_whole_input = false;  ///< all of stdin is one message
};

/// Serves models over HTTP until SIGTERM or Ctrl-C.
struct ServeOptions {
  std::vector<std::string> models;  ///< paths of GGUF files, or NAME=PATH
  std::string listen = "127.0.0.1:8080";
  std::string api_key_file;
  bool allows_anyone = false;
  std::vector<std::string> cors_origins;  ///< of pages that may ask; "*": any
  uint32_t sequences = 8;
  uint32_t context = 0;    ///< 0: min(model's, 4096)
  uint32_t cache_mib = 0;  ///< 0: a context for every sequence
  std::string cache_type = "f16";
  bool has_no_prefix_cache = false;
  uint32_t draft_tokens = 0;
  std::string draft_model;
  uint32_t prompt_piece = 64;
  uint32_t queue = 128;
  uint32_t body_mib = 32;
  uint32_t connections = 256;
  uint32_t idle_seconds = 30;
  uint32_t drain_seconds = 30;
  uint32_t idle_unload_seconds = 0;  ///< 0: never
  std::string chat_template;
  bool has_no_access_log = false;
  std::string device;
  uint32_t threads = 0;
  bool json = false;
};

/// This server beside others, with streams of several clients.
struct ServeBenchOptions {
  std::string model;               ///< empty: one of random weights
  std::string format = "Q4_0";     ///< of the random one
  std::vector<std::string> peers;  ///< NAME=PATH of programs with llama-server's options
  std::vector<uint32_t> clients{1, 4, 8, 16};
  uint32_t prompt_tokens = 100, tokens = 64;
  uint32_t rounds = 2;  ///< requests of a client in one turn
  uint32_t turns = 3;   ///< of the servers
  std::string device;
  uint32_t threads = 0;  ///< 0: all
  bool json = false;
};

enum class BenchSuite { kReplay, kOverhead, kLatency, kBandwidth, kMatmul };
struct BenchOptions {
  BenchSuite suite = BenchSuite::kReplay;
  std::string device;
  bool json = false;
  uint32_t mib = 256;   ///< bandwidth: size of the large copies
  uint32_t size = 0;    ///< matmul: rows and columns; 0: 8192 on GPUs' own drivers, else 1024
  double seconds = 10;  ///< matmul: of each row
};

/// The compiler's tables: this build beside the libraries found on the machine.
struct CpuBenchOptions {
  std::vector<std::string> only;   ///< parts of names; empty: every row
  std::vector<uint32_t> threads;   ///< one measuring process for each
  std::vector<std::string> peers;  ///< NAME=PATH
  std::string device;              ///< empty: CPU, in `bench gpu` the default device
  double seconds = 1;              ///< of measuring, per row and number of threads
  bool has_peers = true;
  bool is_tiny = false;        ///< small shapes, hardly repeated: whether everything works
  bool is_child = false;       ///< this is a measuring process
  bool is_listing = false;     ///< only name the rows
  std::string compile_of;      ///< a model: only measure the compilation of its kernels
  std::string write_model;     ///< only write a model with random weights there
  std::string format = "F32";  ///< of the model to write
  bool json = false;
};

/// Runs small known computations on a device and compares with the host's results.
struct SelftestOptions {
  std::vector<std::string> devices;  ///< empty: DEV or the first usable one
  bool json = false;
};

/// Prints the machine code of a cached kernel or a named example computation.
struct DisasmOptions {
  std::string kernel;  ///< name or part of it; empty: list the kernels there are
  std::string device;
  bool json = false;
};

/// Compiles every kernel a model needs into a file.
struct BakeOptions {
  std::string model;            ///< path of a GGUF file
  std::string arch = "native";  ///< "native", "x86_64,znver4,…", "znver4", "sm_90"
  std::string output;           ///< empty: the model's name with ".bundle"
  uint32_t threads = 0;         ///< of the compiler; 0: BM_THREADS or all
  bool json = false;
};

/// Shows kernels stage by stage, and how near the machine's limits they come.
struct ExplainOptions {
  std::string subject;              ///< an expression, or the path of a GGUF file
  std::string kernel;               ///< show only kernels whose name holds this
  std::vector<std::string> stages;  ///< "ir", "schedule", …; empty: all
  std::string device;
  bool is_measured = true;
  bool json = false;
};

/// Shows the tokens of a text, or the text of tokens.
struct TokenizeOptions {
  std::string model;                  ///< path of a GGUF file
  std::optional<std::string> text;    ///< one of these three is given
  std::string file;                   ///< "-": stdin
  std::optional<std::string> decode;  ///< token ids with commas
  bool is_ids_only = false;
  bool has_ends = true;  ///< the tokens that the model puts around a text
  bool parse_special = false;
  bool json = false;
};

/// Shows what is in a model file.
struct InspectOptions {
  std::string file;  ///< GGUF, or safetensors by its ending
  bool has_tensors = true;
  std::string device = "CPU";  ///< whose memory is counted; several divide the model
  uint32_t context = 0;        ///< positions; 0: the model's, at most 4096
  std::string cache_type = "f16";
  bool json = false;
};

// Each returns the exit code of the program (exit_code.h) and prints its own errors.
int run_generate(const GenerateOptions& options);
int run_chat(const ChatOptions& options);
int run_bake(const BakeOptions& options);
int run_bench(const BenchOptions& options);
int run_cpu_bench(const CpuBenchOptions& options);
int run_gpu_bench(const CpuBenchOptions& options);
int run_selftest(const SelftestOptions& options);
int run_serve(const ServeOptions& options);
int run_serve_bench(const ServeBenchOptions& options);
int run_disasm(const DisasmOptions& options);
int run_explain(const ExplainOptions& options);
int run_tokenize(const TokenizeOptions& options);
int run_inspect(const InspectOptions& options);

}  // namespace bm::cli
