#include "format/safetensors/dtype.h"

#include <array>
#include <utility>

namespace tensorizer {

namespace {

// In the order of their ranks.
constexpr std::array<std::pair<std::string_view, DType>, 20> kTypes{{
    {"BOOL", DType::Bool},
    {"F4", DType::Float4E2M1FNx2},
    {"U8", DType::UInt8},
    {"I8", DType::Int8},
    {"F8_E5M2", DType::Float8E5M2},
    {"F8_E4M3", DType::Float8E4M3FN},
    {"F8_E8M0", DType::Float8E8M0FNU},
    {"F8_E4M3FNUZ", DType::Float8E4M3FNUZ},
    {"F8_E5M2FNUZ", DType::Float8E5M2FNUZ},
    {"I16", DType::Int16},
    {"U16", DType::UInt16},
    {"F16", DType::Float16},
    {"BF16", DType::BFloat16},
    {"I32", DType::Int32},
    {"U32", DType::UInt32},
    {"F32", DType::Float32},
    {"C64", DType::Complex64},
    {"F64", DType::Float64},
    {"I64", DType::Int64},
    {"U64", DType::UInt64},
}};

constexpr std::array<int, kDTypeCount> kRanks = [] {
  std::array<int, kDTypeCount> ranks{};
  ranks.fill(-1);
  for (std::size_t i = 0; i < kTypes.size(); ++i) {
    ranks[static_cast<std::size_t>(kTypes[i].second)] = static_cast<int>(i);
  }
  return ranks;
}();

}  // namespace

std::optional<DType> parse_safetensors_dtype(std::string_view name) noexcept {
  for (const auto& [known, dtype] : kTypes) {
    if (known == name) return dtype;
  }
  return std::nullopt;
}

int safetensors_rank(DType dtype) noexcept { return kRanks[static_cast<std::size_t>(dtype)]; }

std::string_view safetensors_dtype(DType dtype) noexcept {
  const int rank = safetensors_rank(dtype);
  return rank < 0 ? std::string_view() : kTypes[static_cast<std::size_t>(rank)].first;
}

}  // namespace tensorizer
