// A chain of 40 calls of C++: methods of a template, every second one virtual. At its end the first
// thread computes, at the lowest priority, and another one, `sleeps-deep`, sleeps.
#include <chrono>
#include <functional>
#include <pthread.h>
#include <thread>
#include <unistd.h>

namespace lab {

volatile unsigned long result;

struct Step {
    virtual unsigned long take(unsigned long value, const std::function<void()> &last) = 0;
    virtual ~Step() = default;
};

template <int depth> struct Level : Step {
    [[gnu::noipa]] unsigned long take(unsigned long value, const std::function<void()> &last) override {
        return descend(value, last) + depth;
    }
    [[gnu::noipa]] unsigned long descend(unsigned long value, const std::function<void()> &last) {
        if constexpr (depth == 0) {
            last();
            return value;
        } else {
            static Level<depth - 1> next;
            Step *step = &next;
            return step->take(value + 1, last) * 3;
        }
    }
};

[[gnu::noipa]] void compute() {
    for (int i = 0; i < 100000; i++)
        result = result * 31 + i;
}

[[gnu::noipa]] void sleep_long() {
    std::this_thread::sleep_for(std::chrono::hours(24));
}

} // namespace lab

int main() {
    if (nice(19) != 19)
        return 1;
    std::thread sleeper([] { lab::Level<19>().take(1, lab::sleep_long); });
    pthread_setname_np(sleeper.native_handle(), "sleeps-deep");
    for (;;)
        lab::Level<19>().take(1, lab::compute);
}
