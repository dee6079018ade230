#include "io/redis/connection.h"

#include <hiredis.h>
#include <poll.h>

#include <algorithm>
#include <memory>
#include <new>

#include "base/redaction.h"
#include "base/world.h"
#include "io/retry.h"

namespace tensorizer {

namespace {

constexpr std::size_t kBufferSize = 64 << 10;

std::uint64_t nanoseconds(double seconds) { return static_cast<std::uint64_t>(seconds * 1e9); }

// Returns a command in Redis's protocol.
std::string format(std::span<const std::string_view> words) {
  std::vector<const char*> texts;
  std::vector<std::size_t> sizes;
  for (const std::string_view word : words) {
    texts.push_back(word.data());
    sizes.push_back(word.size());
  }
  char* command = nullptr;
  const auto size =
      redisFormatCommandArgv(&command, static_cast<int>(words.size()), texts.data(), sizes.data());
  if (size < 0) throw std::bad_alloc();
  const std::unique_ptr<char, void (*)(char*)> owner(command, &redisFreeCommand);
  return {command, static_cast<std::size_t>(size)};
}

}  // namespace

RedisConnection::RedisConnection(const RedisAddress& address, const RedisOptions& options,
                                 std::shared_ptr<CurlShare> share, RedisCounters& counters,
                                 Cancel& cancel)
    : address_(address),
      counters_(counters),
      stall_timeout_(options.stall_timeout),
      transport_(address, options.tls, options.connect_timeout, std::move(share), cancel),
      parser_(address.label),
      buffer_(kBufferSize),
      watch_(stall_timeout_, moved_) {
  redact_everywhere(Secrets{address.user, address.password}, SecretKind::Given);
  const ConnectTimes& times = transport_.times();
  counters.connections += 1;
  counters.lookup += nanoseconds(times.lookup);
  counters.connect += nanoseconds(times.connect);
  counters.tls += nanoseconds(times.tls);
  // These commands are sent with the first one, and their replies are checked before its reply.
  if (!address.password.empty()) {
    if (address.user.empty()) {
      add({"AUTH", address.password});
    } else {
      add({"AUTH", address.user, address.password});
    }
    ++login_replies_;
  }
  if (address.database != 0) {
    add({"SELECT", std::to_string(address.database)});
    ++login_replies_;
  }
}

void RedisConnection::add(std::span<const std::string_view> words) {
  text_ += format(words);
  counters_.commands += 1;
}

void RedisConnection::add(std::initializer_list<std::string_view> words,
                          std::span<const ConstBytes> pieces) {
  // Formats the command with an empty last word, and replaces that: its bytes are sent from where
  // they are, without a copy.
  constexpr std::string_view kEmptyWord = "$0\r\n\r\n";
  std::vector<std::string_view> all(words);
  all.emplace_back("");
  add(all);
  text_.resize(text_.size() - kEmptyWord.size());
  std::uint64_t size = 0;
  for (const ConstBytes piece : pieces) size += piece.size();
  text_ += "$" + std::to_string(size) + "\r\n";
  for (const ConstBytes piece : pieces) bodies_.push_back({text_.size(), piece});
  text_ += "\r\n";
}

void RedisConnection::send(Cancel& cancel) {
  std::vector<ConstBytes> pieces;
  pieces.reserve(2 * bodies_.size() + 1);
  std::size_t at = 0;
  for (const Body& body : bodies_) {
    pieces.push_back(as_bytes(text_).subspan(at, body.before - at));
    pieces.push_back(body.bytes);
    at = body.before;
  }
  pieces.push_back(as_bytes(text_).subspan(at));
  watch_ = StallWatch(stall_timeout_, moved_);
  IoCursor cursor((std::span<const ConstBytes>(pieces)));
  while (cursor.left() > 0) {
    cancel.check();
    const std::size_t moved = transport_.send(cursor.next());
    if (moved == 0) wait(POLLOUT, cancel);
    moved_ += moved;
    cursor.advance(moved);
  }
  text_.clear();
  bodies_.clear();
}

RedisReply RedisConnection::receive_any(Cancel& cancel) {
  finish_login(cancel);
  return take(&RedisParser::take, cancel);
}

RedisReply RedisConnection::receive(RedisReply::Kind kind, Cancel& cancel) {
  RedisReply reply = receive_any(cancel);
  if (reply.kind == RedisReply::Kind::Error) throw_redis_error(reply.text, address_.label);
  if (reply.kind != kind) throw_nonsense(reply.text);
  return reply;
}

std::uint64_t RedisConnection::receive_into(IoCursor& target, std::uint64_t size, Cancel& cancel) {
  finish_login(cancel);
  const RedisReply head = take(&RedisParser::take_head, cancel);
  if (head.kind == RedisReply::Kind::Error) throw_redis_error(head.text, address_.label);
  if (head.kind == RedisReply::Kind::Nothing) return 0;
  if (head.kind != RedisReply::Kind::Text) throw_nonsense(head.text);
  const auto given = static_cast<std::uint64_t>(head.number);
  if (given != size) return given;
  std::uint64_t left = size;
  while (left > 0) {
    if (begin_ < end_) {
      const std::size_t taken = target.fill(buffered().first(std::min(left, end_ - begin_)));
      begin_ += taken;
      left -= taken;
    } else {
      const std::size_t taken = receive_some(target.next(left), cancel);
      target.advance(taken);
      left -= taken;
    }
  }
  for (const char expected : std::string_view("\r\n")) {
    if (begin_ == end_) fill_buffer(cancel);
    if (buffer_[begin_] != static_cast<std::byte>(expected)) {
      throw_nonsense(as_text(buffered()));
    }
    ++begin_;
  }
  return size;
}

void RedisConnection::throw_nonsense(std::string_view seen) const {
  const RedactedQuotes quotes(address_);
  parser_.throw_nonsense(seen);
}

void RedisConnection::identify(Cancel& cancel) {
  add({"CLIENT", "ID"});
  send(cancel);
  // An error is ignored: old servers do not know the command, and the user may lack the right.
  const RedisReply reply = receive_any(cancel);
  if (reply.kind == RedisReply::Kind::Number) id_ = std::to_string(reply.number);
}

void RedisConnection::finish_login(Cancel& cancel) {
  while (login_replies_ > 0) {
    const RedisReply reply = take(&RedisParser::take, cancel);
    const bool is_auth = login_replies_ == (address_.database != 0 ? 2 : 1);
    if (reply.kind == RedisReply::Kind::Error) {
      if (is_auth && !address_.password.empty()) throw_login_error(reply.text, address_.label);
      throw_redis_error(reply.text, address_.label);
    }
    --login_replies_;
  }
}

RedisReply RedisConnection::take(Take take, Cancel& cancel) {
  const RedactedQuotes quotes(address_);
  for (;;) {
    ConstBytes bytes = buffered();
    std::optional<RedisReply> reply = (parser_.*take)(bytes);
    begin_ = end_ - bytes.size();
    if (reply) {
      if (reply->kind == RedisReply::Kind::Error) {
        Redaction text(reply->text);
        address_.redact(text);
        reply->text = text.text();
      }
      return *std::move(reply);
    }
    fill_buffer(cancel);
  }
}

// Blocks until at least one byte has arrived, and receives as many as fit.
std::size_t RedisConnection::receive_some(std::span<iovec> vectors, Cancel& cancel) {
  for (;;) {
    cancel.check();
    const std::size_t moved = transport_.receive(vectors);
    if (moved > 0) {
      moved_ += moved;
      counters_.received += moved;
      return moved;
    }
    wait(POLLIN, cancel);
  }
}

// Refills the buffer, whose bytes must all have been consumed.
void RedisConnection::fill_buffer(Cancel& cancel) {
  iovec room{buffer_.data(), buffer_.size()};
  begin_ = end_ = 0;
  end_ = receive_some({&room, 1}, cancel);
}

// Waits for `events` on the descriptor, up to kPollInterval. Throws TemporaryError for a stall.
void RedisConnection::wait(short events, Cancel& cancel) {
  cancel.check();
  if (watch_.has_stalled(moved_)) {
    throw TemporaryError(ErrorKind::TimedOut,
                         "the server of " + address_.label + " stalls: in " +
                             std::to_string(static_cast<int>(watch_.waited())) +
                             " s nothing or almost nothing was transferred");
  }
  if (wait_in_simulation(kPollInterval)) return;
  pollfd polled{transport_.descriptor(), events, 0};
  poll(&polled, 1, static_cast<int>(kPollInterval.count()));
}

}  // namespace tensorizer
