// The bare work of a load or a save over HTTP: libcurl and nothing else.
//
//   bare_http load|save URL FILE RANGES CONNECTIONS CA USER
//
//   load   loads the ranges of the file at URL into fresh memory with huge pages, in requests for
//          at most 8 MiB, which are distributed over the connections
//   save   saves the ranges of FILE, from memory without huge pages, to an S3 server by a multipart
//          upload in parts of 8 MiB (the last one may be smaller)
//
// CA is a file of certificates. If USER is given (KEY:SECRET), every request is signed for S3. Both
// may be empty. RANGES has the format of read_ranges() in bare.h. Every status and every length is
// checked. After a load, outside of the timing, every byte is compared with FILE; after a save, the
// caller has to compare.
//
// The clock covers allocating memory (for a load), connecting, all requests, and joining the
// threads. Prints the seconds.
//
//   g++ -std=c++20 -O2 -o bare_http bare_http.cpp -pthread -lcurl
#include <curl/curl.h>

#include <algorithm>
#include <cstring>
#include <span>

#include "bare.h"

namespace {

using bare::Memory;
using bare::Range;

// The size of requests and parts of tensorizer_ops.
constexpr std::size_t kRequest = std::size_t{8} << 20;
// The maximum of libcurl, and the best size from 64 KiB up to it, determined once: every read costs
// the kernel an acknowledgement.
constexpr long kBuffer = 10L << 20;
constexpr long kUploadBuffer = 2L << 20;

struct Job {
  std::string url;
  std::string file;
  std::string ca;
  std::string user;
  int connections;
};

template <typename Value>
void set(CURL* handle, CURLoption option, Value value) {
  const CURLcode status = curl_easy_setopt(handle, option, value);
  if (status != CURLE_OK) throw std::runtime_error(curl_easy_strerror(status));
}

// One connection, which is reused for all requests. Used by one thread.
class Connection {
 public:
  explicit Connection(const Job& job) : job_(job) {
    if (handle_ == nullptr) throw std::runtime_error("libcurl cannot be initialized");
  }
  ~Connection() {
    curl_easy_cleanup(handle_);
    curl_slist_free_all(headers_);
  }
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  // Fills `out` with the bytes at `offset` of the file.
  void get(std::size_t offset, std::span<unsigned char> out) {
    start("");
    out_ = out;
    const std::string range =
        std::to_string(offset) + "-" + std::to_string(offset + out.size() - 1);
    set(handle_, CURLOPT_RANGE, range.c_str());
    perform(206);
    if (received_ != out.size()) throw std::runtime_error("fewer bytes than requested");
  }

  // Uploads `bytes` and returns their ETag.
  std::string put(const std::string& query, std::span<const unsigned char> bytes) {
    start(query);
    in_ = bytes;
    set(handle_, CURLOPT_UPLOAD, 1L);
    set(handle_, CURLOPT_INFILESIZE_LARGE, static_cast<curl_off_t>(bytes.size()));
    perform(200);
    if (!in_.empty()) throw std::runtime_error("not all bytes were sent");
    curl_header* etag = nullptr;
    if (curl_easy_header(handle_, "etag", 0, CURLH_HEADER, -1, &etag) != CURLHE_OK) {
      throw std::runtime_error("a part without an ETag");
    }
    return etag->value;
  }

  // Returns the response body.
  std::string post(const std::string& query, const std::string& body) {
    start(query);
    set(handle_, CURLOPT_POSTFIELDSIZE, static_cast<long>(body.size()));
    set(handle_, CURLOPT_POSTFIELDS, body.c_str());
    perform(200);
    if (text_.find("<Error") != std::string::npos) throw std::runtime_error(text_);
    return text_;
  }

 private:
  void start(const std::string& query) {
    curl_easy_reset(handle_);
    out_ = {};
    in_ = {};
    received_ = 0;
    text_.clear();
    const std::string url = query.empty() ? job_.url : job_.url + "?" + query;
    set(handle_, CURLOPT_URL, url.c_str());
    set(handle_, CURLOPT_NOSIGNAL, 1L);
    set(handle_, CURLOPT_BUFFERSIZE, kBuffer);
    set(handle_, CURLOPT_UPLOAD_BUFFERSIZE, kUploadBuffer);
    if (!job_.ca.empty()) set(handle_, CURLOPT_CAINFO, job_.ca.c_str());
    if (!job_.user.empty()) {
      set(handle_, CURLOPT_USERPWD, job_.user.c_str());
      set(handle_, CURLOPT_AWS_SIGV4, "aws:amz:us-east-1:s3");
      set(handle_, CURLOPT_HTTPHEADER, headers_);
    }
    set(handle_, CURLOPT_WRITEFUNCTION, &on_body);
    set(handle_, CURLOPT_WRITEDATA, this);
    set(handle_, CURLOPT_READFUNCTION, &on_read);
    set(handle_, CURLOPT_READDATA, this);
  }

  void perform(long expected) {
    const CURLcode status = curl_easy_perform(handle_);
    if (status != CURLE_OK) throw std::runtime_error(curl_easy_strerror(status));
    long answer = 0;
    curl_easy_getinfo(handle_, CURLINFO_RESPONSE_CODE, &answer);
    // Some S3 servers answer a range request with 200. Length and content are checked anyway.
    if (answer != expected && answer != 200) {
      throw std::runtime_error("status " + std::to_string(answer) + ": " + text_);
    }
  }

  static std::size_t on_body(char* data, std::size_t, std::size_t size, void* self) {
    auto& connection = *static_cast<Connection*>(self);
    if (connection.out_.empty()) {
      connection.text_.append(data, size);
      return size;
    }
    // More bytes than requested: returning 0 makes the request fail.
    if (size > connection.out_.size() - connection.received_) return 0;
    std::memcpy(connection.out_.data() + connection.received_, data, size);
    connection.received_ += size;
    return size;
  }

  static std::size_t on_read(char* data, std::size_t, std::size_t size, void* self) {
    auto& in = static_cast<Connection*>(self)->in_;
    size = std::min(size, in.size());
    std::memcpy(data, in.data(), size);
    in = in.subspan(size);
    return size;
  }

  const Job& job_;
  CURL* handle_ = curl_easy_init();
  curl_slist* headers_ = curl_slist_append(nullptr, "x-amz-content-sha256: UNSIGNED-PAYLOAD");
  std::span<unsigned char> out_;
  std::span<const unsigned char> in_;
  std::size_t received_ = 0;
  std::string text_;
};

void compare(const Job& job, const std::vector<Range>& pieces, const unsigned char* memory) {
  const bare::Descriptor file(job.file, O_RDONLY | O_CLOEXEC);
  std::vector<unsigned char> original;
  for (const Range& piece : pieces) {
    original.resize(piece.size);
    bare::read_all(file.number(), original.data(), piece.size, piece.file_offset);
    if (std::memcmp(original.data(), memory + piece.memory_offset, piece.size) != 0) {
      throw std::runtime_error("the loaded bytes differ from the file");
    }
  }
}

double load(const Job& job, const std::vector<Range>& ranges) {
  const std::vector<Range> pieces = bare::cut(ranges, kRequest);
  const bare::Clock clock;
  const Memory memory(bare::memory_of(ranges), true);
  std::atomic<std::size_t> next{0};
  bare::in_threads(job.connections, [&] {
    Connection connection(job);
    for (std::size_t i = next++; i < pieces.size(); i = next++) {
      connection.get(pieces[i].file_offset,
                     {memory.data() + pieces[i].memory_offset, pieces[i].size});
    }
  });
  const double seconds = clock.seconds();
  compare(job, pieces, memory.data());
  return seconds;
}

// Returns the content of the first element with this name.
std::string element(const std::string& xml, const std::string& name) {
  const std::size_t begin = xml.find("<" + name + ">");
  const std::size_t end = xml.find("</" + name + ">");
  if (begin == std::string::npos || end == std::string::npos) {
    throw std::runtime_error("no " + name + " in " + xml);
  }
  return xml.substr(begin + name.size() + 2, end - begin - name.size() - 2);
}

double save(const Job& job, const std::vector<Range>& ranges) {
  const std::vector<Range> parts = bare::cut(ranges, kRequest);
  // No huge pages, as usual for tensors that are saved.
  const Memory memory(bare::memory_of(ranges), false);
  {
    const bare::Descriptor file(job.file, O_RDONLY | O_CLOEXEC);
    bare::read_all(file.number(), memory.data(), bare::memory_of(ranges), 0);
  }
  const bare::Clock clock;
  Connection first(job);
  const std::string upload = "uploadId=" + element(first.post("uploads=", ""), "UploadId");
  std::vector<std::string> etags(parts.size());
  std::atomic<std::size_t> next{0};
  bare::in_threads(job.connections, [&] {
    Connection connection(job);
    for (std::size_t i = next++; i < parts.size(); i = next++) {
      etags[i] = connection.put("partNumber=" + std::to_string(i + 1) + "&" + upload,
                                {memory.data() + parts[i].memory_offset, parts[i].size});
    }
  });
  std::string all = "<CompleteMultipartUpload>";
  for (std::size_t i = 0; i < parts.size(); ++i) {
    all += "<Part><PartNumber>" + std::to_string(i + 1) + "</PartNumber><ETag>" + etags[i] +
           "</ETag></Part>";
  }
  first.post(upload, all + "</CompleteMultipartUpload>");
  return clock.seconds();
}

}  // namespace

int main(int argc, char** argv) try {
  const std::vector<std::string> given(argv, argv + argc);
  const bool saves = argc == 8 && given[1] == "save";
  if (argc != 8 || (!saves && given[1] != "load")) {
    throw std::runtime_error("usage: bare_http load|save URL FILE RANGES CONNECTIONS CA USER");
  }
  const Job job{given[2], given[3], given[6], given[7], std::stoi(given[5])};
  if (curl_global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK) throw std::runtime_error("no libcurl");
  const std::vector<Range> ranges = bare::read_ranges(given[4]);
  std::printf("%.6f\n", saves ? save(job, ranges) : load(job, ranges));
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "bare_http: %s\n", error.what());
  return 1;
}
