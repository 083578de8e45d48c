//! Names as a person reads them: made safe to print, shortened, and grouped by crate.
//!
//! A function's name comes from the symbols of whatever was recorded, so it may hold anything:
//! terminal escapes, text that runs from right to left, markup, a megabyte of generics.

/// Longest name that a report keeps, in characters; the rest is cut and marked with `…`.
pub const NAME_CHARS_MAX: usize = 2_000;

/// Whether a character could move a terminal's cursor or reorder the text around it: control characters, line and
/// paragraph separators, marks of direction, invisible joiners.
pub fn is_unsafe(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{61c}')
}

/// The characters of a text but the [unsafe](is_unsafe) ones.
pub fn safe_chars(text: &str) -> impl Iterator<Item = char> {
    text.chars().filter(|c| !is_unsafe(*c))
}

/// Replaces what could move a terminal's cursor or reorder the text around it, and cuts names
/// longer than [`NAME_CHARS_MAX`].
pub fn printable(name: &str) -> String {
    let visible = |c: char| if is_unsafe(c) { '\u{fffd}' } else { c };
    let mut safe: String = name.chars().take(NAME_CHARS_MAX).map(visible).collect();
    if name.chars().nth(NAME_CHARS_MAX).is_some() {
        safe.push('…');
    }
    if safe.is_empty() {
        safe.push_str("(no name)");
    }
    safe
}

/// What the group of a function is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum GroupKind {
    /// A crate of Rust.
    Crate,
    /// A namespace of C++, or a class outside of namespaces.
    Namespace,
    /// A package of Go, and what other languages join to a function's name by a dot.
    Package,
    /// A source file of Python or JavaScript.
    Script,
    /// The program or library, of a function whose name contains no group.
    Image,
}

impl GroupKind {
    /// The word for it, in the singular; also the field under which a page's search finds it.
    pub fn word(self) -> &'static str {
        match self {
            GroupKind::Crate => "crate",
            GroupKind::Namespace => "namespace",
            GroupKind::Package => "package",
            GroupKind::Script => "script",
            GroupKind::Image => "image",
        }
    }
}

/// The crate, C++ namespace, package or script that a function belongs to, or else its image.
///
/// `<a::Type as b::Trait>::f` belongs to `a`; where the type has no path of its own, as in
/// `<&T as core::fmt::Debug>::fmt`, the trait decides.
///
/// The type of a C++ function's result, which is in front of its name, does not count.
pub fn group(function: &str, image: &str) -> String {
    match (named_group(function), image) {
        (Some((name, _)), _) => name.to_string(),
        (None, "") => "unknown".to_string(),
        (None, image) => image.to_string(),
    }
}

/// What [`group`] returns for a function.
pub fn group_kind(function: &str) -> GroupKind {
    named_group(function).map_or(GroupKind::Image, |(_, kind)| kind)
}

/// The group that a function's name contains.
fn named_group(function: &str) -> Option<(&str, GroupKind)> {
    if let Some(script) = script_of(function) {
        return Some((script, GroupKind::Script));
    }
    if let Some(name) = crate_of(function) {
        return Some((name, if has_parameters(function) { GroupKind::Namespace } else { GroupKind::Crate }));
    }
    package_of(function).map(|name| (name, GroupKind::Package))
}

/// The crate (or the C++ namespace) that a function belongs to, if its name has one.
pub fn crate_of(function: &str) -> Option<&str> {
    let function = &function[name_start(function)..];
    let Some(inside) = function.strip_prefix('<') else { return first_segment(function) };
    let (first, second) = split_qualified(inside, " as ");
    first_segment(first).or_else(|| second.and_then(first_segment))
}

/// Whether parameters follow a function's name, as in C++.
fn has_parameters(function: &str) -> bool {
    let (mut depth, mut previous) = (0_usize, ' ');
    for c in function.chars() {
        match c {
            '(' if depth == 0 && !matches!(previous, ' ' | ':' | '.' | '&' | '*') => return true,
            '<' | '(' | '[' | '{' => depth += 1,
            '>' if previous == '-' => {}
            '>' | ')' | ']' | '}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        previous = c;
    }
    // Brackets of an operator do not come in pairs.
    function.contains(OPERATOR) && function.contains('(')
}

/// What compilers append to the name of a function of C, each behind a dot.
const CLONES: [&str; 22] = [
    "arch_",
    "avx",
    "cfi",
    "clone",
    "cleanup",
    "cold",
    "constprop",
    "default",
    "destroy",
    "isra",
    "hot",
    "llvm",
    "localalias",
    "lto_priv",
    "part",
    "resolver",
    "resume",
    "sse",
    "unlikely",
    "warm",
    "_omp_fn",
    "__uniq",
];

/// `crypto/sha256` of Go's `crypto/sha256.(*Digest).Write`: the path up to the first dot of its last part.
fn package_of(function: &str) -> Option<&str> {
    let path = &function[..function.find(['(', '[', '{', '<', ' ', ':', '@']).unwrap_or(function.len())];
    let last = path.rfind('/').map_or(0, |slash| slash + 1);
    let dot = last + path[last..].find('.')?;
    let (package, own) = (&function[..dot], &function[dot + 1..]);
    let is_path = package.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
    let is_clone = last == 0 && CLONES.iter().any(|clone| own.starts_with(clone));
    let is_name = own.starts_with(|c: char| c.is_alphabetic() || matches!(c, '_' | '('));
    (is_path && is_name && !is_clone && dot > last).then_some(package)
}

/// What V8 writes in front of a function's name.
const SCRIPTED: [&str; 5] = ["JS:", "LazyCompile:", "Function:", "Script:", "Eval:"];

/// `app.py` of Python's `py::main:/srv/app.py`, and `app.js` of V8's `JS:*main file:///srv/app.js:3:5`.
fn script_of(function: &str) -> Option<&str> {
    let path = match function.strip_prefix("py::") {
        Some(rest) => rest.split_once(':')?.1,
        None => {
            let rest = SCRIPTED.iter().find_map(|word| function.strip_prefix(word))?;
            let place = rest.rsplit_once(' ')?.1;
            place.trim_end_matches(|c: char| c.is_ascii_digit() || c == ':')
        }
    };
    let name = if path.starts_with("node:") { path } else { path.rsplit('/').next()? };
    (!name.is_empty()).then_some(name)
}

/// Symbols of C++ operators that have an angle bracket, the longest first.
const OPERATORS: [&str; 11] = ["<=>", "<<=", ">>=", "->*", "<<", ">>", "<=", ">=", "->", "<", ">"];

/// What introduces the name of a C++ operator.
const OPERATOR: &str = "operator";

/// Whether a text ends with the keyword `operator`, and not with a longer word.
fn is_keyword(text: &str) -> bool {
    let before = text.strip_suffix(OPERATOR);
    before.is_some_and(|before| !before.ends_with(|last: char| last.is_alphanumeric() || last == '_'))
}

/// Where `operator` stands in a name that ends with a C++ conversion, as `app::Map::operator app::Key const&() const`, and its end without
/// parameters. What it converts to is a type with scopes, spaces and brackets of its own.
fn conversion(name: &str) -> Option<(usize, usize)> {
    let at = name.rfind("operator ").filter(|at| is_keyword(&name[..at + OPERATOR.len()]))?;
    let kind = &name[at + OPERATOR.len() + 1..];
    // `operator new`, `operator"" _km` and a lambda within a conversion are none.
    let word = kind.split(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap_or_default();
    let is_other = kind.starts_with(['<', '"']) || ["new", "delete", "co_await"].contains(&word);
    let depth = name[..at].chars().fold(0_i32, |depth, c| match c {
        '<' | '(' | '[' | '{' => depth.saturating_add(1),
        '>' | ')' | ']' | '}' => depth.saturating_sub(1),
        _ => depth,
    });
    if is_other || depth != 0 || kind.contains("::{") {
        return None;
    }
    Some((at, kind.rfind("()").map_or(name.len(), |end| at + OPERATOR.len() + 1 + end)))
}

/// The symbol with an angle bracket of a C++ operator whose name ends with `before`, at the start of `rest`.
fn operator_at(before: &str, rest: &str) -> Option<&'static str> {
    OPERATORS.into_iter().find(|symbol| rest.starts_with(symbol) && is_keyword(before))
}

/// Where the name of a function starts: behind its result's type, if it is one of C++ that has parameters.
fn name_start(function: &str) -> usize {
    let (mut depth, mut start, mut previous) = (0_usize, 0, ' ');
    let mut rest = function.char_indices();
    while let Some((at, c)) = rest.next() {
        if depth == 0
            && let Some(symbol) = operator_at(&function[..at], &function[at..])
        {
            // Between the symbol and its own angle brackets: `operator< <int>`.
            let skipped = symbol.len() - 1 + usize::from(function[at + symbol.len()..].starts_with(" <"));
            for _ in 0..skipped {
                rest.next();
            }
            previous = 'o';
            continue;
        }
        match c {
            // An operator's name may have spaces: `operator bool`, `operator unsigned long`.
            ' ' if depth == 0 && is_keyword(&function[start..at]) => return start,
            ' ' if depth == 0 => start = at + 1,
            // Parameters: what follows them is no part of the name. `decltype(auto)` is a result's type.
            '(' if depth == 0
                && function[start..at] != *"decltype"
                && !matches!(previous, ' ' | ':' | '.' | '&' | '*') =>
            {
                return start;
            }
            '<' | '(' | '[' | '{' => depth += 1,
            '>' if previous == '-' => {}
            '>' | ')' | ']' | '}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        previous = c;
    }
    0
}

/// `core` of `core::fmt::write`, if the text starts with a path of at least two segments.
fn first_segment(path: &str) -> Option<&str> {
    let path = path.trim_start_matches(['&', '*', '(', '[', '<', ' ']);
    let path = path.strip_prefix("mut ").or_else(|| path.strip_prefix("dyn ")).unwrap_or(path);
    let path = path.strip_prefix("const ").unwrap_or(path);
    let end = path.find(|c: char| !(c.is_alphanumeric() || c == '_'))?;
    let (name, rest) = path.split_at(end);
    // A crate's name may carry a disambiguator: `alloc[4f3a]::vec`.
    let rest = rest.strip_prefix('[').and_then(|r| r.split_once(']')).map_or(rest, |(_, after)| after);
    (!name.is_empty() && rest.starts_with("::")).then_some(name)
}

/// Splits `A as B>::f` at the level of the opening bracket, and at a word, into `A` and `B`.
fn split_qualified<'a>(inside: &'a str, word: &str) -> (&'a str, Option<&'a str>) {
    let mut depth = 0_usize;
    let mut previous = ' ';
    let mut split = None;
    for (index, c) in inside.char_indices() {
        match c {
            '<' | '(' | '[' => depth += 1,
            '>' if previous == '-' => {}
            '>' if depth == 0 => {
                let end = index;
                return match split {
                    Some(at) => (&inside[..at], Some(&inside[at + word.len()..end])),
                    None => (&inside[..end], None),
                };
            }
            '>' | ')' | ']' => depth = depth.saturating_sub(1),
            ' ' if depth == 0 && split.is_none() && inside[index..].starts_with(word) => split = Some(index),
            _ => {}
        }
        previous = c;
    }
    (inside, None)
}

/// A name for a narrow box: the last two segments of the path, without generic arguments.
pub fn short(function: &str) -> String {
    let bare = without_parameters(&without_generics(&without_trait(function)));
    let mut parts = segments(&bare);
    // Closures say little by themselves: they do not count as a segment.
    let is_name = |part: &&str| !part.starts_with('{');
    let first = parts.iter().enumerate().rev().filter(|(_, part)| is_name(part)).nth(1).map_or(0, |(at, _)| at);
    parts.drain(..first);
    if parts.is_empty() { function.to_string() } else { parts.join("::") }
}

/// The segments of a path without generic arguments and parameters. `f::<u64>` has an empty one for its argument, which is left out; a
/// C++ conversion is one.
pub fn segments(bare: &str) -> Vec<&str> {
    let (scopes, own) = bare.split_at(conversion(bare).map_or(bare.len(), |(at, _)| at));
    scopes.split("::").chain([own]).filter(|part| !part.is_empty()).collect()
}

/// A C++ function carries its parameters, and one of a template its result's type: both are the first to go. What is in
/// brackets for other reasons stays: `(anonymous namespace)`, the receiver in Go's `(*Digest).Write`, `operator()`, and
/// names that start with a bracket.
pub fn without_parameters(name: &str) -> String {
    if name.starts_with(['[', '{']) {
        return name.to_string();
    }
    match conversion(name) {
        Some((at, end)) => scopes_without_parameters(&name[..at]) + &name[at..end],
        None => scopes_without_parameters(name),
    }
}

/// The same of a name that is no conversion, or in front of one.
fn scopes_without_parameters(name: &str) -> String {
    let mut bare = String::with_capacity(name.len());
    // Where the last parameters were, in what is left.
    let (mut depth, mut parameters) = (0_usize, None);
    let mut rest = name.char_indices();
    while let Some((at, c)) = rest.next() {
        match c {
            '(' if depth > 0 => depth += 1,
            ')' if depth > 0 => depth -= 1,
            _ if depth > 0 => {}
            '(' if bare.ends_with("operator") && name[at..].starts_with("()") => {
                bare.push_str("()");
                rest.next();
            }
            '(' if bare.ends_with(|last: char| !matches!(last, ':' | '.' | ' ' | '(' | '&' | '*'))
                || is_operator(&bare) =>
            {
                (depth, parameters) = (1, Some(bare.len()));
            }
            _ => bare.push(c),
        }
    }
    if depth > 0 {
        return name.to_string();
    }
    let Some(parameters) = parameters else { return bare };
    // What follows the parameters: const, &, [clone .part.0].
    let words = [" const", " volatile", " &", " [", " noexcept"];
    // A lambda within a method has the method's `const` in its path.
    let (front, behind) = bare.split_at(parameters);
    let behind = behind.replace(" const::", "::");
    let end = words.iter().filter_map(|word| behind.find(word)).min().unwrap_or(behind.len());
    let mut bare = format!("{}{}", front.replace(" const::", "::"), &behind[..end]);
    // The result's type is in front of the last word, but an operator may have several.
    let (mut depth, mut start) = (0_usize, 0);
    let words_end = bare.find("operator").unwrap_or(bare.len());
    for (at, c) in bare[..words_end].char_indices() {
        match c {
            '(' | '[' | '{' => depth += 1,
            ')' | ']' | '}' => depth = depth.saturating_sub(1),
            ' ' if depth == 0 => start = at + 1,
            _ => {}
        }
    }
    bare.split_off(start)
}

/// Whether a name ends with an operator of punctuation: `operator*`, whose star belongs to no type.
fn is_operator(name: &str) -> bool {
    let symbol = name.rsplit_once("operator").map_or("", |(_, symbol)| symbol);
    !symbol.is_empty() && symbol.chars().all(|c| c.is_ascii_punctuation() && !matches!(c, ':' | '_' | '(' | ')'))
}

/// How deep the type of a method may be in the method of another type; what is deeper stays as it is.
const METHODS_MAX: usize = 8;

/// `<a::Type<T> as b::Trait>::f`, and `c::<impl b::Trait for a::Type<T>>::f`, as `a::Type<T>::f`; other names as they are.
pub fn without_trait(function: &str) -> String {
    without_traits(function, METHODS_MAX)
}

fn without_traits(function: &str, depth: usize) -> String {
    let Some((kind, rest)) = method(function).filter(|_| depth > 0) else { return function.to_string() };
    // A type that is declared in a method: `<<a::Type<T>>::f::Local>::g`.
    without_traits(kind, depth - 1) + rest
}

/// The type of a Rust method, and what follows it.
fn method(function: &str) -> Option<(&str, &str)> {
    const IMPL: &str = "<impl ";
    let (inside, word) = match function.find(IMPL).filter(|at| !function[..*at].contains('<')) {
        Some(at) => (&function[at + IMPL.len()..], " for "),
        None => (function.strip_prefix('<')?, " as "),
    };
    let (first, second) = split_qualified(inside, word);
    let used = first.len() + second.map_or(0, |name| word.len() + name.len());
    let rest = inside[used..].strip_prefix('>')?;
    Some((second.filter(|_| word == " for ").unwrap_or(first), rest))
}

/// Leaves out everything between angle brackets; an arrow's bracket is not one of them, and a
/// name whose brackets do not match (`operator<`) stays as it is.
pub fn without_generics(name: &str) -> String {
    let mut depth = 0_usize;
    let mut previous = ' ';
    let mut bare = String::with_capacity(name.len());
    let mut rest = name.char_indices();
    while let Some((at, c)) = rest.next() {
        if let Some(symbol) = operator_at(&name[..at], &name[at..]) {
            if depth == 0 {
                bare.push_str(symbol);
            }
            for _ in 1..symbol.len() {
                rest.next();
            }
            // Between the symbol and its own angle brackets: `operator< <int>`.
            if name[at + symbol.len()..].starts_with(" <") {
                rest.next();
            }
            previous = ' ';
            continue;
        }
        match c {
            '<' => depth += 1,
            '>' if previous != '-' && depth == 0 => return name.to_string(),
            '>' if previous != '-' => depth -= 1,
            _ if depth == 0 => bare.push(c),
            _ => {}
        }
        previous = c;
    }
    if depth == 0 { bare } else { name.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_crates_where_a_path_names_one() {
        for (function, crate_name) in [
            ("smoltcp::iface::interface::Interface::poll", "smoltcp"),
            ("<alloc::vec::Vec<T,A> as core::ops::drop::Drop>::drop", "alloc"),
            ("<&T as core::fmt::Debug>::fmt", "core"),
            ("<&mut smoltcp::socket::tcp::Socket as core::fmt::Debug>::fmt", "smoltcp"),
            ("<(A, B) as queue::Pair>::first", "queue"),
            ("<impl core::future::Future for fn() -> T>::poll", "app"),
            ("alloc[8a1b]::raw_vec::finish_grow", "alloc"),
            ("std::vector<int, std::allocator<int> >::push_back(int&&)", "std"),
            (
                "__gnu_cxx::__normal_iterator<int*, std::vector<int> > std::__unguarded_partition<int*>(int*, int*)",
                "std",
            ),
            ("void std::sort<int*>(int*, int*)", "std"),
            ("bool std::operator< <char>(std::basic_string<char> const&, char const*)", "std"),
            ("a::B::operator bool() const", "a"),
            ("a::B::operator unsigned long() const", "a"),
            ("a::B<c::D>::operator e::F<int> const&() const", "a"),
            ("my_operator f::g(int)", "f"),
            ("decltype(auto) std::__get<0ul>(std::variant<int>&)", "std"),
            ("unsigned long (*app::choose(int))(char)", "app"),
            ("int main::{lambda(int)#1}::operator()(int) const", "main"),
            ("memcpy", "app"),
            ("0x7f0012", "app"),
            ("<", "app"),
            ("<>", "app"),
            ("", "app"),
            ("<img src=x onerror=alert(1)>", "app"),
        ] {
            assert_eq!(group(function, "app"), crate_name, "{function}");
        }
        assert_eq!(group("memcpy", ""), "unknown");
    }

    #[test]
    fn groups_of_every_language_have_their_kind() {
        use GroupKind::*;
        for (function, expected) in [
            ("smoltcp::iface::interface::Interface::poll", ("smoltcp", Crate)),
            ("<app::Map<fn(u8) -> u8> as core::ops::Drop>::drop", ("app", Crate)),
            ("queue::put::{closure#0}", ("queue", Crate)),
            ("std::vector<int, std::allocator<int> >::push_back(int&&)", ("std", Namespace)),
            ("bool std::operator< <char>(std::basic_string<char> const&, char const*)", ("std", Namespace)),
            ("app::Map::operator bool() const", ("app", Namespace)),
            ("app::Map::operator()(int) const", ("app", Namespace)),
            ("void app::(anonymous namespace)::run<int>(int) [clone .isra.0]", ("app", Namespace)),
            ("(anonymous namespace)::run(int)", ("image", Image)),
            ("Engine::step(float)", ("Engine", Namespace)),
            ("step(float)", ("image", Image)),
            ("main.main", ("main", Package)),
            ("runtime.mallocgc", ("runtime", Package)),
            ("crypto/sha256.(*Digest).Write", ("crypto/sha256", Package)),
            ("github.com/some.body/queue.(*Store[...]).Put.func1", ("github.com/some.body/queue", Package)),
            ("slices.SortFunc[go.shape.[]int]", ("slices", Package)),
            ("std.Thread.run", ("std", Package)),
            ("py::main:/srv/shop/app.py", ("app.py", Script)),
            ("py::<module>:<string>", ("<string>", Script)),
            ("JS:*handle file:///srv/shop/server.js:10:5", ("server.js", Script)),
            ("LazyCompile:~emit node:events:465:44", ("node:events", Script)),
            ("Builtin:ArrayMap", ("image", Image)),
            ("memcpy", ("image", Image)),
            ("do_syscall_64", ("image", Image)),
            ("call_init.part.0", ("image", Image)),
            ("update_load.isra.0.cold", ("image", Image)),
            ("gomp_loop._omp_fn.3", ("image", Image)),
            ("f.1234", ("image", Image)),
            (".hidden", ("image", Image)),
            ("a.", ("image", Image)),
            ("[no name]", ("image", Image)),
            ("py::", ("py", Crate)),
            ("JS: ", ("image", Image)),
            ("é.ü", ("image", Image)),
        ] {
            assert_eq!((group(function, "image").as_str(), group_kind(function)), expected, "{function}");
        }
    }

    #[test]
    fn short_names_keep_the_last_two_segments() {
        for (function, expected) in [
            ("smoltcp::iface::interface::Interface::poll", "Interface::poll"),
            ("<alloc::vec::Vec<T,A> as core::ops::drop::Drop>::drop", "Vec::drop"),
            ("<F as core::future::Future>::poll", "F::poll"),
            ("alloc::fix::<impl alloc::node::NodeRef<K,V>>::push", "NodeRef::push"),
            ("app::<impl core::fmt::Debug for app::Tree<T>>::fmt::{{closure}}", "Tree::fmt::{{closure}}"),
            ("<<app::Queue<T>>::push::Guard as core::ops::Drop>::drop", "Guard::drop"),
            ("<<app::Queue<T>>::push<u8>::{closure#0} as core::ops::FnOnce<()>>::call", "push::{closure#0}::call"),
            ("queue::store::put::{{closure}}", "store::put::{{closure}}"),
            ("queue::put::{closure#0}::{closure#1}", "queue::put::{closure#0}::{closure#1}"),
            ("core::ops::function::FnOnce<fn() -> T>::call_once", "FnOnce::call_once"),
            ("std::vector<int, std::allocator<int> >::push_back(int&&)", "vector::push_back"),
            ("operator<", "operator<"),
            ("bool operator< <char>(char const*, std::basic_string<char> const&)", "operator<"),
            ("std::ostream& std::operator<< <std::char_traits<char> >(std::ostream&, char const*)", "std::operator<<"),
            ("app::Iterator<int>::operator->() const", "Iterator::operator->"),
            ("my_operator<int>::run()", "my_operator::run"),
            ("crypto/sha256.(*Digest).Write", "crypto/sha256.(*Digest).Write"),
            ("v8::internal::(anonymous namespace)::Invoke(v8::internal::Isolate*)", "(anonymous namespace)::Invoke"),
            ("(anonymous namespace)::run(int)", "(anonymous namespace)::run"),
            ("void std::sort<int*>(int*, int*)", "std::sort"),
            ("std::unique_ptr<int> app::make<int>(int&&)", "app::make"),
            ("app::Map::operator()(int) const", "Map::operator()"),
            ("app::Map::operator bool() const", "Map::operator bool"),
            ("app::run(int)::{lambda(int)#1}::operator()(int) const", "run::{lambda#1}::operator()"),
            ("app::Map::operator void (*)()() const", "Map::operator void (*)()"),
            ("app::Map<int>::operator app::Key<int> const&() const", "Map::operator app::Key const&"),
            ("app::Map::operator unsigned long() [clone .cold]", "Map::operator unsigned long"),
            ("app::run(int)::Local::operator app::Key*()", "Local::operator app::Key*"),
            (
                "app::Map::operator bool() const::{lambda()#1}::operator()() const",
                "operator bool::{lambda#1}::operator()",
            ),
            ("operator delete(void*, unsigned long)", "operator delete"),
            ("void app::f(int) [clone .part.0]", "app::f"),
            ("char const* app::constants::null_value<char>()", "constants::null_value"),
            ("app::Iterator<char const*>::operator*() const", "Iterator::operator*"),
            ("app::Bits app::operator&(app::Bits, app::Bits)", "app::operator&"),
            ("app::run(int) const::{lambda(int)#1}::operator()(int) const", "run::{lambda#1}::operator()"),
            ("broken(", "broken("),
            ("a::b<c", "a::b<c"),
            ("memcpy", "memcpy"),
            ("[idle]", "[idle]"),
            ("<", "<"),
            ("::", "::"),
            ("é<ü>::ß", "é::ß"),
        ] {
            assert_eq!(short(function), expected, "{function}");
        }
    }

    #[test]
    fn nothing_unprintable_survives() {
        assert_eq!(printable("a\u{1b}[2Jb\nc\u{202e}d"), "a\u{fffd}[2Jb\u{fffd}c\u{fffd}d");
        assert_eq!(printable(""), "(no name)");
        assert_eq!(printable(&"x".repeat(NAME_CHARS_MAX)).chars().count(), NAME_CHARS_MAX);
        assert_eq!(printable(&"x".repeat(1_000_000)).chars().count(), NAME_CHARS_MAX + 1);
    }

    proptest::proptest! {
        #[test]
        fn no_name_panics(name in "\\PC{0,60}|[<>():& asA-]{0,40}|(operator |<impl | for | as |::|\\(\\)|[<> aé]){0,20}") {
            let _ = group(&name, "image");
            proptest::prop_assert!(!short(&name).is_empty() || name.is_empty());
        }
    }
}
