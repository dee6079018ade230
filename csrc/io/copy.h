// Copies a file as it is from a Source to a Sink.
#pragma once

#include <functional>

#include "base/bytes.h"
#include "base/cancel.h"
#include "io/sink.h"
#include "io/source.h"

namespace tensorizer {

// Copies all bytes of the source, passes each piece to `seen` as well, and finishes the sink.
// Throws InvalidArgument if the size of the source is unknown, and SystemError if it shrinks
// meanwhile. Not for a sink that stores named parts: the copy has none.
void copy(Source& source, Sink& sink, Cancel& cancel,
          const std::function<void(ConstBytes piece)>& seen = {});

}  // namespace tensorizer
