// A connection to a Redis server: sends commands, and receives their replies in the same order.
#pragma once

#include <atomic>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "base/cancel.h"
#include "io/descriptor.h"
#include "io/redis/address.h"
#include "io/redis/parser.h"
#include "io/redis/reply.h"
#include "io/redis/transport.h"
#include "io/stall.h"

namespace tensorizer {

// The statistics of all connections to one server. Thread-safe.
struct RedisCounters {
  std::atomic<std::uint64_t> commands{0};
  std::atomic<std::uint64_t> connections{0};
  std::atomic<std::uint64_t> retries{0};
  std::atomic<std::uint64_t> received{0};  // bytes
  std::atomic<std::uint64_t> lookup{0};    // nanoseconds, as the members below
  std::atomic<std::uint64_t> connect{0};
  std::atomic<std::uint64_t> tls{0};
  std::atomic<std::uint64_t> first_byte{0};
  std::atomic<std::uint64_t> transfer{0};
};

// Not thread-safe: one thread at a time. Methods that block throw within kPollInterval of a cancel.
// A broken connection, a stall and a busy server throw TemporaryError. After any error the
// connection must not be used.
class RedisConnection {
 public:
  // Connects. Keeps references to the address and the counters.
  RedisConnection(const RedisAddress& address, const RedisOptions& options,
                  std::shared_ptr<CurlShare> share, RedisCounters& counters, Cancel& cancel);

  // Adds a command to those that send() sends. `pieces` are the bytes of its last word, and must
  // stay in memory until send() returns.
  void add(std::span<const std::string_view> words);
  void add(std::initializer_list<std::string_view> words) { add(std::span(words)); }
  void add(std::initializer_list<std::string_view> words, std::span<const ConstBytes> pieces);
  void send(Cancel& cancel);

  // Return the next reply. Throw if it is an Error (except receive_any()) or of another kind.
  RedisReply receive_any(Cancel& cancel);
  RedisReply receive(RedisReply::Kind kind, Cancel& cancel);
  void receive_ok(Cancel& cancel) { receive(RedisReply::Kind::Status, cancel); }
  std::int64_t receive_number(Cancel& cancel) {
    return receive(RedisReply::Kind::Number, cancel).number;
  }
  // Receives a string of `size` bytes straight into the target, which must have room for it.
  // Returns the size of the string in the reply. If that is not `size`, nothing was received into
  // the target, and the connection must not be used any more.
  std::uint64_t receive_into(IoCursor& target, std::uint64_t size, Cancel& cancel);

  // Sets how many seconds a stall may last, from the next send() on.
  void set_patience(double seconds) noexcept { stall_timeout_ = seconds; }
  double patience() const noexcept { return stall_timeout_; }
  // Asks the server for the id of this connection, with which another connection can end it.
  void identify(Cancel& cancel);
  // Returns the id; empty without identify(), or if the server did not tell it.
  const std::string& id() const noexcept { return id_; }
  // Closes the connection at once, and discards bytes that have not left this machine.
  void drop() noexcept { transport_.drop(); }

 private:
  // Bytes that are sent between two bytes of text_: before the one at `before`.
  struct Body {
    std::size_t before;
    ConstBytes bytes;
  };

  [[noreturn]] void throw_nonsense(std::string_view seen) const;
  void finish_login(Cancel& cancel);
  using Take = std::optional<RedisReply> (RedisParser::*)(ConstBytes&);
  RedisReply take(Take take, Cancel& cancel);
  std::size_t receive_some(std::span<iovec> vectors, Cancel& cancel);
  void fill_buffer(Cancel& cancel);
  ConstBytes buffered() const { return ConstBytes(buffer_).subspan(begin_, end_ - begin_); }
  void wait(short events, Cancel& cancel);

  const RedisAddress& address_;
  RedisCounters& counters_;
  double stall_timeout_;
  RedisTransport transport_;
  int login_replies_ = 0;  // that have not been received yet
  std::string id_;

  std::string text_;  // of the commands to send
  std::vector<Body> bodies_;

  RedisParser parser_;
  std::vector<std::byte> buffer_;  // received bytes, from begin_ to end_
  std::size_t begin_ = 0;
  std::size_t end_ = 0;

  std::uint64_t moved_ = 0;  // bytes sent and received
  StallWatch watch_;         // since the last send()
};

}  // namespace tensorizer
