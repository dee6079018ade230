#include "io/s3/receipt.h"

#include <openssl/evp.h>

#include <array>
#include <vector>

#include "base/text.h"
#include "codec/crc32.h"
#include "codec/hmac.h"
#include "io/http/operation.h"
#include "io/xml.h"

namespace tensorizer {

namespace {

// Escapes an ETag, which may hold any characters.
std::string xml_escaped(std::string_view text) {
  std::string escaped;
  for (const char c : text) {
    if (c == '&') {
      escaped += "&amp;";
    } else if (c == '<') {
      escaped += "&lt;";
    } else {
      escaped += c;
    }
  }
  return escaped;
}

using Md5Digest = std::array<std::byte, 16>;

std::string_view unquoted(std::string_view etag) {
  const bool is_quoted = etag.size() >= 2 && etag.starts_with('"') && etag.ends_with('"');
  return is_quoted ? etag.substr(1, etag.size() - 2) : etag;
}

// Returns the ETag of an object in parts: the MD5 of the parts' MD5s, and their number. Empty if
// the ETags of the parts are not MD5s.
std::string joined_etag(const std::map<std::uint64_t, StoredPart>& parts) {
  std::vector<std::byte> digests;
  for (const auto& [number, part] : parts) {
    Md5Digest digest;
    if (!from_hex(unquoted(part.etag), digest)) return {};
    digests.insert(digests.end(), digest.begin(), digest.end());
  }
  Md5Digest md5;
  unsigned int size = 0;
  if (EVP_Digest(digests.data(), digests.size(), reinterpret_cast<unsigned char*>(md5.data()),
                 &size, EVP_md5(), nullptr) != 1) {
    return {};
  }
  return to_hex(md5) + "-" + std::to_string(parts.size());
}

// Returns the checksum of an object in parts: the CRC32 of the parts' CRC32s, and their number.
std::string joined_crc32(const std::map<std::uint64_t, StoredPart>& parts) {
  std::uint32_t crc = 0;
  for (const auto& [number, part] : parts) crc = crc32(crc, crc32_bytes(part.crc32));
  return to_base64(crc32_bytes(crc)) + "-" + std::to_string(parts.size());
}

// Returns true if a body with the root element `found` is a whole response with the root `root`.
bool is_receipt(std::string_view body, const std::string& found, std::string_view root) {
  // Some servers leave out "Result" at the end of the name.
  if (found != root && found != std::string(root) + "Result") return false;
  if (!trimmed(body).ends_with(found + ">")) return false;
  return root != kCompletion || !xml_text(body, "ETag").value_or("").empty();
}

}  // namespace

std::string completion_of(const std::map<std::uint64_t, StoredPart>& parts) {
  std::string text = "<CompleteMultipartUpload>";
  for (const auto& [number, part] : parts) {
    text += "<Part><PartNumber>" + std::to_string(number) + "</PartNumber><ETag>" +
            xml_escaped(part.etag) + "</ETag><ChecksumCRC32>" + to_base64(crc32_bytes(part.crc32)) +
            "</ChecksumCRC32></Part>";
  }
  return text + "</CompleteMultipartUpload>";
}

std::string fault_of_answer(const HttpAnswer& answer, std::string_view body,
                            std::string_view root) {
  const std::string found = xml_root(body);
  const bool has_etag = !answer.header("etag").empty();
  if (answer.status == 200 &&
      (root.empty() ? has_etag && body.empty() : is_receipt(body, found, root))) {
    return {};
  }
  return not_from("S3", answer, body, root);
}

bool consists_of(const HttpAnswer& answer, std::uint64_t size,
                 const std::map<std::uint64_t, StoredPart>& parts) {
  if (answer.status != 200 || answer.content_length != size) return false;
  const std::string etag = joined_etag(parts);
  if (!etag.empty() && unquoted(answer.header("etag")) == etag) return true;
  return answer.header("x-amz-checksum-crc32") == joined_crc32(parts);
}

}  // namespace tensorizer
