// A Redis server that keeps its keys in memory, and has the commands that csrc/io/redis uses.
#pragma once

#include <array>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "../redis_command.h"
#include "base/number.h"
#include "simulated_world.h"

namespace tensorizer::simulation {

class Redis final : public Service {
 public:
  using Words = testing_support::RedisWords;
  struct Value {
    std::string bytes;
    std::optional<Clock::time_point> expires{};
  };
  using Keys = std::map<std::string, Value>;

  struct Settings {
    std::string password{};  // none: no login
    int database = 0;        // that has the keys
    bool is_old = false;     // without HELLO
    bool can_kill = true;    // whether the user has the right to end connections
  };

  Redis(SimulatedWorld& world, Settings settings) : world_(world), settings_(std::move(settings)) {}

  const Keys& keys() const { return keys_; }
  // Returns whether a client was refused its id, so that nobody can end its connection by that.
  bool has_hidden_id() const { return has_hidden_id_; }
  // Called after each command outside of a transaction, and after each transaction, that has
  // changed keys.
  std::function<void()> on_change = [] {};

  // ---- what other clients do, in one transaction

  void replace(const std::vector<std::string>& old, const std::map<std::string, std::string>& now) {
    for (const auto& [id, session] : sessions_) {
      if (!session.was_asked) continue;
      for (const std::string& key : old) {
        if (session.watched.contains(key)) witnesses_.insert(id);
      }
    }
    world_.note("another client replaces", std::to_string(old.size()) + " keys");
    for (const std::string& key : old) erase(key);
    for (const auto& [key, bytes] : now) set(key, {bytes});
    finish_change();
  }
  // Returns whether a client that had listed all keys of one moment watched one when it was
  // replaced, and no fault befell that client.
  bool has_witness() const {
    return !witnesses_.empty() && !std::ranges::includes(damaged_, witnesses_);
  }
  // Has an effect right after that transaction, of all clients, before anybody's next command.
  void after_transaction(std::uint64_t number, std::function<void()> effect) {
    after_transactions_.emplace(transactions_ + number, std::move(effect));
  }
  // Removes one of the keys that expire, as a server does that has no memory left. The last one
  // stays: without it, nothing tells a save that has ended from one that was never there.
  void evict() {
    std::vector<std::string> keys;
    for (const auto& [key, value] : keys_) {
      if (value.expires) keys.push_back(key);
    }
    if (keys.size() < 2) return;
    const std::string& key = keys[world_.below(keys.size())];
    world_.note("evicts", key);
    erase(key);
    finish_change();
  }

  // ---- what the world asks for

  bool take(Line& line) override {
    Session& session = session_of(line);
    const std::string before = line.received;
    const Words words = testing_support::take_redis_command(line.received);
    if (words.empty()) return false;
    const std::vector<std::string> refusals = refusals_of(session, words.front());
    const auto kinds = std::span(kKinds).first(kKinds.size() - (refusals.empty() ? 1 : 0));
    const Fault fault = world_.next_fault(kinds);
    if (fault != Fault::None) damaged_.insert(session.id);
    if (words.front() == "SCAN") session.has_listed = true;
    const bool is_first = session.is_new;
    session.is_new = false;
    const std::string text = std::to_string(session.id) + ": " + described(words);
    if (fault == Fault::LateEffect) {
      // The bytes wait in the socket, with all that follows them, also if the client closes it.
      world_.note(text, name_of(fault));
      line.received = before;
      line.silent = true;
      session.waits = true;
      world_.later([this, id = session.id] { go_on(id); });
      return true;
    }
    answer(
        world_, fault, line, text, [&](bool) { return run(session, words); },
        [&] {
          if (is_first && world_.one_in(2)) {
            const std::string full = "-ERR max number of clients reached\r\n";
            line.is_deaf = true;
            line.breaks_after = line.answers.size() + full.size();
            return full;
          }
          session.is_refused = session.is_in_transaction;
          has_hidden_id_ = has_hidden_id_ || (words.front() == "CLIENT" && words.at(1) == "ID");
          if (words.front() == "EXEC") end_transaction(session);
          return "-" + refusals[world_.below(refusals.size())] + "\r\n";
        });
    return true;
  }

  void forget(Line& line) override {
    const auto found = ids_.find(&line);
    if (found == ids_.end()) return;
    Session& session = sessions_.at(found->second);
    ids_.erase(found);
    session.line = nullptr;
    session.rest = line.received;
    if (!session.waits) sessions_.erase(session.id);
  }

 private:
  // The last one only for commands that can be refused.
  static constexpr std::array kKinds{Fault::Unheard, Fault::Unanswered,   Fault::Silence,
                                     Fault::Late,    Fault::SilentEffect, Fault::LateEffect,
                                     Fault::Refused};

  // A client.
  struct Session {
    std::uint64_t id;
    Line* line;          // null if the client has closed it
    std::string rest{};  // what such a client has sent, and the server has not read yet
    bool waits = false;  // until go_on()
    bool is_new = true;
    bool has_listed = false;
    bool was_asked = false;  // by a transaction after that
    bool is_logged_in = false;
    int database = 0;
    bool is_in_transaction = false;
    bool is_refused = false;  // a command of the transaction was
    std::vector<Words> queue{};
    std::set<std::string> watched{};
    bool is_touched = false;  // one of them was changed
  };

  Session& session_of(Line& line) {
    const auto found = ids_.find(&line);
    if (found != ids_.end()) return sessions_.at(found->second);
    const std::uint64_t id = ++last_id_;
    ids_[&line] = id;
    return sessions_.emplace(id, Session{.id = id, .line = &line}).first->second;
  }

  // Reads what a client has sent.
  void go_on(std::uint64_t id) {
    const auto found = sessions_.find(id);
    if (found == sessions_.end()) return;
    Session& session = found->second;
    session.waits = false;
    if (session.line != nullptr) {
      session.line->silent = false;
      return;
    }
    for (;;) {
      const Words words = testing_support::take_redis_command(session.rest);
      if (words.empty()) break;
      world_.note(std::to_string(id) + ": " + described(words), "late");
      static_cast<void>(run(session, words));
    }
    sessions_.erase(id);
  }

  static std::string described(const Words& words) {
    std::string text;
    for (const std::string& word : words) {
      const bool is_text = std::ranges::all_of(word, [](char c) { return c > ' ' && c <= '~'; });
      text += (text.empty() ? "" : " ") +
              (is_text && word.size() < 60 ? word : "<" + std::to_string(word.size()) + ">");
    }
    return text;
  }

  // What the server says to a command while a script runs, or while it loads or lost its master. A
  // transaction must not lose its first command, so that one is accepted then.
  static std::vector<std::string> refusals_of(const Session& session, const std::string& name) {
    static const std::set<std::string> kAlways{"AUTH", "HELLO", "MULTI", "WATCH"};
    static const std::set<std::string> kWithoutKeys{"CLIENT", "CONFIG", "SELECT"};
    const std::string busy = "BUSY Redis is busy running a script.";
    if (kAlways.contains(name)) return {};
    if (name == "EXEC") {
      if (!session.is_in_transaction) return {};
      return {"EXECABORT Transaction discarded because of: " + busy};
    }
    if (kWithoutKeys.contains(name)) return {busy};
    return {busy, "LOADING Redis is loading the dataset in memory",
            "MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'."};
  }

  // ---- commands

  static std::string number(std::uint64_t value) { return ":" + std::to_string(value) + "\r\n"; }
  static std::string text(const std::string& bytes) {
    return "$" + std::to_string(bytes.size()) + "\r\n" + bytes + "\r\n";
  }
  static std::string list(const std::vector<std::string>& replies) {
    std::string all = "*" + std::to_string(replies.size()) + "\r\n";
    for (const std::string& reply : replies) all += reply;
    return all;
  }
  static std::string error(const std::string& what) { return "-" + what + "\r\n"; }
  static std::string ok() { return "+OK\r\n"; }

  std::string run(Session& session, const Words& words) {
    const std::string& name = words.front();
    drop_expired();
    if (name == "AUTH") {
      session.is_logged_in = words.back() == settings_.password;
      return session.is_logged_in ? ok() : error("WRONGPASS invalid username-password pair");
    }
    if (!settings_.password.empty() && !session.is_logged_in) {
      return error("NOAUTH Authentication required.");
    }
    if (name == "EXEC") return exec(session);
    if (name == "MULTI" || name == "WATCH") {
      if (session.is_in_transaction) return error("ERR " + name + " inside MULTI is not allowed");
      if (name == "MULTI") session.is_in_transaction = true;
      if (name == "WATCH") session.watched.insert(words.begin() + 1, words.end());
      return ok();
    }
    if (session.is_in_transaction) {
      session.queue.push_back(words);
      return "+QUEUED\r\n";
    }
    const std::string reply = run_now(session, words);
    finish_change();
    return reply;
  }

  std::string exec(Session& session) {
    session.was_asked = session.has_listed;
    const std::string reply = exec_now(session);
    if (auto due = after_transactions_.extract(++transactions_); due) due.mapped()();
    return reply;
  }

  std::string exec_now(Session& session) {
    if (!session.is_in_transaction) return error("ERR EXEC without MULTI");
    const bool is_refused = session.is_refused, is_touched = session.is_touched;
    const std::vector<Words> queue = end_transaction(session);
    if (is_refused) return error("EXECABORT Transaction discarded because of previous errors.");
    if (is_touched) return "*-1\r\n";
    std::vector<std::string> replies;
    for (const Words& words : queue) replies.push_back(run_now(session, words));
    finish_change();
    return list(replies);
  }

  static std::vector<Words> end_transaction(Session& session) {
    session.is_in_transaction = session.is_refused = session.is_touched = false;
    session.watched.clear();
    return std::exchange(session.queue, {});
  }

  std::string run_now(Session& session, const Words& words) {
    const std::string& name = words.front();
    if (name == "HELLO") return hello(session);
    if (name == "SELECT") {
      session.database = static_cast<int>(parse_number(words.at(1)).value());
      return ok();
    }
    if (name == "CLIENT") return client(session, words);
    if (name == "CONFIG") return list({text(words.at(2)), text("536870912")});
    if (session.database != settings_.database) {
      if (name == "SET" || name == "SETEX" || name == "SETRANGE" || name == "RENAME") {
        world_.note_broken("a key is written to another database");
      }
      return number(0);
    }
    if (name == "SCAN") return scan(words);
    if (name == "UNLINK" || name == "EXISTS") {
      std::uint64_t count = 0;
      for (std::size_t i = 1; i < words.size(); ++i) {
        count += name == "EXISTS" ? keys_.count(words[i]) : erase(words[i]);
      }
      return number(count);
    }
    if (name == "SETEX") {
      set(words.at(1), {words.at(3), expiry(words.at(2))});
      return ok();
    }
    if (name == "SET") {
      set(words.at(1), {words.at(2)});
      return ok();
    }
    if (name == "RENAME") return rename(words.at(1), words.at(2));
    return run_on_value(words, words.at(1));
  }

  // Commands that leave the key where it is.
  std::string run_on_value(const Words& words, const std::string& key) {
    const std::string& name = words.front();
    const auto found = keys_.find(key);
    const bool is_there = found != keys_.end();
    Value value = is_there ? found->second : Value{};
    if (name == "GET") return is_there ? text(value.bytes) : "$-1\r\n";
    if (name == "STRLEN") return number(value.bytes.size());
    if (name == "GETRANGE") {
      const std::size_t begin = std::min(*parse_number(words.at(2)), value.bytes.size());
      return text(value.bytes.substr(begin, *parse_number(words.at(3)) + 1 - begin));
    }
    if (name == "TTL") {
      if (!is_there || !value.expires) return is_there ? ":-1\r\n" : ":-2\r\n";
      return number(static_cast<std::uint64_t>((*value.expires - world_.now()) / 1s));
    }
    if (name == "SETRANGE") {
      const std::size_t begin = *parse_number(words.at(2));
      value.bytes.resize(std::max(value.bytes.size(), begin + words.at(3).size()));
      value.bytes.replace(begin, words[3].size(), words[3]);
      const std::size_t size = value.bytes.size();
      set(key, std::move(value));
      return number(size);
    }
    if (name == "EXPIRE" || name == "PERSIST") {
      if (!is_there || (name == "PERSIST" && !value.expires)) return number(0);
      value.expires = name == "EXPIRE" ? std::optional(expiry(words.at(2))) : std::nullopt;
      set(key, std::move(value));
      return number(1);
    }
    world_.note_broken("the server lacks the command " + name);
    return error("ERR unknown command '" + name + "'");
  }

  std::string hello(const Session& session) const {
    if (settings_.is_old) return error("ERR unknown command 'HELLO'");
    return list({text("server"), text("redis"), text("id"), number(session.id), text("mode"),
                 text("standalone"), text("modules"), list({})});
  }

  std::string client(const Session& session, const Words& words) {
    if (words.at(1) == "ID") return number(session.id);
    if (!settings_.can_kill) return error("NOPERM User default has no permissions to run 'client'");
    const auto id = parse_number(words.at(3));
    if (!id) return error("ERR client-id should be greater than 0");
    const auto found = sessions_.find(*id);
    if (found == sessions_.end() || *id == session.id) return number(0);
    if (Line* const line = found->second.line; line != nullptr) {
      line->is_over = true;
      ids_.erase(line);
    }
    sessions_.erase(found);
    return number(1);
  }

  std::string rename(const std::string& from, const std::string& to) {
    const auto found = keys_.find(from);
    if (found == keys_.end()) return error("ERR no such key");
    Value value = std::move(found->second);
    erase(from);
    set(to, std::move(value));
    return ok();
  }

  // Lists a few keys at once, some of them twice, in the order of their hashes. A cursor is the
  // hash from which on to continue, so that no key is left out if others come or go.
  std::string scan(const Words& words) {
    const std::string& pattern = words.at(3);
    std::multimap<std::uint64_t, std::string> left;
    const std::uint64_t cursor = *parse_number(words.at(1));
    for (const auto& [key, value] : keys_) {
      std::uint64_t hash = 1;
      for (const char c : key) hash = (hash * 31 + static_cast<unsigned char>(c)) % 1000003;
      if (hash >= cursor) left.emplace(hash, key);
    }
    std::vector<std::string> found;
    std::uint64_t next = 0;
    const std::uint64_t most = world_.below(8);
    for (const auto& [hash, key] : left) {
      if (found.size() >= most && hash >= next && next > 0) break;
      next = hash + 1;
      if (!matches(key, pattern)) continue;
      for (std::uint64_t times = world_.one_in(8) ? 2 : 1; times > 0; --times) {
        found.push_back(text(key));
      }
    }
    const bool is_end = left.empty() || next > left.rbegin()->first;
    return list({text(is_end ? "0" : std::to_string(next)), list(found)});
  }

  // Of patterns, only "\c" and a "*" at the end.
  static bool matches(std::string_view key, std::string_view pattern) {
    for (; !pattern.empty(); pattern.remove_prefix(1), key.remove_prefix(1)) {
      if (pattern == "*") return true;
      if (pattern.front() == '\\') pattern.remove_prefix(1);
      if (key.empty() || key.front() != pattern.front()) return false;
    }
    return key.empty();
  }

  // ---- keys

  Clock::time_point expiry(const std::string& seconds) {
    return world_.now() + std::chrono::seconds(parse_number(seconds).value());
  }
  void drop_expired() {
    const Clock::time_point now = world_.now();
    std::vector<std::string> expired;
    for (const auto& [key, value] : keys_) {
      if (value.expires && *value.expires <= now) expired.push_back(key);
    }
    for (const std::string& key : expired) erase(key);
    if (!expired.empty()) finish_change();
  }

  void touch(const std::string& key) {
    has_changed_ = true;
    for (auto& [id, session] : sessions_) {
      session.is_touched = session.is_touched || session.watched.contains(key);
    }
  }
  void set(const std::string& key, Value value) {
    keys_[key] = std::move(value);
    touch(key);
  }
  std::size_t erase(const std::string& key) {
    if (keys_.erase(key) == 0) return 0;
    touch(key);
    return 1;
  }
  void finish_change() {
    if (std::exchange(has_changed_, false)) on_change();
  }

  SimulatedWorld& world_;
  const Settings settings_;
  Keys keys_;
  bool has_changed_ = false;
  bool has_hidden_id_ = false;
  std::set<std::uint64_t> damaged_;    // the clients that a fault befell
  std::set<std::uint64_t> witnesses_;  // of the last replacement
  std::uint64_t transactions_ = 0;
  std::map<std::uint64_t, std::function<void()>> after_transactions_;
  std::uint64_t last_id_ = 0;
  std::map<std::uint64_t, Session> sessions_;
  std::map<const Line*, std::uint64_t> ids_;
};

}  // namespace tensorizer::simulation
