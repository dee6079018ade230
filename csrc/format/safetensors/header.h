// The catalogue of a safetensors file: its JSON header.
//
// The bytes come from an untrusted file, so parsing checks every length, count and offset before it
// is used, and allocates only what the bytes at hand justify. Errors are InvalidFormat and name the
// file, the tensor and the offset.
#pragma once

#include <cstdint>
#include <vector>

#include "base/bytes.h"
#include "base/cancel.h"
#include "format/catalogue.h"
#include "format/safetensors/start.h"

namespace tensorizer {

inline constexpr std::size_t kMostSafetensorsDimensions = 255;
// The key of the metadata in the header, which no tensor can have as its name.
inline constexpr std::string_view kSafetensorsMetadata = "__metadata__";

class SafetensorsHeader final : public Catalogue {
 public:
  // `text` is the whole header behind its length.
  SafetensorsHeader(std::vector<std::byte> text, const FileLocation& location, Cancel& cancel);

  FormatInfo info() const override;
  bool encrypted() const noexcept override { return false; }
  bool authenticated() const noexcept override { return false; }
  void check_header_size(std::size_t, const FileLocation&) const override {}
  TensorDetails details(std::size_t entry, Bytes header,
                        const FileLocation& location) const override;

 private:
  struct Parser;

  std::vector<std::byte> bytes_;          // of the header; the names point into them
  std::vector<std::int64_t> dimensions_;  // the shapes point into it
  std::vector<std::byte> digests_;        // of the data of all tensors; empty if there are none
  std::vector<std::byte> chunks_;         // likewise, of its chunks
};

}  // namespace tensorizer
