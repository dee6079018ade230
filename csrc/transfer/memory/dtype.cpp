#include "transfer/memory/dtype.h"

#include <array>

#include "base/error.h"

namespace tensorizer {

namespace {

using c10::ScalarType;

// In the order of the format's enumeration.
constexpr std::array<ScalarType, kDTypeCount> kScalarTypes{
    ScalarType::Bool,           ScalarType::Byte,
    ScalarType::UInt16,         ScalarType::UInt32,
    ScalarType::UInt64,         ScalarType::Char,
    ScalarType::Short,          ScalarType::Int,
    ScalarType::Long,           ScalarType::Half,
    ScalarType::Float,          ScalarType::Double,
    ScalarType::ComplexFloat,   ScalarType::ComplexDouble,
    ScalarType::BFloat16,       ScalarType::ComplexHalf,
    ScalarType::Float8_e4m3fn,  ScalarType::Float8_e4m3fnuz,
    ScalarType::Float8_e5m2,    ScalarType::Float8_e5m2fnuz,
    ScalarType::Float8_e8m0fnu, ScalarType::Float4_e2m1fn_x2,
    ScalarType::UInt1,          ScalarType::UInt2,
    ScalarType::UInt3,          ScalarType::UInt4,
    ScalarType::UInt5,          ScalarType::UInt6,
    ScalarType::UInt7,          ScalarType::Int1,
    ScalarType::Int2,           ScalarType::Int3,
    ScalarType::Int4,           ScalarType::Int5,
    ScalarType::Int6,           ScalarType::Int7,
    ScalarType::Bits1x8,        ScalarType::Bits2x4,
    ScalarType::Bits4x2,        ScalarType::Bits8,
    ScalarType::Bits16,
};

std::optional<DType> find(ScalarType type) noexcept {
  for (std::size_t i = 0; i < kScalarTypes.size(); ++i) {
    if (kScalarTypes[i] == type) return static_cast<DType>(i);
  }
  return std::nullopt;
}

}  // namespace

ScalarType scalar_type(DType dtype) noexcept {
  return kScalarTypes[static_cast<std::size_t>(dtype)];
}

DType format_dtype(ScalarType type, const std::string& tensor_name) {
  if (const std::optional<DType> dtype = find(type)) return *dtype;
  throw Error(ErrorKind::InvalidArgument, "tensor " + quote(tensor_name) + " has the dtype " +
                                              c10::toString(type) +
                                              ", which the format does not hold");
}

std::string dtype_name(ScalarType type) {
  const std::optional<DType> dtype = find(type);
  return dtype ? std::string(dtype_info(*dtype).torch_name) : c10::toString(type);
}

bool is_castable(ScalarType type) noexcept {
  return c10::isFloatingType(type) && type != ScalarType::Float4_e2m1fn_x2;
}

bool fits(ScalarType stored, ScalarType wanted, bool cast) noexcept {
  return stored == wanted || (cast && is_castable(stored) && is_castable(wanted));
}

ScalarType cast_type(ScalarType stored, std::optional<ScalarType> dtype) noexcept {
  return dtype && is_castable(stored) ? *dtype : stored;
}

}  // namespace tensorizer
