// Instances of Boost's templates.
#include <boost/algorithm/string.hpp>
#include <boost/circular_buffer.hpp>
#include <boost/container/flat_map.hpp>
#include <boost/format.hpp>
#include <boost/lexical_cast.hpp>
#include <boost/multi_index/hashed_index.hpp>
#include <boost/multi_index/member.hpp>
#include <boost/multi_index/ordered_index.hpp>
#include <boost/multi_index_container.hpp>
#include <boost/property_tree/json_parser.hpp>
#include <boost/property_tree/ptree.hpp>
#include <boost/signals2.hpp>
#include <sstream>
#include <string>
#include <vector>

struct Person {
    int id;
    std::string name;
};
using People = boost::multi_index_container<
    Person, boost::multi_index::indexed_by<
                boost::multi_index::ordered_unique<boost::multi_index::member<Person, int, &Person::id>>,
                boost::multi_index::hashed_non_unique<boost::multi_index::member<Person, std::string, &Person::name>>>>;

int main() {
    People people;
    people.insert({1, "ann"});
    boost::container::flat_map<std::string, int> map;
    map["a"] = boost::lexical_cast<int>("42");
    boost::circular_buffer<double> ring(4);
    ring.push_back(1.5);
    std::vector<std::string> parts;
    boost::split(parts, std::string("a,b,c"), boost::is_any_of(","));
    boost::property_tree::ptree tree;
    std::istringstream in("{\"a\": {\"b\": [1, 2]}}");
    boost::property_tree::read_json(in, tree);
    boost::signals2::signal<void(int)> signal;
    int sum = 0;
    signal.connect([&](int n) { sum += n; });
    signal(3);
    return (boost::format("%1% %2%") % sum % parts.size()).str().empty() + people.size() == 0;
}
