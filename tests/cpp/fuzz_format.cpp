// Fuzzes everything that is parsed of a file: the header, the index and the records behind it,
// every tensor's header, and the data against its hashes.
#include "fuzz_checks.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace tensorizer;
  parse_or_refuse({reinterpret_cast<const std::byte*>(data), size});
  return 0;
}
