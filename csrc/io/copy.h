// Copies a file as it is from a Source to a Sink.
#pragma once

#include "base/cancel.h"
#include "io/sink.h"
#include "io/source.h"

namespace tensorizer {

// Copies all bytes of the source, and finishes the sink. Throws InvalidArgument if the size of the
// source is unknown, and SystemError if it shrinks meanwhile. Not for a sink that stores named
// parts: the copy has none.
void copy(Source& source, Sink& sink, Cancel& cancel);

}  // namespace tensorizer
