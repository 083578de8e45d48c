//! The prose of a file: its comments, its string literals, or all of it, as pieces that keep their line numbers.

/// A run of text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Piece {
    /// The line of its first character, from 1 on.
    pub line: usize,
    /// Comment markers and code spans are spaces here, line breaks stay.
    pub text: String,
    /// Whether it is a string literal; otherwise a comment.
    pub is_string: bool,
}

/// A whole document, without what is in code spans.
pub fn of_document(text: &str) -> Piece {
    Piece { line: 1, text: without_code_spans(text), is_string: false }
}

/// A part of a Rust file.
enum Part<'a> {
    Code(&'a str),
    Comment(&'a str),
    /// The text of a string literal, and whether it has no escapes.
    Literal(&'a str, bool),
}

/// All parts of a Rust file, each with the line of its first character.
fn parts_of_rust<'a>(text: &'a str, mut each: impl FnMut(usize, Part<'a>)) {
    let (mut rest, mut line) = (text, 1);
    while let Some(start) = rest.find(['/', '"', '\'', 'r']) {
        each(line, Part::Code(&rest[..start]));
        line += lines_in(&rest[..start]);
        let identifier_before = rest[..start].ends_with(|c: char| c.is_alphanumeric() && c != 'b' || c == '_');
        rest = &rest[start..];
        let length = if rest.starts_with("//") {
            let length = rest.find('\n').unwrap_or(rest.len());
            each(line, Part::Comment(&rest[..length]));
            length
        } else if let Some(hashes) = raw_string(rest).filter(|_| !identifier_before) {
            let open = hashes + 2;
            let end = rest[open..].find(&format!("\"{}", "#".repeat(hashes))).map_or(rest.len(), |end| open + end);
            each(line, Part::Literal(&rest[open..end], true));
            (end + 1 + hashes).min(rest.len())
        } else if rest.starts_with('"') {
            let end = string_end(rest, b'"');
            each(line, Part::Literal(&rest[1..end], false));
            (end + 1).min(rest.len())
        } else if rest.starts_with('\'') {
            character_length(rest)
        } else {
            each(line, Part::Code(&rest[..1]));
            1
        };
        line += lines_in(&rest[..length]);
        rest = &rest[length..];
    }
    each(line, Part::Code(rest));
}

/// The comments and string literals of a Rust file. Comments on consecutive lines are one piece.
pub fn of_rust(text: &str) -> Vec<Piece> {
    let mut pieces: Vec<Piece> = Vec::new();
    parts_of_rust(text, |line, part| match part {
        Part::Code(_) => {}
        Part::Comment(comment) => add_comment(&mut pieces, line, comment),
        Part::Literal(text, is_raw) => {
            let text = if is_raw { text.to_owned() } else { unescaped(text) };
            pieces.push(Piece { line, text, is_string: true });
        }
    });
    for piece in pieces.iter_mut().filter(|piece| !piece.is_string) {
        piece.text = without_code_spans(&piece.text);
    }
    pieces
}

/// A Rust file without its comments and literals, on the same lines.
pub fn code_of_rust(text: &str) -> String {
    let mut code = String::with_capacity(text.len());
    let mut lines = 1;
    parts_of_rust(text, |line, part| {
        let Part::Code(part) = part else { return code.push(' ') };
        code.extend(std::iter::repeat_n('\n', line - lines));
        lines = line + lines_in(part);
        code.push_str(part);
    });
    code
}

/// The comments and string literals of a JavaScript module, template literals without what they insert.
pub fn of_javascript(text: &str) -> Vec<Piece> {
    let mut pieces: Vec<Piece> = Vec::new();
    let (mut rest, mut line) = (text, 1);
    let mut before = '\n';
    while let Some(start) = rest.find(['/', '"', '\'', '`']) {
        line += lines_in(&rest[..start]);
        before = rest[..start].chars().rfind(|c| !c.is_whitespace()).unwrap_or(before);
        rest = &rest[start..];
        let quote = rest.as_bytes()[0];
        let length = if rest.starts_with("//") {
            let length = rest.find('\n').unwrap_or(rest.len());
            add_comment(&mut pieces, line, &rest[..length]);
            length
        } else if rest.starts_with("/*") {
            let end = rest.find("*/").unwrap_or(rest.len());
            pieces.push(Piece { line, text: rest[2..end].replace('*', " "), is_string: false });
            (end + 2).min(rest.len())
        } else if quote != b'/' {
            let end = string_end(rest, quote);
            let literal = rest[1..end].replace("${", "{");
            pieces.push(Piece { line, text: unescaped(&literal), is_string: true });
            (end + 1).min(rest.len())
        } else if is_before_expression(before) {
            regex_length(rest)
        } else {
            1
        };
        before = rest[..length].chars().last().unwrap_or(before);
        line += lines_in(&rest[..length]);
        rest = &rest[length..];
    }
    for piece in pieces.iter_mut().filter(|piece| !piece.is_string) {
        piece.text = without_code_spans(&piece.text);
    }
    pieces
}

/// Whether an expression follows this character, so that a `/` starts a regular expression and does not divide.
fn is_before_expression(before: char) -> bool {
    "\n(,=:[!&|?{};+".contains(before)
}

/// Length of the regular expression literal at the start of `text`.
fn regex_length(text: &str) -> usize {
    let (mut is_escaped, mut is_class) = (false, false);
    for (index, letter) in text.char_indices().skip(1) {
        match letter {
            '\n' => return index,
            _ if is_escaped => is_escaped = false,
            '\\' => is_escaped = true,
            '[' => is_class = true,
            ']' => is_class = false,
            '/' if !is_class => return index + 1,
            _ => {}
        }
    }
    text.len()
}

/// The part of a Rust file before its module of tests.
pub fn before_tests(text: &str) -> &str {
    let Some((before, after)) = text.split_once("\n#[cfg(test)]\nmod ") else { return text };
    // A module in a file of its own has no tests here.
    let has_body = after.find(['{', ';']).is_some_and(|end| after[end..].starts_with('{'));
    if has_body { before } else { text }
}

fn lines_in(text: &str) -> usize {
    text.bytes().filter(|byte| *byte == b'\n').count()
}

/// Appends a comment, to the piece before if that is a comment that ends on the line before.
fn add_comment(pieces: &mut Vec<Piece>, line: usize, comment: &str) {
    let text = comment.trim_start_matches('/').trim_start_matches('!');
    match pieces.last_mut() {
        Some(last) if !last.is_string && last.line + lines_in(&last.text) + 1 == line => {
            last.text.push('\n');
            last.text.push_str(text);
        }
        _ => pieces.push(Piece { line, text: text.to_owned(), is_string: false }),
    }
}

/// The number of `#` of a raw string that starts here.
fn raw_string(text: &str) -> Option<usize> {
    let after = text.strip_prefix('r')?;
    let hashes = after.bytes().take_while(|byte| *byte == b'#').count();
    after[hashes..].starts_with('"').then_some(hashes)
}

/// Index of the quote that ends the string literal at the start of `text`.
fn string_end(text: &str, quote: u8) -> usize {
    let bytes = text.as_bytes();
    let mut index = 1;
    while index < bytes.len() && bytes[index] != quote {
        index += if bytes[index] == b'\\' { 2 } else { 1 };
    }
    index.min(bytes.len())
}

/// A string literal's text: escapes and names of formatted values are spaces, an escaped line break is a line break.
fn unescaped(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut characters = text.chars();
    while let Some(character) = characters.next() {
        match character {
            '\\' => plain.push(if characters.next() == Some('\n') { '\n' } else { ' ' }),
            '{' => {
                let rest = characters.as_str();
                let name = rest.find('}').filter(|end| !rest[..*end].contains(char::is_whitespace));
                characters = rest[name.map_or(0, |end| end + 1)..].chars();
                plain.push(' ');
            }
            other => plain.push(other),
        }
    }
    plain
}

/// Length of the character literal at the start of `text`; 1 if it is a lifetime.
fn character_length(text: &str) -> usize {
    let mut characters = text.char_indices().skip(1);
    match characters.next() {
        Some((_, '\\')) => text[3..].find('\'').map_or(1, |end| end + 4),
        Some(_) => characters.next().filter(|(_, close)| *close == '\'').map_or(1, |(index, _)| index + 1),
        None => 1,
    }
}

/// Replaces each code span by spaces: a name in it may be any.
fn without_code_spans(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    for line in text.split_inclusive('\n') {
        if line.trim_start().starts_with("```") {
            plain.push_str(line);
            continue;
        }
        let parts: Vec<&str> = line.split('`').collect();
        for (index, part) in parts.iter().enumerate() {
            let is_code = index % 2 == 1 && index + 1 < parts.len();
            plain.push_str(if is_code { " ` " } else { part });
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pieces(text: &str) -> Vec<(usize, String)> {
        of_rust(text).into_iter().map(|piece| (piece.line, piece.text.trim().to_owned())).collect()
    }

    #[test]
    fn comments_on_consecutive_lines_are_one_piece() {
        let text = "//! One\n//! two.\nfn f() {} // three\n\n    /// four\n    /// `code` five\nstruct S;\n";
        let found = pieces(text);
        assert_eq!(found[0], (1, "One\n two.\n three".to_owned()));
        assert_eq!(found[1].0, 5);
        assert_eq!(found[1].1.split_whitespace().collect::<Vec<_>>(), ["four", "`", "five"]);
        assert_eq!(found.len(), 2);
    }

    #[test]
    fn strings_are_found_among_what_looks_like_them() {
        let text = "let x = ('\"', '\\'', 'a', b'\\\\', \"one // \\\" \\\n   two\", r#\"three \" \"#, for_\"\", br\"four\");\n\
                    fn f<'a>(x: &'a str) -> &'a str { \"five\" }";
        let strings: Vec<_> = of_rust(text).into_iter().filter(|piece| piece.is_string).collect();
        let texts: Vec<_> =
            strings.iter().map(|piece| piece.text.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
        assert_eq!(texts, ["one // two", "three \"", "", "four", "five"]);
        assert_eq!(strings.last().unwrap().line, 3);
    }

    #[test]
    fn javascript_has_comments_strings_and_templates() {
        let text = "// One\n/** two */ told = /[\"/]told/.test(a) / b / 'three'; `four ${told} \\` five\n six` + \"seven\";\n// eight";
        let found: Vec<(usize, String)> = of_javascript(text)
            .into_iter()
            .map(|piece| (piece.line, piece.text.split_whitespace().collect::<Vec<_>>().join(" ")))
            .collect();
        let expected = [(1, "One"), (2, "two"), (2, "three"), (2, "four five six"), (3, "seven"), (4, "eight")];
        assert_eq!(found, expected.map(|(line, text)| (line, text.to_owned())));
    }

    #[test]
    fn names_of_values_are_not_prose() {
        assert_eq!(pieces("f(\"{told} a { told {:?}\")"), [(1, "a   told".to_owned())]);
    }

    #[test]
    fn the_module_of_tests_is_cut_off() {
        assert_eq!(before_tests("a\n#[cfg(test)]\nmod tests {\n b\n}\n"), "a");
        let elsewhere = "a\n#[cfg(test)]\nmod tests;\nfn b() {}\n";
        assert_eq!(before_tests(elsewhere), elsewhere);
        assert_eq!(before_tests("a\n"), "a\n");
    }
}
