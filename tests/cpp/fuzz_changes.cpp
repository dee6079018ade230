// Fuzzes the codes of changes. The first byte chooses the kind of the elements, the next two how
// many there are.
#include <algorithm>
#include <vector>

#include "codec/changes.h"
#include "fuzz_checks.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace tensorizer;
  if (size < 3) return 0;
  const ElementKind kind{1U << data[0] % 4, (data[0] & 4) != 0};
  const std::size_t count = data[1] + 256 * (data[2] % 64);
  std::vector<std::byte> block(count * kind.size);
  for (std::size_t i = 0; i < block.size(); ++i) block[i] = static_cast<std::byte>(i * i / 7);
  const std::vector<std::byte> base = block;
  const ConstBytes code{reinterpret_cast<const std::byte*>(data) + 3, size - 3};
  if (code.size() > block.size() || !apply_changes(kind, code, block)) return 0;
  // What it makes can be encoded again.
  std::vector<std::byte> again;
  encode_changes(kind, base, block, again);
  std::vector<std::byte> made = base;
  require(apply_changes(kind, again, made) && made == block);
  return 0;
}
