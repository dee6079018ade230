// A web server that keeps files, and speaks S3 and Azure Blob Storage as well.
#pragma once

#include <openssl/evp.h>

#include <array>
#include <cstdlib>
#include <ctime>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "../web_request.h"
#include "base/number.h"
#include "codec/crc32.h"
#include "codec/hmac.h"
#include "io/option.h"
#include "io/uri.h"
#include "io/xml.h"
#include "simulated_world.h"

namespace tensorizer::simulation {

struct Request : testing_support::WebRequest {
  std::map<std::string, std::string> query{};

  bool asks(const std::string& name) const { return query.contains(name); }
};

// The versions of the one file that matters, the newest last.
struct Files {
  struct Version {
    std::string bytes;
    std::string etag;   // without quotes
    std::string crc32;  // of an object in parts

    bool is_there() const { return !etag.empty(); }
  };
  std::vector<Version> versions;

  void put(const std::string& bytes, const std::string& etag, const std::string& crc32 = {}) {
    versions.push_back({bytes, etag, crc32});
  }
  bool are_there() const { return !versions.empty() && versions.back().is_there(); }
  void remove() { versions.emplace_back(); }
};

inline std::array<std::byte, 16> md5_of(ConstBytes bytes) {
  std::array<std::byte, 16> digest;
  unsigned int size = 0;
  EVP_Digest(bytes.data(), bytes.size(), reinterpret_cast<unsigned char*>(digest.data()), &size,
             EVP_md5(), nullptr);
  return digest;
}

class Web final : public Service {
 public:
  enum class Kind : std::uint8_t { Plain, S3, Azure };
  Web(SimulatedWorld& world, Files& files, Kind kind) : world_(world), files_(files), kind_(kind) {}

  bool take(Line& line) override {
    const std::size_t end = line.received.find("\r\n\r\n");
    if (end == std::string::npos) return false;
    const std::string head = line.received.substr(0, end + 4);
    Request request = parse(head);
    if (const auto expect = request.headers.find("expect");
        expect != request.headers.end() && !continued_.contains(&line)) {
      continued_.insert(&line);
      line.answers += "HTTP/1.1 100 Continue\r\n\r\n";
    }
    const std::size_t length = parse_number(request.headers["content-length"]).value_or(0);
    if (line.received.size() < head.size() + length) return false;
    continued_.erase(&line);
    request.body = line.received.substr(head.size(), length);
    line.received.erase(0, head.size() + length);
    answer(
        world_, world_.next_fault(), line, head.substr(0, head.find("\r\n")),
        [this, request](bool stale) { return reply(request, stale); },
        [this, request] { return refuse(request); });
    return true;
  }
  void forget(Line& line) override { continued_.erase(&line); }

  // Gives another file for requests whose paths end with this name. Others are asked for in vain
  // then.
  void serve_as(const std::string& name, const Files& files) { named_[name] = &files; }

  // Sends no ETags any more.
  void hide_versions() { names_versions_ = false; }
  bool has_uploads() const { return !uploads_.empty(); }

 private:
  using Parts = std::map<std::uint64_t, std::string>;

  static Request parse(const std::string& head) {
    Request request{testing_support::parse_web_head(head)};
    const std::size_t question = std::min(request.path.find('?'), request.path.size());
    std::string query = request.path.substr(question);
    request.path.resize(question);
    query.erase(0, 1);
    while (!query.empty()) {
      const std::size_t end = std::min(query.find('&'), query.size());
      const std::string part = query.substr(0, end);
      const std::size_t equals = std::min(part.find('='), part.size());
      request.query[part.substr(0, equals)] =
          percent_decoded(part.substr(std::min(equals + 1, part.size()))).value();
      query.erase(0, end + 1);
    }
    return request;
  }

  static std::string text(int status, const std::string& body = {}, const std::string& more = {},
                          bool is_head = false) {
    return "HTTP/1.1 " + std::to_string(status) +
           " x\r\nContent-Length: " + std::to_string(body.size()) + "\r\n" + more + "\r\n" +
           (is_head ? "" : body);
  }

  std::string refuse(const Request& request) {
    // S3 may have sent the status before it knew.
    if (kind_ == Kind::S3 && request.method == "POST" && world_.one_in(2)) {
      return text(200, "<Error><Code>InternalError</Code></Error>");
    }
    constexpr std::array kStatus{500, 502, 503, 504, 429};
    const int status = kStatus[world_.below(kStatus.size())];
    return text(status, world_.one_in(2) ? "<html>busy</html>" : "",
                world_.one_in(3) ? "Retry-After: 7\r\n" : "");
  }

  // Returns the answer of S3 to a request from a machine whose clock is wrong; empty for others.
  std::string refuse_clock(const Request& request) const {
    const auto signed_at = request.headers.find("x-amz-date");
    if (kind_ != Kind::S3 || signed_at == request.headers.end()) return {};
    std::tm given{};
    if (strptime(signed_at->second.c_str(), "%Y%m%dT%H%M%SZ", &given) == nullptr) return text(400);
    const std::time_t now = std::chrono::system_clock::to_time_t(world_.true_date());
    if (std::abs(timegm(&given) - now) <= 15 * 60) return {};
    std::tm parts{};
    std::array<char, 64> date{};
    std::strftime(date.data(), date.size(), "%a, %d %b %Y %H:%M:%S GMT", gmtime_r(&now, &parts));
    return text(403, "<Error><Code>RequestTimeTooSkewed</Code></Error>",
                std::string("Date: ") + date.data() + "\r\n", request.method == "HEAD");
  }

  // Returns the answer to a PUT that is to replace another file than the one that is there; empty
  // for others.
  std::string refuse_condition(const Request& request) const {
    const bool is_there = files_.are_there();
    const std::string etag = is_there ? '"' + files_.versions.back().etag + '"' : "";
    if (is_there && request.headers.contains("if-none-match")) {
      return text(kind_ == Kind::Azure ? 409 : 412);
    }
    const auto wanted = request.headers.find("if-match");
    if (wanted == request.headers.end() || wanted->second == etag) return {};
    return text(kind_ == Kind::S3 && !is_there ? 404 : 412);
  }

  std::string reply(const Request& request, bool stale) {
    if (const std::string refusal = refuse_clock(request); !refusal.empty()) return refusal;
    if (request.method == "GET" || request.method == "HEAD") return get(request, stale);
    if (request.method == "DELETE" && !request.asks("uploadId")) return remove();
    if (const std::string refusal = refuse_condition(request); !refusal.empty()) return refusal;
    if (kind_ == Kind::S3) return reply_as_s3(request);
    if (kind_ == Kind::Azure) return reply_as_azure(request);
    if (request.method != "PUT") return text(405);
    store(request.body, to_hex(md5_of(as_bytes(request.body))));
    return text(201);
  }

  std::string remove() {
    const bool was_there = files_.are_there();
    world_.note("removes", was_there ? "the file" : "nothing");
    if (was_there) files_.remove();
    if (kind_ == Kind::S3) return text(204);
    return text(was_there ? kind_ == Kind::Azure ? 202 : 204 : 404);
  }

  // Returns the versions of the file that a request asks for.
  const Files& files_of(const Request& request) const {
    const auto named = named_.find(request.path.substr(request.path.rfind('/') + 1));
    return named == named_.end() ? files_ : *named->second;
  }

  std::string get(const Request& request, bool stale) {
    const Files& files = files_of(request);
    if (!files.are_there()) return text(404);
    const std::size_t count = files.versions.size();
    const Files::Version& file = files.versions[stale && count > 1 ? count - 2 : count - 1];
    const std::string etag = '"' + file.etag + '"';
    std::string headers = names_versions_ ? "ETag: " + etag + "\r\n" : "";
    if (!file.crc32.empty()) headers += "x-amz-checksum-crc32: " + file.crc32 + "\r\n";
    if (kind_ == Kind::Azure) headers += "x-ms-request-id: 1\r\n";
    const auto wanted = request.headers.find("if-match");
    if (knows_conditions_ && wanted != request.headers.end() && wanted->second != etag) {
      return text(412, "", headers);
    }
    const bool is_head = request.method == "HEAD";
    const auto range = request.headers.find("range");
    if (range == request.headers.end()) return text(200, file.bytes, headers, is_head);
    const std::string words = range->second.substr(6);
    const auto begin = *parse_number(words.substr(0, words.find('-')));
    const auto last = *parse_number(words.substr(words.find('-') + 1));
    const std::string size = std::to_string(file.bytes.size());
    if (begin >= file.bytes.size()) {
      return text(416, "", headers + "Content-Range: bytes */" + size + "\r\n");
    }
    const std::string bytes = file.bytes.substr(begin, last + 1 - begin);
    return text(206, bytes,
                headers + "Content-Range: bytes " + std::to_string(begin) + "-" +
                    std::to_string(begin + bytes.size() - 1) + "/" + size + "\r\n",
                is_head);
  }

  std::string reply_as_s3(const Request& request) {
    if (request.method == "POST" && request.asks("uploads")) {
      const std::string id = "upload" + std::to_string(++made_);
      uploads_[id];
      return text(200, "<InitiateMultipartUploadResult><UploadId>" + id +
                           "</UploadId></InitiateMultipartUploadResult>");
    }
    if (!request.asks("uploadId")) {
      const std::string etag = to_hex(md5_of(as_bytes(request.body)));
      store(request.body, etag);
      return text(200, "", "ETag: \"" + etag + "\"\r\n");
    }
    const auto upload = uploads_.find(request.query.at("uploadId"));
    if (upload == uploads_.end()) return text(404, "<Error><Code>NoSuchUpload</Code></Error>");
    if (request.method == "DELETE") {
      uploads_.erase(upload);
      return text(204);
    }
    if (request.method == "PUT") {
      upload->second[*parse_number(request.query.at("partNumber"))] = request.body;
      return text(200, "", "ETag: \"" + to_hex(md5_of(as_bytes(request.body))) + "\"\r\n");
    }
    std::string bytes, digests;
    std::uint32_t crc = 0;
    std::size_t listed = 0;
    for (const auto& [number, part] : upload->second) {
      const std::string wanted = "<PartNumber>" + std::to_string(number) + "</PartNumber>";
      if (request.body.find(wanted) == std::string::npos) continue;
      ++listed;
      bytes += part;
      digests += as_text(md5_of(as_bytes(part)));
      crc = tensorizer::crc32(crc, crc32_bytes(tensorizer::crc32(0, as_bytes(part))));
    }
    const std::string end = "-" + std::to_string(listed);
    const std::string etag = to_hex(md5_of(as_bytes(digests))) + end;
    store(bytes, etag, to_base64(crc32_bytes(crc)) + end);
    uploads_.erase(upload);
    return text(200, "<CompleteMultipartUploadResult><ETag>\"" + etag +
                         "\"</ETag></CompleteMultipartUploadResult>");
  }

  std::string reply_as_azure(const Request& request) {
    constexpr const char* kId = "x-ms-request-id: 1\r\n";
    const auto comp = request.query.find("comp");
    if (comp == request.query.end()) {
      store(request.body, to_hex(md5_of(as_bytes(request.body))));
      blocks_.clear();
    } else if (comp->second == "block") {
      blocks_[request.query.at("blockid")] = request.body;
    } else {
      std::string bytes;
      std::map<std::string, std::string> used;
      for (std::size_t at = 0; (at = request.body.find("<Latest>", at)) != std::string::npos;) {
        at += 8;
        const std::string id = request.body.substr(at, request.body.find('<', at) - at);
        const auto block = blocks_.find(id);
        const auto old = committed_.find(id);
        if (block == blocks_.end() && old == committed_.end()) {
          return text(400, "<Error><Code>InvalidBlockList</Code></Error>", kId);
        }
        used[id] = block != blocks_.end() ? block->second : old->second;
        bytes += used[id];
      }
      committed_ = used;
      blocks_.clear();
      store(bytes, to_hex(md5_of(as_bytes(bytes))));
    }
    return text(201, "", kId);
  }

  void store(const std::string& bytes, const std::string& etag, const std::string& crc32 = {}) {
    world_.note("stores", std::to_string(bytes.size()));
    files_.put(bytes, etag, crc32);
  }

  SimulatedWorld& world_;
  Files& files_;
  std::map<std::string, const Files*> named_;
  const Kind kind_;
  bool names_versions_ = true;
  const bool knows_conditions_ = !world_.one_in(3);
  std::set<const Line*> continued_;
  std::map<std::string, Parts> uploads_;
  std::map<std::string, std::string> blocks_, committed_;
  int made_ = 0;
};

// Faults after which a retry succeeds.
inline constexpr std::array kHarmless{Fault::Unheard, Fault::Unanswered, Fault::Refused,
                                      Fault::WronglyRefused, Fault::Twice};

// Returns the URI of the file on a server, and adds the options that it needs.
inline std::string uri_on(Web::Kind kind, OptionList& options) {
  OptionList more;
  std::string uri = "http://simulated/file";
  if (kind == Web::Kind::S3) {
    uri = "s3://bucket/file";
    more = {{"s3_access_key_id", "AKIA"},
            {"s3_secret_access_key", "secret"},
            {"s3_endpoint", "http://simulated"},
            {"s3_region", "us-east-1"}};
  } else if (kind == Web::Kind::Azure) {
    uri = "az://account/container/file";
    more = {{"az_endpoint", "http://simulated"}, {"az_account_key", "c2VjcmV0"}};
  }
  options.insert(options.end(), more.begin(), more.end());
  return uri;
}

}  // namespace tensorizer::simulation
