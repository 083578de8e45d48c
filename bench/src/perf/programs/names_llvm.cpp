// Instances of LLVM's templates: its containers, iterators, passes and matchers.
#include <llvm/ADT/APFloat.h>
#include <llvm/ADT/DenseMap.h>
#include <llvm/ADT/DenseSet.h>
#include <llvm/ADT/DepthFirstIterator.h>
#include <llvm/ADT/EquivalenceClasses.h>
#include <llvm/ADT/ImmutableMap.h>
#include <llvm/ADT/IntervalMap.h>
#include <llvm/ADT/MapVector.h>
#include <llvm/ADT/PostOrderIterator.h>
#include <llvm/ADT/SCCIterator.h>
#include <llvm/ADT/STLExtras.h>
#include <llvm/ADT/ScopedHashTable.h>
#include <llvm/ADT/SetVector.h>
#include <llvm/ADT/SmallPtrSet.h>
#include <llvm/ADT/StringMap.h>
#include <llvm/ADT/StringSwitch.h>
#include <llvm/ADT/TypeSwitch.h>
#include <llvm/IR/CFG.h>
#include <llvm/IR/Dominators.h>
#include <llvm/IR/IRBuilder.h>
#include <llvm/IR/InstVisitor.h>
#include <llvm/IR/Module.h>
#include <llvm/IR/PassManager.h>
#include <llvm/IR/PatternMatch.h>
#include <llvm/IR/Verifier.h>
#include <llvm/Support/CommandLine.h>
#include <llvm/Support/Error.h>
#include <llvm/Support/FormatVariadic.h>
#include <llvm/Support/JSON.h>
#include <llvm/Support/YAMLTraits.h>
#include <llvm/Support/raw_ostream.h>
#include <optional>

using namespace llvm;

namespace {
cl::opt<unsigned> Rounds("rounds", cl::init(3));
cl::list<std::string> Inputs(cl::Positional);

struct Counter : InstVisitor<Counter, unsigned> {
    unsigned visitInstruction(Instruction &) { return 1; }
    unsigned visitBinaryOperator(BinaryOperator &) { return 2; }
};

struct CountPass : PassInfoMixin<CountPass> {
    PreservedAnalyses run(Function &function, FunctionAnalysisManager &analyses) {
        auto &tree = analyses.getResult<DominatorTreeAnalysis>(function);
        unsigned count = 0;
        for (auto *node : depth_first(tree.getRootNode())) count += node->getNumChildren();
        for (auto *block : ReversePostOrderTraversal<Function *>(&function)) count += block->size();
        for (auto scc = scc_begin(&function); !scc.isAtEnd(); ++scc) count += scc->size();
        for (auto &block : function)
            for (auto *next : successors(&block)) count += pred_size(next);
        Counter counter;
        for (auto &block : function)
            for (auto &instruction : block) count += counter.visit(instruction);
        return count ? PreservedAnalyses::all() : PreservedAnalyses::none();
    }
};

struct Point {
    int x, y;
};
} // namespace

template <> struct llvm::yaml::MappingTraits<Point> {
    static void mapping(IO &io, Point &point) {
        io.mapRequired("x", point.x);
        io.mapOptional("y", point.y, 0);
    }
};
LLVM_YAML_IS_SEQUENCE_VECTOR(Point)

static Expected<std::unique_ptr<Module>> build(LLVMContext &context) {
    auto module = std::make_unique<Module>("names", context);
    auto *type = FunctionType::get(Type::getInt32Ty(context), {Type::getInt32Ty(context)}, false);
    auto *function = Function::Create(type, Function::ExternalLinkage, "twice", *module);
    IRBuilder<> builder(BasicBlock::Create(context, "entry", function));
    Value *sum = builder.CreateAdd(function->getArg(0), builder.getInt32(1));
    Value *unused;
    using namespace PatternMatch;
    if (match(sum, m_c_Add(m_Value(unused), m_One())) || match(sum, m_OneUse(m_Shl(m_Value(), m_ConstantInt()))))
        sum = builder.CreateMul(sum, builder.getInt32(Rounds));
    builder.CreateRet(sum);
    if (verifyFunction(*function, &errs())) return createStringError(inconvertibleErrorCode(), "invalid %d", 1);
    return std::move(module);
}

static unsigned containers() {
    DenseMap<std::pair<int, unsigned>, SmallVector<std::string, 2>> dense;
    dense[{1, 2}].push_back("a");
    DenseSet<StringRef> unique({"a", "b"});
    std::vector<StringRef> words(unique.begin(), unique.end());
    StringMap<std::unique_ptr<Point>> strings;
    strings.try_emplace("p", std::make_unique<Point>());
    SmallPtrSet<Point *, 4> pointers;
    pointers.insert(strings["p"].get());
    MapVector<int, std::optional<Point>> ordered;
    ordered.insert({1, std::nullopt});
    SetVector<int> set;
    set.insert(4);
    EquivalenceClasses<int> classes;
    classes.unionSets(1, 2);
    IntervalMap<unsigned, int>::Allocator allocator;
    IntervalMap<unsigned, int> intervals(allocator);
    intervals.insert(1, 5, 7);
    ImmutableMap<int, int>::Factory factory;
    auto immutable = factory.add(factory.getEmptyMap(), 1, 2);
    ScopedHashTable<int, int> scoped;
    ScopedHashTableScope<int, int> scope(scoped);
    scoped.insert(1, 2);
    std::vector<int> numbers = {3, 1, 2};
    sort(numbers, [](int a, int b) { return a > b; });
    unsigned total = 0;
    for (auto item : enumerate(make_filter_range(numbers, [](int n) { return n > 1; }))) total += item.index();
    for (auto pair : zip(numbers, words)) total += std::get<0>(pair);
    for (int n : map_range(reverse(numbers), [](int n) { return n * 2; })) total += n;
    total += any_of(numbers, [&](int n) { return is_contained(numbers, n + 1); });
    function_ref<int(int)> call = [&](int n) { return n + total; };
    unique_function<int(int)> once = [scale = std::make_unique<int>(2)](int n) { return n * *scale; };
    total += call(1) + once(2) + APInt(128, 7).udiv(3).getZExtValue() + APFloat(1.5).convertToDouble();
    return total + dense.size() + classes.getNumClasses() + intervals.empty() + immutable.getHeight() + ordered.size() + set.size();
}

static std::string texts() {
    std::string out;
    raw_string_ostream stream(out);
    stream << formatv("{0,-10} {1:x} {2}", "name", 255, make_range(out.begin(), out.end()));
    json::Object object{{"a", json::Array{1, 2.5, nullptr, "text"}}};
    stream << json::Value(std::move(object));
    std::vector<Point> points{{1, 2}};
    yaml::Output yaml(stream);
    yaml << points;
    int kind = StringSwitch<int>(out).Case("a", 1).StartsWith("b", 2).Default(3);
    return stream.str() + std::to_string(kind);
}

int main(int count, char **arguments) {
    cl::ParseCommandLineOptions(count, arguments);
    LLVMContext context;
    auto module = build(context);
    if (!module) {
        handleAllErrors(module.takeError(), [](const StringError &error) { errs() << error.getMessage(); });
        return 1;
    }
    FunctionAnalysisManager analyses;
    analyses.registerPass([] { return DominatorTreeAnalysis(); });
    analyses.registerPass([] { return PassInstrumentationAnalysis(); });
    FunctionPassManager passes;
    passes.addPass(CountPass());
    for (auto &function : **module) passes.run(function, analyses);
    int kind = TypeSwitch<Type *, int>(Type::getInt8Ty(context))
                   .Case<IntegerType>([](auto *type) { return type->getBitWidth(); })
                   .Case<PointerType, StructType>([](auto *) { return 1; })
                   .Default([](Type *) { return 0; });
    return containers() + texts().size() + kind == 0;
}
