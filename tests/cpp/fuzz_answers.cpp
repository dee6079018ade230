// Fuzzes the responses of web servers, of S3, and of services that give credentials. The first byte
// says what the rest is.
#include <chrono>

#include "base/text.h"
#include "base/timestamp.h"
#include "base/utf8.h"
#include "fuzz_text.h"
#include "io/aws/command.h"
#include "io/aws/json.h"
#include "io/http/answer.h"
#include "io/s3/receipt.h"
#include "io/xml.h"

namespace tensorizer {
namespace {

HttpAnswer answer_of(std::string_view head) {
  HttpAnswer answer;
  for (const std::string_view line : split(head, '\n')) answer.take_header(line);
  return answer;
}

void headers(std::string_view text) {
  const HttpAnswer answer = answer_of(text);
  require(!answer.end || answer.begin < *answer.end);
  require(!answer.retry_after ||
          (answer.retry_after->count() >= 0 && answer.retry_after->count() <= 3600));
  for (const auto& [name, value] : answer.headers) {
    require(is_lower_case(name) && trimmed(value) == value && answer.header(name).data());
  }
  if (answer.object.has_strong_etag()) require(answer.object.etag.front() == '"');
  answer.has_strong_validator();
}

void xml(std::string_view text) {
  const std::string root = xml_root(text);
  require(root.size() <= text.size());
  for (const char* const name : {"ETag", "Code", "Message", "UploadId", "Region", "SessionToken"}) {
    const auto found = xml_text(text, name);
    require(!found || (found->size() <= text.size() && !root.empty()));
  }
}

// Text that is escaped comes back.
void escaped_xml(std::string_view text) {
  std::string body = "<R xmlns=\"x\"><a:E>";
  for (const char c : text) {
    if (c < 0x20 || c > 0x7E) return;
    body += c == '&' ? "&amp;" : c == '<' ? "&lt;" : c == '>' ? "&gt;" : std::string(1, c);
  }
  require(xml_text(body + "</a:E></R>", "E") == text);
}

void json(std::string_view text) {
  const auto object = parse_json_object(text);
  if (!object) return;
  for (const auto& [name, value] : *object) {
    require(name.size() + value.size() <= text.size());
    require(is_utf8(name) && is_utf8(value));
  }
}

void timestamp(std::string_view text) {
  using namespace std::chrono;
  const auto time = parse_timestamp(text);
  if (time) require(*time < system_clock::time_point(sys_days(year(2201) / 1 / 2)));
}

void words(std::string_view text) {
  const auto found = split_words(text);
  if (!found) return;
  std::size_t size = 0;
  std::string quoted;
  for (const std::string& word : *found) {
    size += word.size();
    quoted += " '";
    for (const char c : word) quoted += c == '\'' ? "'\\''" : std::string(1, c);
    quoted += "'";
  }
  require(size <= text.size() && split_words(quoted) == found);
}

// Headers, then a body behind an empty line.
void receipt(std::string_view text) {
  const std::size_t gap = std::min(text.find("\n\n"), text.size());
  HttpAnswer answer = answer_of(text.substr(0, gap));
  answer.status = 200;
  const std::string_view body = text.substr(std::min(gap + 2, text.size()));
  for (const std::string_view root : {kCompletion, std::string_view("InitiateMultipartUpload")}) {
    if (fault_of_answer(answer, body, root).empty()) require(!xml_root(body).empty());
  }
  if (fault_of_answer(answer, body, "").empty()) require(!answer.object.etag.empty());
  const std::map<std::uint64_t, StoredPart> parts = {{0, {"\"a\"", 1}}, {1, {"\"b\"", 2}}};
  consists_of(answer, 1 << 20, parts);
}

void fuzz(std::uint8_t kind, std::string_view text) {
  constexpr std::array targets = {headers, xml, escaped_xml, json, timestamp, words, receipt};
  targets[kind % targets.size()](text);
}

}  // namespace
}  // namespace tensorizer

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size > 0) tensorizer::fuzz(data[0], {reinterpret_cast<const char*>(data) + 1, size - 1});
  return 0;
}
