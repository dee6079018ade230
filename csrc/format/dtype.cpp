#include "format/dtype.h"

#include <array>

namespace tensorizer {

namespace {

// In the order of the enumeration.
constexpr std::array<DTypeInfo, kDTypeCount> kTypes{{
    {"bool", "|b1", 1, false},          {"uint8", "|u1", 1, false},
    {"uint16", "<u2", 2, false},        {"uint32", "<u4", 4, false},
    {"uint64", "<u8", 8, false},        {"int8", "|i1", 1, false},
    {"int16", "<i2", 2, false},         {"int32", "<i4", 4, false},
    {"int64", "<i8", 8, false},         {"float16", "<f2", 2, false},
    {"float32", "<f4", 4, false},       {"float64", "<f8", 8, false},
    {"complex64", "<c8", 8, false},     {"complex128", "<c16", 16, false},
    {"bfloat16", "<V2", 2, true},       {"complex32", "<V4", 4, true},
    {"float8_e4m3fn", "|V1", 1, true},  {"float8_e4m3fnuz", "|V1", 1, true},
    {"float8_e5m2", "|V1", 1, true},    {"float8_e5m2fnuz", "|V1", 1, true},
    {"float8_e8m0fnu", "|V1", 1, true}, {"float4_e2m1fn_x2", "|V1", 1, true},
    {"uint1", "|V1", 1, true},          {"uint2", "|V1", 1, true},
    {"uint3", "|V1", 1, true},          {"uint4", "|V1", 1, true},
    {"uint5", "|V1", 1, true},          {"uint6", "|V1", 1, true},
    {"uint7", "|V1", 1, true},          {"int1", "|V1", 1, true},
    {"int2", "|V1", 1, true},           {"int3", "|V1", 1, true},
    {"int4", "|V1", 1, true},           {"int5", "|V1", 1, true},
    {"int6", "|V1", 1, true},           {"int7", "|V1", 1, true},
    {"bits1x8", "|V1", 1, true},        {"bits2x4", "|V1", 1, true},
    {"bits4x2", "|V1", 1, true},        {"bits8", "|V1", 1, true},
    {"bits16", "<V2", 2, true},
}};

constexpr std::string_view kTorch = "torch.";

// Byte order has no meaning for raw bytes and single bytes: "<" and "|" are equal for them.
bool same_numpy(std::string_view stored, std::string_view canonical, std::uint32_t size) noexcept {
  if (stored == canonical) return true;
  const bool orderless = size == 1 || canonical[1] == 'V';
  return orderless && stored.size() == canonical.size() && (stored[0] == '<' || stored[0] == '|') &&
         stored.substr(1) == canonical.substr(1);
}

}  // namespace

const DTypeInfo& dtype_info(DType dtype) noexcept {
  return kTypes[static_cast<std::size_t>(dtype)];
}

std::string stored_dtype(DType dtype) {
  const DTypeInfo& info = dtype_info(dtype);
  std::string stored(info.numpy);
  if (info.opaque) {
    stored += '\0';
    stored += kTorch;
    stored += info.torch_name;
  }
  return stored;
}

std::optional<StoredDType> parse_dtype(std::string_view stored) noexcept {
  const std::size_t nul = stored.find('\0');
  const std::string_view numpy = stored.substr(0, nul);
  std::string_view name;
  if (nul != std::string_view::npos) {
    name = stored.substr(nul + 1);
    if (!name.starts_with(kTorch)) return std::nullopt;
    name.remove_prefix(kTorch.size());
  }
  for (int i = 0; i < kDTypeCount; ++i) {
    const DTypeInfo& info = kTypes[static_cast<std::size_t>(i)];
    if (!same_numpy(numpy, info.numpy, info.size)) continue;
    if (info.opaque && nul == std::string_view::npos) return StoredDType{std::nullopt, info.size};
    if (info.opaque ? name == info.torch_name : nul == std::string_view::npos) {
      return StoredDType{static_cast<DType>(i), info.size};
    }
  }
  return std::nullopt;
}

}  // namespace tensorizer
