// One conversation with a Redis server: commands, and their replies in the same order.
#pragma once

#include <atomic>
#include <chrono>
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

namespace tensorizer {

// What all connections to one server did together. Any thread.
struct RedisCounters {
  std::atomic<std::uint64_t> commands{0};
  std::atomic<std::uint64_t> connections{0};
  std::atomic<std::uint64_t> retries{0};
  std::atomic<std::uint64_t> received{0};  // bytes
  std::atomic<std::uint64_t> lookup{0};    // nanoseconds, as what follows
  std::atomic<std::uint64_t> connect{0};
  std::atomic<std::uint64_t> tls{0};
  std::atomic<std::uint64_t> first_byte{0};
  std::atomic<std::uint64_t> transfer{0};
};

// One thread at a time. Whatever waits ends within kPollInterval of a cancel. What breaks, stalls
// or comes from a busy server is a TemporaryError; after any error the connection is of no more
// use.
class RedisConnection {
 public:
  // Connects. The address and the counters are kept as references.
  RedisConnection(const RedisAddress& address, const RedisOptions& options,
                  std::shared_ptr<CurlShare> share, RedisCounters& counters, Cancel& cancel);

  // Adds a command to what is sent next. Bytes in pieces, its last word, stay where they are until
  // then.
  void add(std::span<const std::string_view> words);
  void add(std::initializer_list<std::string_view> words) { add(std::span(words)); }
  void add(std::initializer_list<std::string_view> words, std::span<const ConstBytes> pieces);
  void send(Cancel& cancel);

  // The next reply. Throws for one that is an Error, except receive_any().
  RedisReply receive_any(Cancel& cancel);
  RedisReply receive(RedisReply::Kind kind, Cancel& cancel);
  void receive_ok(Cancel& cancel) { receive(RedisReply::Kind::Status, cancel); }
  std::int64_t receive_number(Cancel& cancel) {
    return receive(RedisReply::Kind::Number, cancel).number;
  }
  // The next reply is a string: where it has `size` bytes, they go straight into the target, which
  // has room for them. Says how many it has: with another number, the connection is of no more use.
  std::uint64_t receive_into(IoCursor& target, std::uint64_t size, Cancel& cancel);

  // How many seconds a stall may last from now on.
  void set_patience(double seconds) noexcept { stall_timeout_ = seconds; }
  // Asks what the server calls this connection: with that, another one can have it ended.
  void identify(Cancel& cancel);
  // Empty where the server does not say, or was not asked.
  const std::string& id() const noexcept { return id_; }
  // Closes the connection at once: what has not left this machine does not leave it any more.
  void drop() noexcept { transport_.drop(); }

 private:
  // A word that is not in text_: it stands before that byte of it.
  struct Body {
    std::size_t before;
    ConstBytes bytes;
  };

  void finish_login(Cancel& cancel);
  using Take = std::optional<RedisReply> (RedisParser::*)(ConstBytes&);
  RedisReply take(Take take, Cancel& cancel);
  std::size_t receive_some(std::span<iovec> vectors, Cancel& cancel);
  void fill_buffer(Cancel& cancel);
  ConstBytes buffered() const { return ConstBytes(buffer_).subspan(begin_, end_ - begin_); }
  void wait(short events, Cancel& cancel);
  void start_waiting() noexcept;

  const RedisAddress& address_;
  RedisCounters& counters_;
  double stall_timeout_;
  RedisTransport transport_;
  int login_replies_ = 0;  // still to come
  std::string id_;

  std::string text_;  // of the commands that wait to be sent
  std::vector<Body> bodies_;

  RedisParser parser_;
  std::vector<std::byte> buffer_;  // what came, from begin_ to end_
  std::size_t begin_ = 0;
  std::size_t end_ = 0;

  // Whether enough moves.
  std::chrono::steady_clock::time_point since_;
  std::uint64_t moved_ = 0;
};

}  // namespace tensorizer
