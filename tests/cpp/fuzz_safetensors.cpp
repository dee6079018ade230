// Fuzzes the headers of safetensors files. The input is the number of bytes of data, as a u8, and
// the JSON, so that mutations of the JSON do not break its length.
#include "fuzz_checks.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace tensorizer;
  if (size == 0) return 0;
  const ConstBytes json(reinterpret_cast<const std::byte*>(data) + 1, size - 1);
  std::vector<std::byte> file;
  ByteWriter out(file);
  out.put(static_cast<std::uint64_t>(json.size()));
  out.put_bytes(json);
  file.resize(file.size() + data[0]);
  parse_or_refuse(file);
  return 0;
}
