#include "pool.h"

#ifndef _WIN32
#include <pthread.h>
#endif

#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace matryo {
namespace {

// The call in progress. It lives until the workers that take part have returned.
struct Call {
  Call(const std::function<void(int64_t)>& run, int64_t parts) : run(run), parts(parts) {}

  const std::function<void(int64_t)>& run;
  int64_t parts;
  std::atomic<int64_t> next{0};
  std::mutex lock;
  std::exception_ptr error;

  void work() {
    for (int64_t part = next++; part < parts; part = next++) {
      try {
        run(part);
      } catch (...) {
        std::lock_guard guard(lock);
        if (!error) error = std::current_exception();
        next = parts;
      }
    }
  }
};

class Pool {
 public:
  void share(Call& call, int helpers) {
    {
      std::lock_guard guard(lock_);
      while (static_cast<int>(workers_.size()) < helpers) workers_.emplace_back([this] { serve(); });
      call_ = &call;
      wanted_ = running_ = helpers;
    }
    wake_.notify_all();
    call.work();
    std::unique_lock guard(lock_);
    running_ -= wanted_;   // helpers that did not begin need not
    wanted_ = 0;
    done_.wait(guard, [this] { return running_ == 0; });
    call_ = nullptr;
  }

  std::mutex busy;   // held by the call that uses the threads

 private:
  void serve() {
    std::unique_lock guard(lock_);
    while (true) {
      wake_.wait(guard, [this] { return wanted_ > 0; });
      wanted_--;
      Call* call = call_;
      guard.unlock();
      call->work();
      guard.lock();
      if (--running_ == 0) done_.notify_one();
    }
  }

  std::mutex lock_;
  std::condition_variable wake_, done_;
  std::vector<std::thread> workers_;   // never joined: they wait until the process ends
  Call* call_ = nullptr;
  int wanted_ = 0, running_ = 0;
};

// Never destroyed. After fork() the threads are gone, so a child begins with a new pool.
Pool* pool = nullptr;
std::once_flag once;

Pool& the_pool() {
  std::call_once(once, [] {
    pool = new Pool;
#ifndef _WIN32
    pthread_atfork(nullptr, nullptr, [] { pool = new Pool; });
#endif
  });
  return *pool;
}

}   // namespace

void share(int64_t parts, int threads, const std::function<void(int64_t)>& run) {
  int64_t helpers = (threads < parts ? threads : parts) - 1;
  Call call(run, parts);
  if (helpers < 1) {
    call.work();
  } else {
    Pool& shared = the_pool();
    if (std::unique_lock mine(shared.busy, std::try_to_lock); mine)
      shared.share(call, static_cast<int>(helpers));
    else
      call.work();
  }
  if (call.error) std::rethrow_exception(call.error);
}

int default_threads() {
  if (const char* given = std::getenv("MATRYO_THREADS")) {
    int threads = std::atoi(given);
    if (threads > 0) return threads;
  }
#ifdef __linux__
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof(set), &set) == 0) return CPU_COUNT(&set) > 0 ? CPU_COUNT(&set) : 1;
#endif
  unsigned count = std::thread::hardware_concurrency();
  return count > 0 ? static_cast<int>(count) : 1;
}

}   // namespace matryo
