#include "io/handed_over.h"

#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>

#include "base/error.h"

namespace tensorizer {

namespace {

// What was handed over and not taken, by number.
template <typename Pointer>
class Shelf {
 public:
  std::int64_t put(Pointer pointer) {
    const std::lock_guard lock(mutex_);
    kept_.emplace(++last_, std::move(pointer));
    return last_;
  }

  // Returns null if there is none.
  Pointer take(std::int64_t number) {
    const std::lock_guard lock(mutex_);
    const auto found = kept_.find(number);
    if (found == kept_.end()) return nullptr;
    Pointer pointer = std::move(found->second);
    kept_.erase(found);
    return pointer;
  }

 private:
  std::mutex mutex_;
  std::unordered_map<std::int64_t, Pointer> kept_;
  std::int64_t last_ = 0;
};

// Never destroyed: other threads may use them while the process ends.
Shelf<std::shared_ptr<Source>>& sources() {
  static auto& shelf = *new Shelf<std::shared_ptr<Source>>;
  return shelf;
}
Shelf<std::unique_ptr<Sink>>& sinks() {
  static auto& shelf = *new Shelf<std::unique_ptr<Sink>>;
  return shelf;
}

template <typename Pointer>
Pointer take(Shelf<Pointer>& shelf, std::int64_t number) {
  Pointer pointer = shelf.take(number);
  if (!pointer) {
    throw Error(ErrorKind::InvalidArgument,
                "nothing was handed over under the number " + std::to_string(number));
  }
  return pointer;
}

}  // namespace

HandedOver::HandedOver(std::shared_ptr<Source> source)
    : number_(sources().put(std::move(source))) {}
// Sinks have numbers below zero, so that no source has the same.
HandedOver::HandedOver(std::unique_ptr<Sink> sink) : number_(-sinks().put(std::move(sink))) {}

HandedOver::~HandedOver() {
  if (number_ > 0) {
    sources().take(number_);
  } else {
    sinks().take(-number_);
  }
}

std::shared_ptr<Source> take_source(std::int64_t number) { return take(sources(), number); }
std::unique_ptr<Sink> take_sink(std::int64_t number) { return take(sinks(), -number); }

}  // namespace tensorizer
