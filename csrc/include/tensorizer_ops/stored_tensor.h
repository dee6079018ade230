// What a file says about a tensor, beside its dtype and shape.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

namespace tensorizer {

// What the tensor was in its module.
enum class TensorType : std::uint8_t { Parameter = 0, Buffer = 1, StateDictEntry = 2 };

// Offsets are absolute in the file. `name` is as stored: the tensors of a root module may begin
// with a dot that names() leaves out.
struct ListedTensor {
  std::string name;
  TensorType type;
  std::uint64_t header_offset;
  std::uint64_t data_offset;
  std::uint64_t data_size;
  std::uint64_t memory_size;  // of the tensor when it is loaded; a meta tensor stores no data
  // The place in the list of the name that the data is stored with: its own unless names share it.
  std::size_t stored_as;
};

// Also has what the tensor's own header says. A digest that was not saved is null.
struct StoredTensor {
  std::string name;
  TensorType type;
  std::uint16_t module_index;
  std::optional<std::uint32_t> crc32;
  std::optional<std::array<std::byte, 32>> sha256;
  std::uint64_t header_offset;
  std::uint64_t data_offset;
  std::uint64_t data_size;
};

}  // namespace tensorizer
