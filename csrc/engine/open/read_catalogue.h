// Reads the catalogue of a file, whose format its first bytes tell.
#pragma once

#include <memory>
#include <vector>

#include "engine/digest/file_keys.h"
#include "engine/open/whole_files.h"
#include "format/catalogue.h"
#include "io/source.h"

namespace tensorizer {

// Throws InvalidFormat for a file of another format, which it names if it is a common one; Crypto
// if keys are given and the file is not encrypted, or what authenticates its metadata is wrong.
//
// `whole`: set to the files of a safetensors model, if a server keeps a digest of each.
std::unique_ptr<Catalogue> read_catalogue(Source& source, FileKeys* keys, Cancel& cancel,
                                          std::vector<WholeFile>* whole = nullptr);

}  // namespace tensorizer
