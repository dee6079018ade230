// Casts the tensors of a file while it is written anew.
#pragma once

#include <c10/core/ScalarType.h>

#include <vector>

#include "engine/rewrite/rewrite.h"

namespace tensorizer {

class CastOrigin final : public Origin {
 public:
  // Real floating tensors are cast to `dtype`. Throws Error(InvalidArgument) if that is none of
  // their types.
  CastOrigin(OpenFile& from, c10::ScalarType dtype, Cancel& cancel);

  void change(std::uint32_t name, Format format, TensorSpec& spec) override;
  std::uint64_t memory() const noexcept override { return memory_; }
  std::unique_ptr<TensorReader> open_reader() override;

  // The types of a tensor's elements in the original file and in the new one.
  struct Cast {
    c10::ScalarType from;
    c10::ScalarType to;
  };
  Cast cast(std::uint32_t number) const;

 private:
  const c10::ScalarType dtype_;
  std::uint64_t memory_ = 0;
};

}  // namespace tensorizer
