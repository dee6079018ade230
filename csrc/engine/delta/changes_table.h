// What a delta file is made of (docs/format.md): a tensor for each one of the newer model, whose
// name says what it holds, and metadata that name both models.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "codec/changes.h"
#include "engine/open/open_file.h"
#include "format/dtype.h"
#include "format/model_digest.h"

namespace tensorizer {

// In front of a tensor's name. The changes are bytes: the table below, and then the codes.
inline constexpr std::string_view kChangesPrefix = "changes/";
inline constexpr std::string_view kWholePrefix = "whole/";

// Keys of the metadata.
inline constexpr std::string_view kDeltaKey = "tensorizer_ops.delta";  // its version, which is "1"
inline constexpr std::string_view kBaseKey = "tensorizer_ops.delta.base";
inline constexpr std::string_view kTargetKey = "tensorizer_ops.delta.target";
inline constexpr std::string_view kTargetSizeKey = "tensorizer_ops.delta.size";  // for people
bool is_delta_key(std::string_view key) noexcept;

// The digests of both models.
struct DeltaEnds {
  ModelDigest base;
  ModelDigest target;
};

// Returns null if the file is no delta. Throws InvalidFormat for a delta of another version, or one
// that does not name its models.
std::optional<DeltaEnds> delta_ends(OpenFile& file);

// The same. Throws InvalidArgument for a file that is no delta, and for one that can be read only
// once.
DeltaEnds need_delta(OpenFile& file);

// The names of the new model, in the order of the delta's names.
struct DeltaNames {
  // Throws InvalidFormat for a name without a prefix, and for two tensors of one name.
  explicit DeltaNames(OpenFile& delta);

  std::vector<std::string> stored;
  std::vector<std::string_view> clean;  // by which a program asks for them
};

// Throws InvalidFormat if an entry of the delta is the change of a tensor without data.
void require_data(OpenFile& delta, std::uint32_t entry, std::uint64_t data_size);

// One block of a tensor.
struct BlockChange {
  Digest base{};
  Digest target{};
  std::uint32_t code_size = 0;  // 0 if nothing has changed
};
inline constexpr std::uint64_t kBlockChangeSize = 2 * kSha256Size + sizeof(std::uint32_t);
static_assert(kChangesBlock == kModelDigestChunk);

std::vector<std::byte> to_bytes(const std::vector<BlockChange>& table);
// Returns null if no table of a tensor with `data_size` bytes is like this, with codes of
// `codes_size` bytes.
std::optional<std::vector<BlockChange>> parse_table(ConstBytes bytes, std::uint64_t data_size,
                                                    std::uint64_t codes_size);

ElementKind element_kind(DType dtype) noexcept;

}  // namespace tensorizer
