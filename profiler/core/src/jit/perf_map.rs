//! Perf maps: a text file with a line for each function that a process generated, `START SIZE NAME`
//! (`tools/perf/Documentation/jit-interface.txt` of Linux).

use std::io::{BufRead, BufReader, Read};

use super::code::JitCode;
use crate::budget::Account;

/// The longest line that is read, in bytes.
const LINE_BYTES_MAX: u64 = 64 << 10;

/// Reads a map to its end. The second result is a problem with it, as a phrase to follow its name.
pub(crate) fn read(input: &mut dyn Read, account: Account) -> (JitCode, Option<String>) {
    let mut input = BufReader::new(input);
    let mut code = JitCode::new(account);
    let (mut lines, mut damaged) = (0u64, 0u64);
    let mut problem = None;
    let mut line = Vec::new();
    // Each function replaces earlier ones at its addresses.
    loop {
        line.clear();
        match input.by_ref().take(LINE_BYTES_MAX).read_until(b'\n', &mut line) {
            Ok(0) => break,
            Ok(_) => {}
            Err(error) => {
                problem = Some(format!("cannot be read to its end ({error})"));
                break;
            }
        }
        if line.last() != Some(&b'\n') {
            if line.len() < LINE_BYTES_MAX as usize {
                problem = Some("ends within a line: functions that it does not have yet have no names".to_owned());
                break;
            }
            if let Err(error) = skip_line(&mut input) {
                problem = Some(format!("cannot be read to its end ({error})"));
                break;
            }
        }
        if !code.has_time_for(line.len()) {
            break;
        }
        lines += 1;
        damaged += u64::from(
            !parse_line(&line).is_some_and(|(start, bytes, name)| code.add(start, bytes, lines, &name, Vec::new())),
        );
    }
    if damaged > 0 {
        problem = Some(format!("has {damaged} of {lines} lines that describe no function"));
    } else if code.is_full() {
        problem = Some("is larger than what can be kept: the functions at its end have no names".to_owned());
    }
    code.finish();
    (code, problem)
}

/// Skips to the next line.
fn skip_line(input: &mut impl BufRead) -> std::io::Result<()> {
    loop {
        let buffer = input.fill_buf()?;
        let end = buffer.iter().position(|byte| *byte == b'\n');
        let (bytes, is_over) = (end.map_or(buffer.len(), |end| end + 1), end.is_some() || buffer.is_empty());
        input.consume(bytes);
        if is_over {
            return Ok(());
        }
    }
}

fn parse_line(line: &[u8]) -> Option<(u64, u64, String)> {
    let line = line.trim_ascii();
    let (start, rest) = split(line)?;
    let (bytes, name) = split(rest)?;
    let name = String::from_utf8_lossy(name.trim_ascii_start()).into_owned();
    Some((parse_hexadecimal(start)?, parse_hexadecimal(bytes)?, name))
}

fn split(line: &[u8]) -> Option<(&[u8], &[u8])> {
    let at = line.iter().position(|byte| *byte == b' ')?;
    Some((&line[..at], line[at..].trim_ascii_start()))
}

fn parse_hexadecimal(digits: &[u8]) -> Option<u64> {
    let digits = digits.strip_prefix(b"0x").unwrap_or(digits);
    // The standard library accepts a sign too.
    let is_plain = digits.iter().all(u8::is_ascii_hexdigit);
    u64::from_str_radix(std::str::from_utf8(digits).ok().filter(|_| is_plain)?, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(text: &[u8], addresses: &[u64]) -> (Vec<String>, Option<String>) {
        let (code, problem) = read(&mut &text[..], Account::alone());
        let name = |address| code.last(address).pop().map_or_else(String::new, |location| location.function);
        (addresses.iter().map(|address| name(*address)).collect(), problem)
    }

    #[test]
    fn functions_of_a_map() {
        let text = b"3ef414c0 398 JS:~main /app/server.js:1:10\n0x3ef41858 20 _ZN3foo3barEv\n";
        let (found, problem) = names(text, &[0x3ef4_14bf, 0x3ef4_14c0, 0x3ef4_1857, 0x3ef4_1858, 0x3ef4_1878]);
        assert_eq!(found, ["", "JS:~main /app/server.js:1:10", "JS:~main /app/server.js:1:10", "foo::bar()", ""]);
        assert_eq!(problem, None);
        assert_eq!(names(b"", &[7]), (vec![String::new()], None));
    }

    #[test]
    fn of_several_functions_at_an_address_the_last_one_wins() {
        let text = b"1000 100 first\n1080 10 second\n1000 40 third\n2000 10 other\n";
        let (found, problem) = names(text, &[0x1000, 0x1040, 0x1080, 0x1090, 0x10ff]);
        assert_eq!(found, ["third", "first", "second", "first", "first"]);
        assert_eq!(problem, None);
        let (code, _) = read(&mut &text[..], Account::alone());
        assert_eq!(code.history(0x1000).len(), 2);
        assert_eq!(code.history(0x1060).len(), 1);
    }

    /// A file may contain any bytes: valid lines are used, and one sentence reports the others.
    #[test]
    fn files_that_violate_the_format() {
        let cut = names(b"1000 10 whole\n2000 10 cu", &[0x1000, 0x2000]);
        assert_eq!(cut.0, ["whole", ""]);
        assert!(cut.1.unwrap().starts_with("ends within a line"));
        let mut binary = b"1000 10 whole\n\x00\xff\xfe\n-1 10 sign\n1 ffffffffffffffff all\n5 0 none\n9 10\n".to_vec();
        let (found, problem) = names(&binary, &[0x1000, 2, 0]);
        assert_eq!(found, ["whole", "", ""]);
        assert_eq!(problem.unwrap(), "has 5 of 6 lines that describe no function");
        binary.splice(0..0, vec![b'x'; 3 * LINE_BYTES_MAX as usize]);
        assert_eq!(names(&binary, &[0x1000]).0, [""], "a line of 192 KiB");
        let many: String = (0..10_000).map(|index| format!("1000 ffff {index}\n")).collect();
        assert_eq!(names(many.as_bytes(), &[0x1000, 0x1fff]).0, ["9999", "9999"]);
        let long = format!("1000 10 {}\n2000 10 after\n", "y".repeat(100_000));
        let (found, problem) = names(long.as_bytes(), &[0x1000, 0x2000]);
        assert_eq!((found[0].len(), found[1].as_str(), problem), (4096, "after", None));
    }
}
