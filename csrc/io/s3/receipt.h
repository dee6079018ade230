// Checks S3's responses to uploads.
//
// A status of 200 is not enough: a proxy or a login page in front of S3 may send it as well. So the
// content of a response is checked.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "io/http/answer.h"

namespace tensorizer {

struct StoredPart {
  std::string etag;
  std::uint32_t crc32 = 0;
};

using StoredParts = std::map<std::uint64_t, StoredPart>;  // by number, from 1

// The root element of the response to a completed upload.
inline constexpr std::string_view kCompletion = "CompleteMultipartUploadResult";

// Returns the body of a CompleteMultipartUpload request.
std::string completion_of(const std::map<std::uint64_t, StoredPart>& parts);

// Returns why a response is not the one that S3 sends after success; empty if it is. `root`: the
// name of the root element that the body must have, whole, with or without "Result" at the end of
// the name (some servers say InitiateMultipartUpload); empty if the response must have an ETag and
// no body. The response to a completion must have the ETag in its body.
std::string fault_of_answer(const HttpAnswer& answer, std::string_view body, std::string_view root);

// Returns true if the response to a HEAD request with x-amz-checksum-mode describes an object of
// `size` bytes that consists of these parts. Compares the ETag, or else the checksum, with the one
// computed from the parts.
bool consists_of(const HttpAnswer& answer, std::uint64_t size,
                 const std::map<std::uint64_t, StoredPart>& parts);

}  // namespace tensorizer
