// Instances of much of the C++ library's templates, and of names that are hard to read.
#include <algorithm>
#include <any>
#include <chrono>
#include <deque>
#include <functional>
#include <future>
#include <iostream>
#include <list>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <queue>
#include <random>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <tuple>
#include <unordered_map>
#include <variant>
#include <vector>

namespace app {
namespace {
struct Hidden {
    int value;
    bool operator<(const Hidden &other) const { return value < other.value; }
    Hidden operator<<(int bits) const { return {value << bits}; }
    Hidden *operator->() { return this; }
    explicit operator bool() const { return value; }
    operator std::vector<int>() const { return {value}; }
    int operator()(int more) const { return value + more; }
};
} // namespace
template <typename T, int N> struct Table {
    struct Row {
        T cells[N];
        T sum() const { return std::accumulate(cells, cells + N, T()); }
    };
    std::vector<Row> rows;
    template <typename F> void each(F function) {
        for (auto &row : rows) function(row);
    }
    ~Table() { rows.clear(); }
};
inline namespace v2 {
int inlined(int n) { return n + 1; }
}
std::pair<int, std::string> (*choose(int n))(int) {
    struct Local {
        static std::pair<int, std::string> run(int n) { return {n, std::to_string(n)}; }
    };
    return n ? Local::run : nullptr;
}
} // namespace app

int main(int count, char **arguments) {
    using namespace app;
    std::map<std::string, std::vector<Hidden>> map;
    std::unordered_map<int, std::list<std::string>> lists;
    std::set<Hidden> set;
    std::deque<double> deque;
    std::priority_queue<long> heap;
    for (int i = 0; i < 10 + count; i++) {
        map[std::to_string(i)].push_back({i});
        lists[i].push_back(arguments[0]);
        set.insert(Hidden{i} << 1);
        deque.push_front(i);
        heap.push(i);
    }
    Table<double, 4> table;
    table.rows.resize(3);
    double total = 0;
    table.each([&total](auto &row) { total += row.sum(); });
    std::vector<int> numbers(100);
    std::iota(numbers.begin(), numbers.end(), 0);
    std::shuffle(numbers.begin(), numbers.end(), std::mt19937(7));
    std::sort(numbers.begin(), numbers.end(), [](int a, int b) { return a > b; });
    std::stable_sort(numbers.begin(), numbers.end());
    std::function<int(int)> function = Hidden{3};
    std::variant<int, std::string, double> variant = "text";
    std::visit([](const auto &value) { std::cout << value; }, variant);
    std::optional<std::tuple<int, std::string>> optional = std::make_tuple(1, "one");
    std::any any = std::make_shared<std::string>("any");
    std::regex regex("(a|b)+[0-9]{2,}");
    std::smatch match;
    std::string text = "abba42";
    std::regex_search(text, match, regex);
    auto future = std::async(std::launch::deferred, [&] { return function(4) + inlined(1); });
    std::thread thread([&] { deque.pop_back(); });
    thread.join();
    std::ostringstream out;
    out << future.get() << std::chrono::duration<double>(std::chrono::seconds(1)).count() << choose(1)(2).second;
    std::vector<int> converted = Hidden{5};
    if (Hidden hidden{1}; hidden) total += hidden->value;
    return out.str().size() + total + converted.size() + map.size() + lists.size() + set.size() + heap.size() + optional.has_value() + any.has_value() == 0;
}
