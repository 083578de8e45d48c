//! Changes of text that has lines, words and numbers.

use fastrand::Rng;

use super::{interesting, pick, plain};

/// Words that a parser may not expect.
const WORDS: &[&str] = &[
    "",
    " ",
    "\0",
    "\n",
    "\r\n",
    "\t",
    "-",
    "--",
    ",",
    ":",
    "=",
    "\"",
    "'",
    "\\",
    "/",
    "(",
    ")",
    "[",
    "]",
    "{",
    "}",
    "<",
    ">",
    "%",
    "#",
    "$",
    "*",
    "+",
    ".",
    "..",
    "é",
    "\u{2028}",
    "\u{10ffff}",
    "0x",
    "-1",
    "1e999",
    "nan",
    "%00",
    "%zz",
];

/// The parts of `bytes` of one kind: words, numbers or lines.
fn parts(bytes: &[u8], inside: impl Fn(u8) -> bool) -> Vec<std::ops::Range<usize>> {
    let mut found = Vec::new();
    let mut start = None;
    for (index, byte) in bytes.iter().enumerate() {
        match (inside(*byte), start) {
            (true, None) => start = Some(index),
            (false, Some(first)) => {
                found.push(first..index);
                start = None;
            }
            _ => {}
        }
    }
    found.extend(start.map(|first| first..bytes.len()));
    found
}

/// Changes a number, a word or a line, or any bytes.
pub fn text(bytes: &mut Vec<u8>, corpus: &[Vec<u8>], rng: &mut Rng) {
    let kind = rng.u32(..6);
    let found = match kind {
        0 | 1 => parts(bytes, |byte| byte.is_ascii_hexdigit()),
        2 => parts(bytes, |byte| !byte.is_ascii_whitespace() && byte != 0),
        3 | 4 => parts(bytes, |byte| byte != b'\n'),
        _ => Vec::new(),
    };
    if found.is_empty() {
        return plain(bytes, corpus, rng);
    }
    let (one, other) = (pick(rng, &found).clone(), pick(rng, &found).clone());
    let new = match (kind, rng.u32(..4)) {
        (0 | 1, 0) => format!("{}", interesting(rng)).into_bytes(),
        (0 | 1, 1) => format!("{:x}", interesting(rng)).into_bytes(),
        (0 | 1, 2) => format!("{}{}", interesting(rng), interesting(rng)).into_bytes(),
        (_, 0) => Vec::new(),
        (_, 1) => pick(rng, WORDS).as_bytes().to_vec(),
        (3 | 4, 2) => [&bytes[one.clone()], b"\n", &bytes[other]].concat(),
        (_, 2) => bytes[one.clone()].repeat(1 << rng.u32(..8)),
        _ => bytes[other].to_vec(),
    };
    bytes.splice(one, new);
}
