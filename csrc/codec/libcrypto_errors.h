// The list of errors that libcrypto keeps for each thread.
#pragma once

#include <openssl/err.h>

namespace tensorizer {

// Leaves no errors in the list, which other code of the thread would take for its own.
struct NoErrorsLeft {
  ~NoErrorsLeft() { ERR_clear_error(); }
};

}  // namespace tensorizer
