// How S3 says that it has stored what it was sent.
//
// What stands in front of it, a proxy or a login page, answers with status 200 as well; so an
// answer counts for what it holds.
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

// The root element of the answer that an upload is complete.
inline constexpr std::string_view kCompletion = "CompleteMultipartUploadResult";

// What a CompleteMultipartUpload request says.
std::string completion_of(const std::map<std::uint64_t, StoredPart>& parts);

// Why an answer is not the one that S3 gives when it did what it was asked for; empty where it is.
// `root`: the name of the root element of that answer's body, which must be there to its end, with
// "Result" behind it or not (some servers say InitiateMultipartUpload); empty where the answer has
// an ETag and no body. A completion has the ETag in its body.
std::string fault_of_answer(const HttpAnswer& answer, std::string_view body, std::string_view root);

// Whether the answer to a HEAD request, with x-amz-checksum-mode, is about an object of `size`
// bytes that consists of these parts: by the ETag, or else the checksum, that follow from theirs.
bool consists_of(const HttpAnswer& answer, std::uint64_t size,
                 const std::map<std::uint64_t, StoredPart>& parts);

}  // namespace tensorizer
