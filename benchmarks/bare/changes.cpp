// The code of changes alone, in memory, on one thread:
//
//   changes ELEMENT_SIZE FLOATING BASE NEW REPETITIONS
//
// BASE and NEW are files of raw elements. Prints the bytes of all codes, and the best seconds of
// encoding and of applying them. The result is compared with NEW.
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <iterator>
#include <string>
#include <vector>

#include "codec/changes.h"

namespace {

using tensorizer::Bytes;
using tensorizer::ConstBytes;
using tensorizer::kChangesBlock;

std::vector<char> content(const char* path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

}  // namespace

int main(int, char** arguments) {
  const tensorizer::ElementKind kind{static_cast<std::uint32_t>(std::atoi(arguments[1])),
                                     std::atoi(arguments[2]) != 0};
  const std::vector<char> base = content(arguments[3]);
  const std::vector<char> fresh = content(arguments[4]);
  const std::size_t blocks = (base.size() + kChangesBlock - 1) / kChangesBlock;
  std::vector<std::vector<std::byte>> codes(blocks);
  std::vector<char> made;
  const auto block_of = [](auto& bytes, std::size_t i) {
    const auto all = std::as_bytes(std::span(bytes));
    return all.subspan(i * kChangesBlock, std::min(kChangesBlock, all.size() - i * kChangesBlock));
  };
  double encoding = 1e9;
  double applying = 1e9;
  for (int repetition = std::atoi(arguments[5]); repetition > 0; --repetition) {
    auto begin = std::chrono::steady_clock::now();
    for (std::size_t i = 0; i < blocks; ++i) {
      codes[i].clear();
      tensorizer::encode_changes(kind, block_of(base, i), block_of(fresh, i), codes[i]);
    }
    encoding = std::min(encoding, seconds_since(begin));
    made = base;
    begin = std::chrono::steady_clock::now();
    for (std::size_t i = 0; i < blocks; ++i) {
      const ConstBytes block = block_of(made, i);
      const Bytes target(const_cast<std::byte*>(block.data()), block.size());
      if (!tensorizer::apply_changes(kind, codes[i], target)) return 1;
    }
    applying = std::min(applying, seconds_since(begin));
  }
  if (made != fresh) return 1;
  std::size_t size = 0;
  for (const std::vector<std::byte>& code : codes) size += code.size();
  std::cout << size << " " << encoding << " " << applying << "\n";
}
