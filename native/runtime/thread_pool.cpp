#include "runtime/thread_pool.hpp"

#if defined(__linux__)
#include <pthread.h>
#include <sched.h>
#endif
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <chrono>
#include <string>
#include <system_error>

#include "core/error.hpp"

namespace sonoran {

namespace {

// Regions follow each other within microseconds during a pass, and within a round after a little host work:
// spin that long, then sleep so that an idle engine costs nothing.
constexpr auto kSpinTime = std::chrono::microseconds(200);

void relax() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#else
  std::this_thread::yield();
#endif
}

}  // namespace

ThreadPool::ThreadPool(int threads, std::vector<int> cores) : cores_(std::move(cores)) { start(threads); }

void ThreadPool::start(int threads) {
  // A worker waits for a region after this one: those before it were others' work.
  const uint32_t seen = generation_.load();
  try {
    for (int i = 1; i < threads; ++i) workers_.emplace_back([this, i, seen] { work(i, seen); });
  } catch (const std::system_error&) {
    const size_t started = workers_.size() + 1;
    end();
    throw ConfigError("the system gives " + std::to_string(started) + " threads, not " +
                      std::to_string(threads) + "; ask for fewer");
  }
}

ThreadPool::~ThreadPool() { end(); }

void ThreadPool::end() {
  stop_.store(true);
  generation_.fetch_add(1);
  generation_.notify_all();
  for (auto& worker : workers_) worker.join();
  workers_.clear();
  stop_.store(false);
}

void ThreadPool::place(int threads, std::vector<int> cores) {
  end();
  cores_ = std::move(cores);
  start(threads);
}

void ThreadPool::run_shared(int tasks, Function function, void* context) {
  function_ = function;
  context_ = context;
  tasks_ = tasks;
  next_.store(0, std::memory_order_relaxed);
  busy_.store(static_cast<int>(workers_.size()), std::memory_order_relaxed);
  generation_.fetch_add(1, std::memory_order_release);
  generation_.notify_all();
  take_tasks(0);
  for (int spins = 0; busy_.load(std::memory_order_acquire) != 0; ++spins) {
    // A worker may have lost its core to another process: let it have ours now and then.
    if (spins % 1024 == 1023) std::this_thread::yield();
    relax();
  }
}

void ThreadPool::take_tasks(int thread) {
  for (int task = next_.fetch_add(1, std::memory_order_relaxed); task < tasks_;
       task = next_.fetch_add(1, std::memory_order_relaxed)) {
    function_(context_, task, thread);
  }
}

void ThreadPool::work(int thread, uint32_t seen) {
  if (!cores_.empty()) pin_thread({cores_[static_cast<size_t>(thread) % cores_.size()]});
  while (true) {
    const auto start = std::chrono::steady_clock::now();
    uint32_t now = generation_.load(std::memory_order_acquire);
    for (int spins = 0; now == seen; ++spins) {
      relax();
      if (spins % 256 == 255 && std::chrono::steady_clock::now() - start > kSpinTime) {
        generation_.wait(seen, std::memory_order_acquire);
      }
      now = generation_.load(std::memory_order_acquire);
    }
    seen = now;
    if (stop_.load()) return;
    take_tasks(thread);
    busy_.fetch_sub(1, std::memory_order_release);
  }
}

std::vector<int> available_cores() {
  std::vector<int> cores;
#if defined(__linux__)
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) == 0) {
    for (int c = 0; c < CPU_SETSIZE; ++c) {
      if (CPU_ISSET(c, &set)) cores.push_back(c);
    }
  }
#endif
  return cores;
}

std::vector<int> pin_thread(const std::vector<int>& cores) {
  std::vector<int> before;
#if defined(__linux__)
  if (cores.empty()) return before;
  before = available_cores();
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int c : cores) CPU_SET(c, &set);
  pthread_setaffinity_np(pthread_self(), sizeof set, &set);
#else
  (void)cores;
#endif
  return before;
}

}  // namespace sonoran
