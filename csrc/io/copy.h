// Copies a file, whatever it holds, from one place to another.
#pragma once

#include "base/cancel.h"
#include "io/sink.h"
#include "io/source.h"

namespace tensorizer {

// As long as the source is now; throws where that is not known, or where it gets shorter meanwhile.
void copy(Source& source, Sink& sink, Cancel& cancel);

}  // namespace tensorizer
