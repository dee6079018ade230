#include "codec/argon2.h"

#include <sodium.h>

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <new>
#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include "base/error.h"
#include "base/signals.h"
#include "codec/raw.h"
#include "codec/secretbox.h"

namespace tensorizer {

static_assert(kSaltSize == crypto_pwhash_argon2id_SALTBYTES);

std::optional<Argon2Cost> named_cost(std::string_view name) noexcept {
  if (name == "min") {
    return Argon2Cost{crypto_pwhash_argon2id_OPSLIMIT_MIN, crypto_pwhash_argon2id_MEMLIMIT_MIN};
  }
  if (name == "interactive") {
    return Argon2Cost{crypto_pwhash_argon2id_OPSLIMIT_INTERACTIVE,
                      crypto_pwhash_argon2id_MEMLIMIT_INTERACTIVE};
  }
  if (name == "moderate") {
    return Argon2Cost{crypto_pwhash_argon2id_OPSLIMIT_MODERATE,
                      crypto_pwhash_argon2id_MEMLIMIT_MODERATE};
  }
  if (name == "sensitive") {
    return Argon2Cost{crypto_pwhash_argon2id_OPSLIMIT_SENSITIVE,
                      crypto_pwhash_argon2id_MEMLIMIT_SENSITIVE};
  }
  return std::nullopt;
}

bool is_possible(const Argon2Cost& cost) noexcept {
  return cost.passes >= crypto_pwhash_argon2id_OPSLIMIT_MIN &&
         cost.passes <= crypto_pwhash_argon2id_OPSLIMIT_MAX &&
         cost.memory >= crypto_pwhash_argon2id_MEMLIMIT_MIN &&
         cost.memory <= crypto_pwhash_argon2id_MEMLIMIT_MAX;
}

struct Derivation::Work {
  enum class State { New, Running, Done };

  Work(ConstBytes passphrase, const KeyDerivation& derivation)
      : derivation(derivation), passphrase(passphrase) {}

  const KeyDerivation derivation;
  const SecretBytes passphrase;

  std::mutex mutex;  // guards the members below
  std::condition_variable changed;
  State state = State::New;
  int waiting = 0;
  SharedSecret key;  // null if there was not enough memory

  bool is_left() const noexcept { return state == State::Running && waiting == 0; }
  void run() noexcept;
};

namespace {

// A derivation starts only while fewer abandoned ones than this are running.
constexpr int kMostLeft = 2;

// Counts the abandoned derivations of this process. A child of fork() has none.
class LeftBehind {
 public:
  int count() {
    forget_parents();
    return count_;
  }
  void add(int change) {
    forget_parents();
    count_ += change;
  }

 private:
  void forget_parents() {
    const pid_t process = getpid();
    if (process_.exchange(process) != process) count_ = 0;
  }

  std::atomic<pid_t> process_{0};
  std::atomic<int> count_{0};
};

LeftBehind left_behind;

std::string describe(const Argon2Cost& cost) {
  return std::to_string(cost.passes) + " passes over " + std::to_string(cost.memory) +
         " bytes of memory";
}

SharedSecret derive(ConstBytes passphrase, const KeyDerivation& derivation) {
  auto key = std::make_shared<SecretBytes>(kKeySize);
  const int status = crypto_pwhash_argon2id(
      raw(key->bytes()), kKeySize, reinterpret_cast<const char*>(passphrase.data()),
      passphrase.size(), raw(ConstBytes(derivation.salt)), derivation.cost.passes,
      derivation.cost.memory, crypto_pwhash_argon2id_ALG_ARGON2ID13);
  return status == 0 ? key : nullptr;
}

}  // namespace

void Derivation::Work::run() noexcept {
  SharedSecret made;
  try {
    made = derive(passphrase.bytes(), derivation);
  } catch (const std::bad_alloc&) {
  }
  const std::lock_guard lock(mutex);
  if (is_left()) left_behind.add(-1);
  key = std::move(made);
  state = State::Done;
  changed.notify_all();
}

Derivation::Derivation(ConstBytes passphrase, const KeyDerivation& derivation)
    : work_(std::make_shared<Work>(passphrase, derivation)) {
  if (is_possible(derivation.cost)) return;
  throw Error(ErrorKind::Crypto, "libsodium cannot derive a key by " + describe(derivation.cost));
}

void Derivation::begin(std::unique_lock<std::mutex>& lock) {
  try {
    const SignalsBlocked blocked;
    std::thread([work = work_] { work->run(); }).detach();
  } catch (const std::system_error&) {
    // No thread could be started. Derive on this one, which cannot be interrupted meanwhile.
    lock.unlock();
    work_->run();
    lock.lock();
  }
}

SharedSecret Derivation::wait(Cancel& cancel) {
  Work& work = *work_;
  std::unique_lock lock(work.mutex);
  // Counts this thread among the waiting ones.
  class Waiting {
   public:
    Waiting(Work& work, std::unique_lock<std::mutex>& lock) : work_(work), lock_(lock) {
      if (work_.is_left()) left_behind.add(-1);
      ++work_.waiting;
    }
    ~Waiting() {
      if (!lock_.owns_lock()) lock_.lock();
      --work_.waiting;
      if (work_.is_left()) left_behind.add(1);
    }
    Waiting(const Waiting&) = delete;
    Waiting& operator=(const Waiting&) = delete;

   private:
    Work& work_;
    std::unique_lock<std::mutex>& lock_;
  } waiting(work, lock);

  while (work.state != Work::State::Done) {
    if (work.state == Work::State::New && left_behind.count() < kMostLeft) {
      work.state = Work::State::Running;
      begin(lock);
    }
    cancel.wait(work.changed, lock);
  }
  if (work.key) return work.key;
  work.state = Work::State::New;  // a later call may find enough memory
  throw Error(ErrorKind::OutOfMemory, "cannot derive a key by " + describe(work.derivation.cost) +
                                          ": there is not enough memory");
}

SharedSecret derive_key(ConstBytes passphrase, const KeyDerivation& derivation, Cancel& cancel) {
  return Derivation(passphrase, derivation).wait(cancel);
}

}  // namespace tensorizer
