// Runs a fuzz harness without libFuzzer: PROGRAM CORPUS_FOLDER [RUNS [SEED]].
//
// Replays every file of the folder, then RUNS inputs mutated from them. The same seed gives the
// same inputs. An input that crashes is written to <program>.crash; `PROGRAM --replay FILE` runs
// one file.
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <algorithm>
#include <fcntl.h>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <string_view>
#include <unistd.h>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);
// A harness may bring its own initialisation, as with libFuzzer.
extern "C" __attribute__((weak)) int LLVMFuzzerInitialize(int* argc, char*** argv);

namespace {

using Input = std::vector<uint8_t>;
using Clock = std::chrono::steady_clock;

constexpr size_t kMaxInputBytes = 1 << 16;
constexpr int kDefaultRuns = 20'000;
// Slow harnesses stop here, so that all of them together stay a small part of a test run.
constexpr std::chrono::seconds kTimeLimit{4};

// What the signal handler needs; it may not allocate.
// NOLINTBEGIN(cppcoreguidelines-avoid-non-const-global-variables)
const uint8_t* current_data = nullptr;
size_t current_size = 0;
char crash_path[4096];
// NOLINTEND(cppcoreguidelines-avoid-non-const-global-variables)

void save_crash(int signal_number) {
  const int fd = ::open(crash_path, O_WRONLY | O_CREAT | O_TRUNC, 0644);
  if (fd >= 0 && ::write(fd, current_data, current_size) >= 0) {
    constexpr std::string_view kText =
        "the input that crashed is beside this program, in *.crash\n";
    (void)!::write(STDERR_FILENO, kText.data(), kText.size());
  }
  std::signal(signal_number, SIG_DFL);
  std::raise(signal_number);
}

void run_one(const Input& input) {
  // An exact-size copy: sanitizers then see a read past the end.
  const Input exact(input.begin(), input.end());
  static const uint8_t kNothing = 0;
  current_data = exact.empty() ? &kNothing : exact.data();
  current_size = exact.size();
  LLVMFuzzerTestOneInput(current_data, current_size);
}

Input read_file(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

std::vector<Input> read_corpus(const std::filesystem::path& folder) {
  std::vector<std::filesystem::path> paths;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    if (entry.is_regular_file()) paths.push_back(entry.path());
  }
  std::sort(paths.begin(), paths.end());
  std::vector<Input> corpus{{}};  // the empty input always belongs to it
  for (const auto& path : paths) corpus.push_back(read_file(path));
  return corpus;
}

class Mutator {
 public:
  Mutator(const std::vector<Input>& corpus, uint64_t seed) : corpus_(corpus), random_(seed) {}

  Input next() {
    Input input = corpus_[below(corpus_.size())];
    for (size_t changes = 1 + below(6); changes > 0; --changes) change(input);
    if (input.size() > kMaxInputBytes) input.resize(kMaxInputBytes);
    return input;
  }

 private:
  size_t below(size_t bound) { return static_cast<size_t>(random_() % bound); }
  uint8_t byte() { return static_cast<uint8_t>(random_()); }

  void change(Input& input) {
    if (input.empty()) return grow(input);
    const size_t at = below(input.size());
    switch (below(8)) {
      case 0: input[at] ^= static_cast<uint8_t>(1U << below(8)); break;
      case 1: input[at] = byte(); break;
      case 2: input[at] = static_cast<uint8_t>(input[at] + below(9) - 4); break;
      case 3: put_integer(input, at); break;
      case 4: input.resize(at); break;
      case 5: erase(input, at); break;
      case 6: grow(input); break;
      default: splice(input, at); break;
    }
  }

  // Lengths and counts near the edges of their types find more than random bytes do.
  void put_integer(Input& input, size_t at) {
    static constexpr uint64_t kEdges[] = {
        0,          1,          0x7f,       0x80,       0xff,       0x7fff, 0xffff,    0x10000,
        0x7fffffff, 0x80000000, 0xffffffff, 1ULL << 32, ~0ULL >> 1, ~0ULL,  1ULL << 63};
    const uint64_t value = kEdges[below(std::size(kEdges))] + (below(4) == 0 ? below(5) - 2 : 0);
    const size_t width = std::min(size_t{1} << below(4), input.size() - at);
    std::memcpy(input.data() + at, &value, width);
  }

  void erase(Input& input, size_t at) {
    const size_t count = std::min(1 + below(16), input.size() - at);
    input.erase(input.begin() + static_cast<ptrdiff_t>(at),
                input.begin() + static_cast<ptrdiff_t>(at + count));
  }

  void grow(Input& input) {
    const size_t at = below(input.size() + 1);
    Input more(1 + below(32));
    const bool is_run = below(2) == 0;
    const uint8_t fill = byte();
    for (uint8_t& b : more) b = is_run ? fill : byte();
    input.insert(input.begin() + static_cast<ptrdiff_t>(at), more.begin(), more.end());
  }

  // A piece of another input, as crossing two files.
  void splice(Input& input, size_t at) {
    const Input& other = corpus_[below(corpus_.size())];
    if (other.empty()) return;
    const size_t from = below(other.size());
    const size_t count = std::min({1 + below(256), other.size() - from, input.size() - at});
    std::memcpy(input.data() + at, other.data() + from, count);
  }

  const std::vector<Input>& corpus_;
  std::mt19937_64 random_;
};

}  // namespace

int main(int argc, char** argv) {
  if (LLVMFuzzerInitialize != nullptr) LLVMFuzzerInitialize(&argc, &argv);
  if (argc < 2) {
    std::fprintf(stderr, "usage: %s CORPUS_FOLDER [RUNS [SEED]] | --replay FILE\n", argv[0]);
    return 2;
  }
  std::snprintf(crash_path, sizeof crash_path, "%s.crash", argv[0]);
  for (int number : {SIGABRT, SIGSEGV, SIGBUS, SIGFPE, SIGILL}) std::signal(number, save_crash);
  if (std::string_view(argv[1]) == "--replay") {
    if (argc != 3) return 2;
    run_one(read_file(argv[2]));
    return 0;
  }

  const int runs = argc > 2 ? std::atoi(argv[2]) : kDefaultRuns;
  const uint64_t seed = argc > 3 ? std::strtoull(argv[3], nullptr, 10) : 1;
  const std::vector<Input> corpus = read_corpus(argv[1]);
  for (const Input& input : corpus) run_one(input);
  Mutator mutator(corpus, seed);
  const Clock::time_point end = Clock::now() + kTimeLimit;
  int done = 0;
  while (done < runs && Clock::now() < end) {
    run_one(mutator.next());
    ++done;
  }
  std::printf("%zu inputs of the corpus, %d of %d mutations (seed %llu)\n", corpus.size(), done,
              runs, static_cast<unsigned long long>(seed));
  return 0;
}
