#include "io/handed_over.h"

#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>

#include "base/error.h"

namespace tensorizer {

namespace {

struct Shelf {
  std::mutex mutex;
  std::unordered_map<std::int64_t, Handed> kept;  // by number
  std::int64_t last = 0;
};

// Never destroyed: other threads may use it while the process ends.
Shelf& shelf() {
  static auto& made = *new Shelf;
  return made;
}

std::int64_t put(Handed handed) {
  const std::lock_guard lock(shelf().mutex);
  shelf().kept.emplace(++shelf().last, std::move(handed));
  return shelf().last;
}

}  // namespace

HandedOver::HandedOver(Handed handed) : number_(put(std::move(handed))) {}

HandedOver::~HandedOver() {
  // Destroyed without the lock, because that may call the host.
  const auto left = [&] {
    const std::lock_guard lock(shelf().mutex);
    return shelf().kept.extract(number_);
  }();
}

template <typename Kind>
Kind take_handed(std::int64_t number) {
  const std::lock_guard lock(shelf().mutex);
  const auto found = shelf().kept.find(number);
  Kind* const handed = found == shelf().kept.end() ? nullptr : std::get_if<Kind>(&found->second);
  if (handed == nullptr) {
    throw Error(ErrorKind::InvalidArgument,
                "nothing was handed over under the number " + std::to_string(number));
  }
  Kind taken = std::move(*handed);
  shelf().kept.erase(found);
  return taken;
}

template std::shared_ptr<Source> take_handed(std::int64_t number);
template std::unique_ptr<Sink> take_handed(std::int64_t number);
template void* take_handed(std::int64_t number);

}  // namespace tensorizer
