// Sorts, hashes, copies and allocates, in functions of its own, of the C++ library and of libc, until it is killed.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#define KEPT __attribute__((noinline))

static uint64_t state = 88172645463325252ull;

KEPT static uint64_t dice() {
    state ^= state << 13;
    state ^= state >> 7;
    return state ^= state << 17;
}

namespace mix {
struct Table {
    std::map<uint64_t, uint64_t> counts;
    KEPT void count(uint64_t key) { counts[key & 1023]++; }
};
namespace {
KEPT double waves(int steps) {
    double sum = 0;
    for (int i = 0; i < steps; i++) sum += std::sin(sum + i) * std::exp(-1.0 / (i + 1));
    return sum;
}
}
template <typename T> KEPT T checksum(const std::vector<T> &values) {
    T sum = 0;
    for (T value : values) sum = sum * 31 + value;
    return sum;
}
}

KEPT static size_t texts(int count) {
    size_t length = 0;
    for (int i = 0; i < count; i++) {
        char buffer[64];
        snprintf(buffer, sizeof buffer, "%d:%llx", i, (unsigned long long)dice());
        std::string text(buffer);
        text += text;
        length += strlen(text.c_str());
    }
    return length;
}

int main() {
    mix::Table table;
    std::vector<uint64_t> values(4096);
    std::vector<char> from(1 << 16, 1), to(1 << 16);
    volatile double sink = 0;
    for (;;) {
        std::generate(values.begin(), values.end(), dice);
        std::sort(values.begin(), values.end());
        for (uint64_t value : values) table.count(value);
        for (int i = 0; i < 100; i++) memcpy(to.data(), from.data(), from.size() - i);
        for (int i = 0; i < 40; i++) sink = sink + mix::checksum(values);
        for (int i = 0; i < 1000; i++) free(malloc(16 + dice() % 4096));
        sink = sink + mix::waves(4000) + texts(400);
    }
}
