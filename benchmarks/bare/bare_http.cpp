// The bare work of a load over HTTP: libcurl and nothing else.
//
//   bare_http URL FILE RANGES CONNECTIONS CA USER
//
// Loads the ranges of the file at URL into fresh memory with huge pages, in requests for at most
// 8 MiB, which are distributed over the connections.
//
// CA is a file of certificates. If USER is given (KEY:SECRET), every request is signed for S3. Both
// may be empty. RANGES has the format of read_ranges() in bare.h. Every status and every length is
// checked. After the load, outside of the timing, every byte is compared with FILE.
//
// The clock covers allocating memory, connecting, all requests, and joining the threads. Prints the
// seconds.
#include <curl/curl.h>

#include <algorithm>
#include <cstring>
#include <span>

#include "bare.h"

namespace {

using bare::Memory;
using bare::Range;

// The size of requests of tensorizer_ops.
constexpr std::size_t kRequest = std::size_t{8} << 20;
// The maximum of libcurl, and the best size from 64 KiB up to it, determined once: every read costs
// the kernel an acknowledgement.
constexpr long kBuffer = 10L << 20;

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
    out_ = out;
    received_ = 0;
    curl_easy_reset(handle_);
    set(handle_, CURLOPT_URL, job_.url.c_str());
    set(handle_, CURLOPT_NOSIGNAL, 1L);
    set(handle_, CURLOPT_BUFFERSIZE, kBuffer);
    if (!job_.ca.empty()) set(handle_, CURLOPT_CAINFO, job_.ca.c_str());
    if (!job_.user.empty()) {
      set(handle_, CURLOPT_USERPWD, job_.user.c_str());
      set(handle_, CURLOPT_AWS_SIGV4, "aws:amz:us-east-1:s3");
      set(handle_, CURLOPT_HTTPHEADER, headers_);
    }
    set(handle_, CURLOPT_WRITEFUNCTION, &on_body);
    set(handle_, CURLOPT_WRITEDATA, this);
    const std::string range =
        std::to_string(offset) + "-" + std::to_string(offset + out.size() - 1);
    set(handle_, CURLOPT_RANGE, range.c_str());
    const CURLcode status = curl_easy_perform(handle_);
    if (status != CURLE_OK) throw std::runtime_error(curl_easy_strerror(status));
    long answer = 0;
    curl_easy_getinfo(handle_, CURLINFO_RESPONSE_CODE, &answer);
    // Some S3 servers answer a range request with 200. Length and content are checked anyway.
    if (answer != 206 && answer != 200) {
      throw std::runtime_error("status " + std::to_string(answer));
    }
    if (received_ != out.size()) throw std::runtime_error("fewer bytes than requested");
  }

 private:
  static std::size_t on_body(char* data, std::size_t, std::size_t size, void* self) {
    auto& connection = *static_cast<Connection*>(self);
    // More bytes than requested: returning 0 makes the request fail.
    if (size > connection.out_.size() - connection.received_) return 0;
    std::memcpy(connection.out_.data() + connection.received_, data, size);
    connection.received_ += size;
    return size;
  }

  const Job& job_;
  CURL* handle_ = curl_easy_init();
  curl_slist* headers_ = curl_slist_append(nullptr, "x-amz-content-sha256: UNSIGNED-PAYLOAD");
  std::span<unsigned char> out_;
  std::size_t received_ = 0;
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

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> given(argv, argv + argc);
  if (argc != 7) throw std::runtime_error("usage: bare_http URL FILE RANGES CONNECTIONS CA USER");
  const Job job{given[1], given[2], given[5], given[6], std::stoi(given[4])};
  if (curl_global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK) throw std::runtime_error("no libcurl");
  std::printf("%.6f\n", load(job, bare::read_ranges(given[3])));
}
