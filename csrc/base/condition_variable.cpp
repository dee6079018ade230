// std::condition_variable::wait() for the library itself. The same function of GCC 12's C++ library
// is missing on systems with GCC 11's, such as RHEL 9, and nothing else is.
#include <condition_variable>

#if _GLIBCXX_RELEASE >= 12
void std::condition_variable::wait(std::unique_lock<std::mutex>& lock) {
  pthread_cond_wait(native_handle(), lock.mutex()->native_handle());
}
// The header declares it with a visibility that no attribute can change.
asm(".hidden _ZNSt18condition_variable4waitERSt11unique_lockISt5mutexE");
#endif
