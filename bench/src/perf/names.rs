//! Names in a form that both profilers share: each has its own demangler, and chooses among the names of one address.

/// Stands for code without a name.
pub(crate) const UNKNOWN: &str = "[no name]";

/// The name without the parts in which demanglers and compilers differ: parameters, a template's result, copies, aliases.
pub(crate) fn normal(name: &str) -> String {
    let name = name.trim();
    let is_address = name.strip_prefix("0x").is_some_and(|digits| digits.bytes().all(|byte| byte.is_ascii_hexdigit()));
    if name.is_empty() || is_address || ["[unknown]", "[generated code]"].contains(&name) {
        return UNKNOWN.to_owned();
    }
    // A name from a virtual machine may contain any text.
    if name.split_once(':').is_some_and(|(kind, rest)| !rest.starts_with(':') && !kind.contains(['<', '(', ' '])) {
        return name.to_owned();
    }
    let name = without_hash(without_suffix(name));
    let name = without_result(without_parameters(name));
    let name = name.trim_start_matches("__GI_").trim_start_matches('_');
    let name = name.strip_prefix("libc_").unwrap_or(name).replace("> >", ">>").replace(", ", ",");
    // One code with two names: either may be shown.
    ALIASES.iter().fold(name, |name, (one, other)| name.replace(one, other))
}

/// Names of the same address: copying is moving, and both integers have 64 bits.
const ALIASES: [(&str, &str); 2] = [("memcpy_", "memmove_"), ("<usize as core::fmt", "<u64 as core::fmt")];

/// Without the marks of a part or a copy of a function.
fn without_suffix(name: &str) -> &str {
    // A version of a symbol, and Go's mark of how a function is called.
    let name = name.split('@').next().unwrap_or(name).trim_end_matches(".abi0");
    let name = name.split(" [clone").next().unwrap_or(name);
    let marks = [".isra.", ".constprop.", ".part.", ".cold", ".llvm.", ".lto_priv."];
    marks.iter().fold(name, |name, mark| name.split(mark).next().unwrap_or(name))
}

/// Without the hash of Rust's first way to mangle.
fn without_hash(name: &str) -> &str {
    match name.rsplit_once("::h") {
        Some((path, hash)) if hash.len() == 16 && hash.bytes().all(|byte| byte.is_ascii_hexdigit()) => path,
        _ => name,
    }
}

/// Without the parameters at the end, if there are some.
fn without_parameters(name: &str) -> &str {
    let body = name.trim_end_matches(" const");
    if !body.ends_with(')') || body.ends_with("{closure}") {
        return name;
    }
    let mut depth = 0;
    for (at, letter) in body.char_indices().rev() {
        match letter {
            ')' => depth += 1,
            '(' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return if at == 0 { name } else { &body[..at] };
        }
    }
    name
}

/// Without the type that a template returns: what stands before the last space that is in no bracket.
fn without_result(name: &str) -> &str {
    if name.contains("operator") {
        return name;
    }
    let mut depth = 0;
    for (at, letter) in name.char_indices().rev() {
        match letter {
            '>' | ')' | ']' | '}' => depth += 1,
            '<' | '(' | '[' | '{' => depth -= 1,
            ' ' if depth == 0 => return &name[at + 1..],
            _ => {}
        }
    }
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_function_has_one_name() {
        for (a, b) in [
            ("void std::sort<int*>(int*, int*)", "std::sort<int*>"),
            ("mix::(anonymous namespace)::waves(int)", "mix::(anonymous namespace)::waves"),
            ("mix::Table::count(unsigned long) const", "mix::Table::count"),
            ("__libc_malloc", "malloc"),
            ("__GI___libc_malloc", "malloc"),
            ("texts(int) [clone .constprop.0]", "texts"),
            ("core::fmt::write::h0123456789abcdef", "core::fmt::write"),
            ("operator new(unsigned long)", "operator new"),
            ("clock_gettime@@GLIBC_2.17", "clock_gettime"),
            ("hash/crc32.ieeeCLMUL.abi0", "hash/crc32.ieeeCLMUL"),
            ("__memcpy_avx512_unaligned_erms", "__memmove_avx512_unaligned_erms"),
            ("std::map<int, std::vector<int> >::at", "std::map<int,std::vector<int>>::at"),
        ] {
            assert_eq!(normal(a), normal(b), "{a}");
        }
        for same in
            ["main.(*table).count", "JS:*words /a b/mix.js:9:15", "<T as core::fmt::Debug>::fmt", "crc32.ieeeCLMUL"]
        {
            assert_eq!(normal(same), same);
        }
        assert_eq!((normal("0x4010"), normal("[unknown]")), (UNKNOWN.to_owned(), UNKNOWN.to_owned()));
        assert_ne!(normal("main.a"), normal("main.b"));
    }
}
