#include "io/redis/connection.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <optional>

#include "base/number.h"
#include "io/redis/tcp.h"
#include "io/retry.h"

namespace tensorizer {

namespace {

using Clock = std::chrono::steady_clock;

// Slower than this, for as long as a stall may last, is a stall.
constexpr double kFloorPerSecond = 1024;
// Also what a line of a reply may have at most.
constexpr std::size_t kBufferSize = 64 << 10;
// What a reply may take that is not read into place: a thousand of the longest names fit.
constexpr std::uint64_t kLargestReply = 128 << 20;
constexpr int kDeepestReply = 8;

std::optional<std::int64_t> signed_number(std::string_view text) {
  std::int64_t number = 0;
  const auto [stopped, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || stopped != text.data() + text.size()) return std::nullopt;
  return number;
}

}  // namespace

RedisConnection::RedisConnection(const RedisAddress& address, double connect_timeout,
                                 double stall_timeout, RedisCounters& counters, Cancel& cancel)
    : address_(address), counters_(counters), stall_timeout_(stall_timeout), buffer_(kBufferSize) {
  TcpConnection connection =
      connect_tcp(address.host, address.port, std::chrono::duration<double>(connect_timeout),
                  address.label, cancel);
  socket_ = std::move(connection.socket);
  start_waiting();
  counters.connections += 1;
  counters.lookup += static_cast<std::uint64_t>(connection.lookup.count());
  counters.connect += static_cast<std::uint64_t>(connection.connect.count());
  // They go with the first command, and their replies are looked at before its own.
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
  text_ += "*" + std::to_string(words.size()) + "\r\n";
  for (const std::string_view word : words) {
    text_ += "$" + std::to_string(word.size()) + "\r\n";
    text_ += word;
    text_ += "\r\n";
  }
  counters_.commands += 1;
}

void RedisConnection::add(std::initializer_list<std::string_view> words,
                          std::span<const ConstBytes> pieces) {
  std::uint64_t size = 0;
  for (const ConstBytes piece : pieces) size += piece.size();
  const std::size_t begin = text_.size();
  add(words);
  text_.replace(begin, text_.find('\n', begin) + 1 - begin,
                "*" + std::to_string(words.size() + 1) + "\r\n");
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
  start_waiting();
  IoCursor cursor((std::span<const ConstBytes>(pieces)));
  while (cursor.left() > 0) {
    cancel.check();
    const std::span<iovec> vectors = cursor.next();
    msghdr message{};
    message.msg_iov = vectors.data();
    message.msg_iovlen = vectors.size();
    const ssize_t moved = sendmsg(socket_.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (moved >= 0) {
      moved_ += static_cast<std::uint64_t>(moved);
      cursor.advance(static_cast<std::uint64_t>(moved));
    } else if (errno == EAGAIN) {
      wait(POLLOUT, cancel);
    } else if (errno != EINTR) {
      throw_broken(errno);
    }
  }
  text_.clear();
  bodies_.clear();
}

RedisReply RedisConnection::receive_any(Cancel& cancel) {
  finish_login(cancel);
  std::uint64_t budget = kLargestReply;
  return read_reply(0, budget, cancel);
}

RedisReply RedisConnection::receive(RedisReply::Kind kind, Cancel& cancel) {
  RedisReply reply = receive_any(cancel);
  if (reply.kind == RedisReply::Kind::Error) throw_redis_error(reply.text, address_.label);
  if (reply.kind != kind) throw_nonsense(reply.text);
  return reply;
}

std::uint64_t RedisConnection::receive_into(IoCursor& target, std::uint64_t size, Cancel& cancel) {
  finish_login(cancel);
  const std::string_view line = read_line(cancel);
  if (line.starts_with('-')) throw_redis_error(line.substr(1), address_.label);
  if (line == "$-1") return 0;
  const auto given = line.starts_with('$') ? parse_number(line.substr(1)) : std::nullopt;
  if (!given) throw_nonsense(line);
  if (*given != size) return *given;
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
  read_line_end(cancel);
  return size;
}

void RedisConnection::identify(Cancel& cancel) {
  add({"CLIENT", "ID"});
  send(cancel);
  // Not every server knows that, and not everybody may ask.
  const RedisReply reply = receive_any(cancel);
  if (reply.kind == RedisReply::Kind::Number) id_ = std::to_string(reply.number);
}

void RedisConnection::drop() noexcept {
  const linger at_once{.l_onoff = 1, .l_linger = 0};
  setsockopt(socket_.get(), SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once));
  socket_.close();
}

void RedisConnection::finish_login(Cancel& cancel) {
  while (login_replies_ > 0) {
    std::uint64_t budget = kBufferSize;
    const RedisReply reply = read_reply(0, budget, cancel);
    const bool is_auth = login_replies_ == (address_.database != 0 ? 2 : 1);
    if (reply.kind == RedisReply::Kind::Error) {
      if (is_auth && !address_.password.empty()) throw_login_error(reply.text, address_.label);
      throw_redis_error(reply.text, address_.label);
    }
    --login_replies_;
  }
}

RedisReply RedisConnection::read_reply(int depth, std::uint64_t& budget, Cancel& cancel) {
  if (depth > kDeepestReply) throw_nonsense("lists in lists");
  const std::string line(read_line(cancel));
  const std::string_view rest =
      std::string_view(line).substr(std::min<std::size_t>(1, line.size()));
  const char type = line.empty() ? '\0' : line[0];
  RedisReply reply;
  if (type == '+' || type == '-') {
    if (rest.size() > budget) throw_nonsense(line);
    budget -= rest.size();
    reply.kind = type == '+' ? RedisReply::Kind::Status : RedisReply::Kind::Error;
    reply.text = rest;
    return reply;
  }
  const std::optional<std::int64_t> number = signed_number(rest);
  if (!number) throw_nonsense(line);
  if (type == ':') {
    reply.kind = RedisReply::Kind::Number;
    reply.number = *number;
    return reply;
  }
  if ((type != '$' && type != '*') || *number < -1) throw_nonsense(line);
  if (*number == -1) return reply;
  if (type == '$') {
    reply.kind = RedisReply::Kind::Text;
    read_text(reply.text, static_cast<std::uint64_t>(*number), budget, cancel);
    return reply;
  }
  reply.kind = RedisReply::Kind::List;
  for (std::int64_t i = 0; i < *number; ++i) {
    if (budget < sizeof(RedisReply)) throw_nonsense(line);
    budget -= sizeof(RedisReply);
    reply.list.push_back(read_reply(depth + 1, budget, cancel));
  }
  return reply;
}

// Memory is taken as the bytes come, whatever their number is said to be.
void RedisConnection::read_text(std::string& text, std::uint64_t size, std::uint64_t& budget,
                                Cancel& cancel) {
  if (size > budget) throw_nonsense("$" + std::to_string(size));
  budget -= size;
  while (text.size() < size) {
    if (begin_ == end_) fill_buffer(cancel);
    const ConstBytes taken = buffered().first(std::min(size - text.size(), end_ - begin_));
    text += as_text(taken);
    begin_ += taken.size();
  }
  read_line_end(cancel);
}

// Without its end. Valid until more is read.
std::string_view RedisConnection::read_line(Cancel& cancel) {
  std::size_t searched = 0;
  for (;;) {
    const std::string_view seen = as_text(buffered());
    const std::size_t end = seen.find('\n', searched);
    if (end != std::string_view::npos) {
      begin_ += end + 1;
      if (end == 0 || seen[end - 1] != '\r') throw_nonsense(seen.substr(0, end));
      return seen.substr(0, end - 1);
    }
    if (seen.size() == buffer_.size()) throw_nonsense(seen);
    searched = seen.size();
    fill_buffer(cancel);
  }
}

void RedisConnection::read_line_end(Cancel& cancel) {
  const std::string_view rest = read_line(cancel);
  if (!rest.empty()) throw_nonsense(rest);
}

// At least a byte, and as many as there are.
std::size_t RedisConnection::receive_some(std::span<iovec> vectors, Cancel& cancel) {
  for (;;) {
    cancel.check();
    msghdr message{};
    message.msg_iov = vectors.data();
    message.msg_iovlen = vectors.size();
    const ssize_t moved = recvmsg(socket_.get(), &message, MSG_DONTWAIT);
    if (moved > 0) {
      moved_ += static_cast<std::uint64_t>(moved);
      counters_.received += static_cast<std::uint64_t>(moved);
      return static_cast<std::size_t>(moved);
    }
    if (moved == 0) throw_broken(0);
    if (errno == EAGAIN) {
      wait(POLLIN, cancel);
    } else if (errno != EINTR) {
      throw_broken(errno);
    }
  }
}

// Behind what is in the buffer already, which is not full of it.
void RedisConnection::fill_buffer(Cancel& cancel) {
  if (begin_ > 0) {
    std::memmove(buffer_.data(), buffer_.data() + begin_, end_ - begin_);
    end_ -= begin_;
    begin_ = 0;
  }
  iovec room{buffer_.data() + end_, buffer_.size() - end_};
  end_ += receive_some({&room, 1}, cancel);
}

void RedisConnection::start_waiting() noexcept {
  since_ = Clock::now();
  moved_ = 0;
}

void RedisConnection::wait(short events, Cancel& cancel) {
  for (;;) {
    cancel.check();
    const std::chrono::duration<double> waited = Clock::now() - since_;
    if (waited.count() >= stall_timeout_) {
      if (static_cast<double>(moved_) < kFloorPerSecond * waited.count()) {
        throw TemporaryError(ErrorKind::TimedOut,
                             "the server of " + address_.label + " stalls: in " +
                                 std::to_string(static_cast<int>(waited.count())) +
                                 " s nothing moved, or next to nothing");
      }
      start_waiting();
    }
    pollfd polled{socket_.get(), events, 0};
    const int ready = poll(&polled, 1, static_cast<int>(kPollInterval.count()));
    if (ready > 0) return;
    if (ready < 0 && errno != EINTR) throw_broken(errno);
  }
}

void RedisConnection::throw_broken(int system_errno) const {
  throw TemporaryError(ErrorKind::Unavailable,
                       system_errno == 0
                           ? "the server of " + address_.label + " closed the connection"
                           : "the connection to the server of " + address_.label +
                                 " broke: " + std::strerror(system_errno),
                       system_errno);
}

void RedisConnection::throw_nonsense(std::string_view seen) const {
  throw Error(ErrorKind::Unavailable, "the server of " + address_.label +
                                          " does not answer as Redis does: " + quote(seen, 80));
}

}  // namespace tensorizer
