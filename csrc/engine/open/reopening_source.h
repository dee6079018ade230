// A source that can be read from any position although its bytes come once and in order.
#pragma once

#include <functional>
#include <memory>

#include "base/cancel.h"
#include "io/source.h"

namespace tensorizer {

using OpenSource = std::function<std::unique_ptr<Source>(Cancel& cancel)>;

// Opens a source and returns it. If that is sequential, returns one that calls `open` again when it
// is read backwards, and that lets one call at a time read while others wait.
std::unique_ptr<Source> reopening_source(OpenSource open, Cancel& cancel);

}  // namespace tensorizer
