// One digest for all contents of a file, however they are stored.
#pragma once

#include "base/cancel.h"
#include "format/catalogue.h"

namespace tensorizer {

// Returns the SHA-256 over each tensor's name, type, dtype, shape and the SHA-256 of its data, in
// the order of the stored names. It is the same for a plain and an encrypted file, and for any
// order and padding; a tensor with several names counts as several. `data_digests` has one digest
// for each entry, in their order; every dtype must be known.
Sha256Digest model_digest(const Catalogue& catalogue, ConstBytes data_digests, Cancel& cancel);

}  // namespace tensorizer
