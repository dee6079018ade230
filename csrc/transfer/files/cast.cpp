#include "transfer/files/cast.h"

#include <ATen/ops/from_blob.h>

#include <algorithm>

#include "base/error.h"
#include "transfer/memory/blocks.h"
#include "transfer/memory/dtype.h"

namespace tensorizer {

namespace {

class CastReader final : public TensorReader {
 public:
  explicit CastReader(CastOrigin& origin) : origin_(origin), source_(origin.file()) {}

  void read(std::uint32_t tensor, std::uint64_t position, Bytes out) override {
    const auto [from, to] = origin_.cast(tensor);
    if (from == to) {
      origin_.read(source_, tensor, position, out);
      return;
    }
    const std::size_t count = out.size() / c10::elementSize(to);
    const std::size_t first = position / c10::elementSize(to);
    const Bytes stored = scratch_.take(count * c10::elementSize(from));
    origin_.read(source_, tensor, first * c10::elementSize(from), stored);
    const auto elements = at::from_blob(stored.data(), {static_cast<std::int64_t>(count)}, from);
    const auto size = static_cast<std::int64_t>(out.size());
    Elements(elements, to).get(0, at::from_blob(out.data(), {size}, at::kByte));
  }

 private:
  CastOrigin& origin_;
  TensorSource source_;
  Scratch scratch_;
};

}  // namespace

CastOrigin::CastOrigin(OpenFile& from, c10::ScalarType dtype, Cancel& cancel)
    : Origin(from, from.source(), cancel), dtype_(dtype) {
  if (is_castable(dtype)) return;
  throw Error(ErrorKind::InvalidArgument,
              "dtype is " + dtype_name(dtype) + ", and must be a real floating type");
}

void CastOrigin::change(std::uint32_t /*name*/, Format /*format*/, TensorSpec& spec) {
  const c10::ScalarType stored = scalar_type(spec.dtype);
  const c10::ScalarType cast = cast_type(stored, dtype_);
  if (cast == stored) return;
  spec.dtype = format_dtype(cast, spec.name);
  memory_ = std::max<std::uint64_t>(memory_, c10::elementSize(stored) / c10::elementSize(cast) + 1);
}

CastOrigin::Cast CastOrigin::cast(std::uint32_t number) const {
  const c10::ScalarType stored = scalar_type(*entry(number).dtype);
  return {stored, cast_type(stored, dtype_)};
}

std::unique_ptr<TensorReader> CastOrigin::open_reader() {
  return std::make_unique<CastReader>(*this);
}

}  // namespace tensorizer
