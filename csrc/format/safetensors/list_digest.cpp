#include "format/safetensors/list_digest.h"

#include <vector>

#include "format/safetensors/dtype.h"

namespace tensorizer {

ListDigest::ListDigest(std::uint64_t chunk_size) {
  if (chunk_size == 0) return;
  std::vector<std::byte> message;
  ByteWriter(message).put(chunk_size);
  hash_.update(message);
}

void ListDigest::add(std::string_view name, DType dtype, std::span<const std::int64_t> shape,
                     ConstBytes digests) {
  std::vector<std::byte> message;
  ByteWriter out(message);
  out.put_text<std::uint64_t>(name);
  out.put_text<std::uint64_t>(safetensors_dtype(dtype));
  out.put(static_cast<std::uint64_t>(shape.size()));
  for (std::size_t i = 0; i < shape.size(); ++i) out.put(stored_dimension(dtype, shape, i));
  out.put_bytes(digests);
  hash_.update(message);
}

}  // namespace tensorizer
