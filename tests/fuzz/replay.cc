// Where there is no libFuzzer: runs every file of a folder through the fuzzer's entry point, each also cut short and
// with bytes flipped at a number of places, so that the corpus works as an ordinary test.
//
//   NAME_replay PLACES FOLDER
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace {

void Run(const std::string& bytes) {
  // A copy of exactly that size: a sanitizer sees a read beyond it.
  const std::vector<std::uint8_t> exact(bytes.begin(), bytes.end());
  LLVMFuzzerTestOneInput(exact.data(), exact.size());
}

int RunFile(const std::filesystem::path& path, std::size_t places) {
  std::ifstream file(path, std::ios::binary);
  const std::string bytes((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  int runs = 1;
  Run(bytes);
  const std::size_t step = std::max<std::size_t>(bytes.size() / places, 1);
  for (std::size_t at = 0; at < bytes.size(); at += step) {
    Run(bytes.substr(0, at));
    for (const int flip : {0x01, 0x80, 0xff}) {
      std::string changed = bytes;
      changed[at] = static_cast<char>(changed[at] ^ flip);
      Run(changed);
      ++runs;
    }
    ++runs;
  }
  return runs;
}

}  // namespace

int main(int argc, char** argv) {
  const int places = argc == 3 ? std::atoi(argv[1]) : 0;
  if (places < 1) {
    std::fprintf(stderr, "usage: %s PLACES FOLDER\n", argv[0]);
    return 2;
  }
  int files = 0, runs = 0;
  for (const auto& entry : std::filesystem::directory_iterator(argv[2])) {
    if (!entry.is_regular_file()) continue;
    runs += RunFile(entry.path(), static_cast<std::size_t>(places));
    ++files;
  }
  std::printf("%d inputs from %d files\n", runs, files);
  return files > 0 ? 0 : 1;
}
