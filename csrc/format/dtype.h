// The element types of the `.tensors` format, and how they are stored as strings.
//
// A stored dtype is numpy's string ("<f4"). A type that numpy lacks is opaque: numpy's string for
// raw bytes of its size, a NUL, then torch's name ("<V2\0torch.bfloat16"). An index entry may leave
// the name out ("<V2"): the tensor's own header then has it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace tensorizer {

enum class DType : std::uint8_t {
  Bool,
  UInt8,
  UInt16,
  UInt32,
  UInt64,
  Int8,
  Int16,
  Int32,
  Int64,
  Float16,
  Float32,
  Float64,
  Complex64,
  Complex128,
  BFloat16,
  Complex32,
  Float8E4M3FN,
  Float8E4M3FNUZ,
  Float8E5M2,
  Float8E5M2FNUZ,
  Float8E8M0FNU,
  Float4E2M1FNx2,
  UInt1,
  UInt2,
  UInt3,
  UInt4,
  UInt5,
  UInt6,
  UInt7,
  Int1,
  Int2,
  Int3,
  Int4,
  Int5,
  Int6,
  Int7,
  Bits1x8,
  Bits2x4,
  Bits4x2,
  Bits8,
  Bits16,
};

inline constexpr int kDTypeCount = static_cast<int>(DType::Bits16) + 1;

struct DTypeInfo {
  std::string_view torch_name;  // "float32", as in torch.float32
  std::string_view numpy;       // "<f4"; for an opaque type only the part before the NUL
  std::uint32_t size;           // bytes of one element
  bool opaque;
};

const DTypeInfo& dtype_info(DType dtype) noexcept;

// Returns the string that a header stores for `dtype`.
std::string stored_dtype(DType dtype);

// A parsed dtype. `dtype` is null if the string names only raw bytes of `size`.
struct StoredDType {
  std::optional<DType> dtype;
  std::uint32_t size;
};

// Returns nullopt if the string is not a dtype of the format.
std::optional<StoredDType> parse_dtype(std::string_view stored) noexcept;

}  // namespace tensorizer
