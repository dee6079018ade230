// Lets a source that gives its bytes once, in order, be read from any position.
#pragma once

#include <functional>
#include <memory>

#include "base/cancel.h"
#include "io/source.h"

namespace tensorizer {

using OpenSource = std::function<std::unique_ptr<Source>(Cancel& cancel)>;

// Opens a source; one that gives its bytes once is opened again where it is read backwards, and
// read by one call at a time.
std::unique_ptr<Source> reopening_source(OpenSource open, Cancel& cancel);

}  // namespace tensorizer
