// Objects that the host hands over to an op, which takes their numbers: ops take no such objects.
#pragma once

#include <cstdint>
#include <memory>
#include <variant>

#include "io/sink.h"
#include "io/source.h"

namespace tensorizer {

// A source, a sink, or an object of another library.
using Handed = std::variant<std::shared_ptr<Source>, std::unique_ptr<Sink>, void*>;

// Keeps one of them until an op takes it, or until this ends.
class HandedOver {
 public:
  explicit HandedOver(Handed handed);
  ~HandedOver();
  HandedOver(const HandedOver&) = delete;
  HandedOver& operator=(const HandedOver&) = delete;

  std::int64_t number() const noexcept { return number_; }

 private:
  const std::int64_t number_;
};

// Returns what has this number, once. Throws Error(InvalidArgument) if there is nothing of the
// kind.
template <typename Kind>
Kind take_handed(std::int64_t number);

}  // namespace tensorizer
