// Fuzzes the replies of Redis servers. The first byte is the size of the parts in which they
// arrive.
#include "fuzz_text.h"
#include "io/redis/parser.h"

namespace tensorizer {
namespace {

using Kind = RedisReply::Kind;

void show(const RedisReply& reply, int depth, std::string& shown) {
  require(depth <= 8);
  shown += static_cast<char>('0' + static_cast<int>(reply.kind));
  shown += reply.text + std::to_string(reply.number);
  for (const RedisReply& element : reply.list) show(element, depth + 1, shown);
}

// Returns all replies until the first error, as text.
std::string parse(ConstBytes bytes, std::size_t step) {
  RedisParser parser("'x'");
  std::string shown;
  accepts({ErrorKind::Unavailable}, [&] {
    while (!bytes.empty()) {
      ConstBytes part = bytes.first(std::min(step, bytes.size()));
      const std::size_t before = part.size();
      const auto reply = parser.take(part);
      require(reply || part.empty());
      bytes = bytes.subspan(before - part.size());
      if (reply) show(*reply, 0, shown);
    }
    shown += " whole";
  });
  return shown;
}

// The head of a string, and of anything else.
void parse_heads(ConstBytes bytes) {
  RedisParser parser("'x'");
  accepts({ErrorKind::Unavailable}, [&] {
    while (!bytes.empty()) {
      const std::size_t before = bytes.size();
      const auto reply = parser.take_head(bytes);
      if (!reply) return;
      require(bytes.size() < before);
      if (reply->kind != Kind::Text) continue;
      require(reply->number >= 0);
      const std::uint64_t size = static_cast<std::uint64_t>(reply->number) + 2;
      bytes = bytes.subspan(std::min<std::uint64_t>(size, bytes.size()));
    }
  });
}

}  // namespace
}  // namespace tensorizer

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace tensorizer;
  if (size == 0 || contains({reinterpret_cast<const char*>(data), size}, kSecret)) return 0;
  const ConstBytes bytes(reinterpret_cast<const std::byte*>(data) + 1, size - 1);
  require(parse(bytes, bytes.size() + 1) == parse(bytes, data[0] % 16 + 1U));
  parse_heads(bytes);
  return 0;
}
