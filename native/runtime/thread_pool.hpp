// A persistent pool: the caller and its workers share the tasks of one parallel region at a time.
#pragma once

#include <atomic>
#include <cstdint>
#include <thread>
#include <type_traits>
#include <vector>

namespace sonoran {

class ThreadPool {
 public:
  // One thread is the caller. With cores given, worker i is pinned to cores[i]; the caller pins itself
  // (PinnedHere).
  ThreadPool(int threads, std::vector<int> cores);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  // Ends the workers and starts others; no region may be running.
  void place(int threads, std::vector<int> cores);

  int threads() const { return static_cast<int>(workers_.size()) + 1; }

  // Calls body(task, thread) for every task in [0, tasks); returns when all are done. Tasks are handed out
  // dynamically, so a result must not depend on the thread. The body must not throw.
  template <class Body>
  void run(int tasks, Body&& body) {
    if (workers_.empty() || tasks <= 1) {
      for (int t = 0; t < tasks; ++t) body(t, 0);
      return;
    }
    using Plain = std::remove_reference_t<Body>;
    run_shared(
        tasks, [](void* context, int task, int thread) { (*static_cast<Plain*>(context))(task, thread); },
        const_cast<void*>(static_cast<const void*>(&body)));
  }

 private:
  using Function = void (*)(void* context, int task, int thread);

  void run_shared(int tasks, Function function, void* context);
  void start(int threads);
  void work(int thread, uint32_t seen);
  void take_tasks(int thread);
  void end();  // stops and joins the workers that there are

  std::vector<std::thread> workers_;
  std::vector<int> cores_;
  Function function_ = nullptr;
  void* context_ = nullptr;
  int tasks_ = 0;
  alignas(64) std::atomic<int> next_{0};
  alignas(64) std::atomic<uint32_t> generation_{0};
  alignas(64) std::atomic<int> busy_{0};
  std::atomic<bool> stop_{false};
};

// Restricts the calling thread to these cores and returns the ones it could use before; an empty list does
// nothing.
std::vector<int> pin_thread(const std::vector<int>& cores);

// Pins the calling thread for the life of the object.
class PinnedHere {
 public:
  explicit PinnedHere(const std::vector<int>& cores) : before_(pin_thread(cores)) {}
  ~PinnedHere() { pin_thread(before_); }
  PinnedHere(const PinnedHere&) = delete;
  PinnedHere& operator=(const PinnedHere&) = delete;

 private:
  std::vector<int> before_;
};

// The cores that this process may use.
std::vector<int> available_cores();

}  // namespace sonoran
