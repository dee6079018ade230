#include "format/safetensors/digest_list.h"

#include <algorithm>

#include "base/number.h"
#include "codec/hmac.h"
#include "format/chunks.h"
#include "format/safetensors/dtype.h"

namespace tensorizer {

namespace {

// Behind the digests of the data.
constexpr std::size_t kMoreDigests = 2;

std::string begin_of(std::uint64_t chunk_size) {
  return chunk_size > 0 ? std::to_string(chunk_size) + ':' : "";
}

// `covered` is all of a list but its last digest.
Sha256Digest last_digest(std::uint64_t chunk_size, ConstBytes covered) {
  Sha256 hash;
  if (chunk_size > 0) {
    std::vector<std::byte> size;
    ByteWriter(size).put(chunk_size);
    hash.update(size);
  }
  hash.update(covered);
  return hash.finish();
}

}  // namespace

void TensorsDigest::add(std::string_view name, DType dtype, std::span<const std::int64_t> shape) {
  std::vector<std::byte> message;
  ByteWriter out(message);
  out.put_text<std::uint64_t>(name);
  out.put_text<std::uint64_t>(safetensors_dtype(dtype));
  out.put(static_cast<std::uint64_t>(shape.size()));
  for (std::size_t i = 0; i < shape.size(); ++i) out.put(stored_dimension(dtype, shape, i));
  hash_.update(message);
}

std::uint64_t digest_list_size(std::uint64_t chunk_size, std::uint64_t digests) {
  return begin_of(chunk_size).size() + 2 * kSha256Size * (digests + kMoreDigests);
}

std::string to_text(const DigestList& list) {
  std::vector<std::byte> bytes(list.digests);
  bytes.insert(bytes.end(), list.tensors.begin(), list.tensors.end());
  const Sha256Digest last = last_digest(list.chunk_size, bytes);
  return begin_of(list.chunk_size) + to_hex(bytes) + to_hex(last);
}

std::optional<DigestList> parse_digest_list(std::string_view text, bool in_chunks) {
  DigestList list;
  if (in_chunks) {
    const std::size_t colon = text.find(':');
    const auto chunk_size = parse_number(text.substr(0, colon));
    if (colon == std::string_view::npos || !chunk_size || !is_chunk_size(*chunk_size)) return {};
    list.chunk_size = *chunk_size;
    text.remove_prefix(colon + 1);
  }
  if (text.size() < 2 * kSha256Size * kMoreDigests || text.size() % (2 * kSha256Size) != 0) {
    return {};
  }
  list.digests.resize(text.size() / 2);
  if (!from_hex(text, list.digests)) return {};
  const auto take_last = [&](Sha256Digest& digest) {
    std::ranges::copy(ConstBytes(list.digests).last(kSha256Size), digest.begin());
    list.digests.resize(list.digests.size() - kSha256Size);
  };
  Sha256Digest last{};
  take_last(last);
  if (last_digest(list.chunk_size, list.digests) != last) return {};
  take_last(list.tensors);
  return list;
}

}  // namespace tensorizer
