//! Jitdump: a binary file with a record for each function that a process generated, moved or replaced, and the
//! time of it (`tools/perf/Documentation/jitdump-specification.txt` of Linux).

use std::collections::HashMap;
use std::io::{self, BufRead, BufReader, Read};

use super::code::{JitCode, JitLine};
use crate::budget::Account;

const MAGIC: u32 = 0x4a69_5444;
const VERSION: u32 = 1;
const X86_64: u32 = 62;
/// The times of its records are those of the CPU's counter.
const TIMES_ARE_TICKS: u64 = 1;
const HEADER_BYTES: u64 = 40;
const RECORD_HEADER_BYTES: u64 = 16;

const LOAD: u32 = 0;
const MOVE: u32 = 1;
const DEBUG_INFO: u32 = 2;
const CLOSE: u32 = 3;

/// Bytes of a record before a function's name, and before its lines.
const LOAD_BYTES: usize = 40;
const DEBUG_INFO_BYTES: usize = 16;
const LINE_BYTES: usize = 16;
/// The largest part of a record that is kept: a name, or the lines of a function.
const BODY_BYTES_MAX: u64 = 16 << 20;
/// perf puts each function after an ELF header of this size, and some writers (V8) add it to the addresses of lines.
const ELF_HEADER_BYTES: u64 = 64;
/// Means that the file of a line is that of the line before.
const SAME_FILE: &[u8] = b"\xff";

/// Reads a dump to its end. The second result is a problem with it, as a phrase to follow its name.
pub(crate) fn read(input: &mut dyn Read, account: Account) -> (JitCode, Option<String>) {
    let mut dump = Dump {
        input: BufReader::new(input),
        offset: 0,
        are_times_ticks: false,
        code: JitCode::new(account),
        indices: HashMap::new(),
        lines: Vec::new(),
        foreign: 0,
    };
    let end = dump.read();
    let problem = match end {
        Err(problem) => Some(problem),
        Ok(()) if dump.foreign > 0 => Some(format!("has {} records that describe no function", dump.foreign)),
        Ok(()) if dump.code.is_full() => {
            Some("is larger than what can be kept: the functions at its end have no names".to_owned())
        }
        Ok(()) if dump.are_times_ticks => {
            Some("has times of another clock: where functions replaced each other the last one is shown".to_owned())
        }
        Ok(()) => None,
    };
    let mut code = dump.code;
    code.finish();
    (code, problem)
}

struct Dump<'a> {
    input: BufReader<&'a mut dyn Read>,
    /// Bytes read so far.
    offset: u64,
    are_times_ticks: bool,
    code: JitCode,
    /// Index of a function by its number in the file.
    indices: HashMap<u64, usize>,
    /// Lines of the next function to be loaded, and its address.
    lines: Vec<(u64, JitLine)>,
    /// Records that contradict themselves.
    foreign: u64,
}

/// A record's header.
struct Record {
    kind: u32,
    bytes: u64,
    time_ns: u64,
}

fn half(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn word(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

/// A text that ends with a zero, and the bytes after it.
fn text(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let end = bytes.iter().position(|byte| *byte == 0)?;
    Some((&bytes[..end], &bytes[end + 1..]))
}

impl Dump<'_> {
    fn read(&mut self) -> Result<(), String> {
        self.header()?;
        while let Some(record) = self.record()? {
            if !self.code.has_time_for(record.bytes as usize) {
                return Ok(());
            }
            let (kept, dropped) = match record.kind {
                LOAD | MOVE | DEBUG_INFO => {
                    (record.bytes.min(BODY_BYTES_MAX), record.bytes.saturating_sub(BODY_BYTES_MAX))
                }
                CLOSE => return Ok(()),
                // Unwind tables, and additions of later versions.
                _ => (0, record.bytes),
            };
            let body = self.bytes(kept)?;
            self.skip(dropped)?;
            let understood = match record.kind {
                LOAD => self.load(&record, &body),
                MOVE => self.moved(&record, &body),
                DEBUG_INFO => self.debug_info(&body),
                _ => Some(()),
            };
            self.foreign += u64::from(understood.is_none());
        }
        Ok(())
    }

    fn cut(&self) -> String {
        format!("ends within a record, at byte {}: functions that it does not have yet have no names", self.offset)
    }

    fn bytes(&mut self, count: u64) -> Result<Vec<u8>, String> {
        let mut bytes = Vec::new();
        let read = self.input.by_ref().take(count).read_to_end(&mut bytes).map_err(|error| failed(&error))?;
        if (read as u64) < count {
            return Err(self.cut());
        }
        self.offset += count;
        Ok(bytes)
    }

    fn skip(&mut self, count: u64) -> Result<(), String> {
        let skipped =
            io::copy(&mut self.input.by_ref().take(count), &mut io::sink()).map_err(|error| failed(&error))?;
        if skipped < count {
            return Err(self.cut());
        }
        self.offset += count;
        Ok(())
    }

    fn header(&mut self) -> Result<(), String> {
        let other = || "is no jitdump of x86-64".to_owned();
        let header = self.bytes(HEADER_BYTES).map_err(|_| other())?;
        let field = |index: usize| half(&header, index * 4).unwrap_or(0);
        let (magic, version, bytes, machine) = (field(0), field(1), u64::from(field(2)), field(3));
        if (magic, machine) != (MAGIC, X86_64) || bytes < HEADER_BYTES {
            return Err(other());
        }
        if version != VERSION {
            return Err(format!("has version {version} of the jitdump format, of which only {VERSION} is known"));
        }
        self.are_times_ticks = word(&header, 32).unwrap_or(0) & TIMES_ARE_TICKS != 0;
        self.skip(bytes - HEADER_BYTES)
    }

    /// The header of the next record; `None` at the end.
    fn record(&mut self) -> Result<Option<Record>, String> {
        if self.input.fill_buf().map_err(|error| failed(&error))?.is_empty() {
            return Ok(None);
        }
        let header = self.bytes(RECORD_HEADER_BYTES)?;
        let (kind, bytes) = (half(&header, 0).unwrap_or(0), half(&header, 4).unwrap_or(0));
        let Some(bytes) = u64::from(bytes).checked_sub(RECORD_HEADER_BYTES) else {
            return Err(format!("is damaged at byte {}: what follows has no names", self.offset));
        };
        // With times that cannot be compared only the order counts: all functions are loaded from the start on.
        let time_ns = if self.are_times_ticks { 0 } else { word(&header, 8).unwrap_or(0) };
        Ok(Some(Record { kind, bytes, time_ns }))
    }

    fn load(&mut self, record: &Record, body: &[u8]) -> Option<()> {
        let (start, bytes, number) = (word(body, 16)?, word(body, 24)?, word(body, 32)?);
        let (name, _code) = text(body.get(LOAD_BYTES..)?)?;
        let lines = std::mem::take(&mut self.lines);
        let mut lines: Vec<JitLine> = lines.into_iter().filter(|(of, _)| *of == start).map(|(_, line)| line).collect();
        if lines.iter().all(|line| line.address >= start.saturating_add(ELF_HEADER_BYTES)) {
            lines.iter_mut().for_each(|line| line.address -= ELF_HEADER_BYTES);
        }
        lines.sort_by_key(|line| line.address);
        let index = self.code.count();
        self.code.add(start, bytes, record.time_ns, &String::from_utf8_lossy(name), lines).then(|| {
            self.indices.insert(number, index);
        })
    }

    fn moved(&mut self, record: &Record, body: &[u8]) -> Option<()> {
        let (to, number) = (word(body, 24)?, word(body, 40)?);
        let index = self.indices.get(&number).copied()?;
        let next = self.code.count();
        self.code.move_function(index, to, record.time_ns);
        self.indices.insert(number, next);
        Some(())
    }

    /// The lines of the function that a later record loads.
    fn debug_info(&mut self, body: &[u8]) -> Option<()> {
        let (start, count) = (word(body, 0)?, word(body, 8)?);
        let mut rest = body.get(DEBUG_INFO_BYTES..)?;
        self.lines.clear();
        let mut file = None;
        for _ in 0..count {
            let (address, line) = (word(rest, 0)?, half(rest, 8)?);
            let (name, after) = text(rest.get(LINE_BYTES..)?)?;
            if name != SAME_FILE || file.is_none() {
                file = Some(self.code.file(&String::from_utf8_lossy(name)));
            }
            self.lines.push((start, JitLine { address, file: file.unwrap_or(0), line }));
            rest = after;
        }
        Some(())
    }
}

fn failed(error: &io::Error) -> String {
    format!("cannot be read to its end ({error})")
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Made(Vec<u8>);

    impl Made {
        fn new(flags: u64) -> Made {
            let mut bytes: Vec<u8> = [MAGIC, VERSION, HEADER_BYTES as u32, X86_64, 0, 7].map(u32::to_le_bytes).concat();
            bytes.extend([99, flags].map(u64::to_le_bytes).concat());
            Made(bytes)
        }

        fn record(mut self, kind: u32, time_ns: u64, body: &[u8]) -> Made {
            self.0.extend([kind, (RECORD_HEADER_BYTES as usize + body.len()) as u32].map(u32::to_le_bytes).concat());
            self.0.extend(time_ns.to_le_bytes());
            self.0.extend(body);
            self
        }

        fn load(self, time_ns: u64, start: u64, bytes: u64, number: u64, name: &str) -> Made {
            let words = [7 << 32 | 7, start, start, bytes, number].map(u64::to_le_bytes).concat();
            let code = vec![0x90; bytes.min(64) as usize];
            self.record(LOAD, time_ns, &[&words, name.as_bytes(), &[0], &code].concat())
        }

        fn moved(self, time_ns: u64, from: u64, to: u64, bytes: u64, number: u64) -> Made {
            self.record(MOVE, time_ns, &[7 << 32 | 7, from, from, to, bytes, number].map(u64::to_le_bytes).concat())
        }

        fn lines(self, start: u64, lines: &[(u64, u32, &str)]) -> Made {
            let mut body = [start, lines.len() as u64].map(u64::to_le_bytes).concat();
            for (address, line, file) in lines {
                body.extend([&address.to_le_bytes()[..], &line.to_le_bytes(), &[0; 4]].concat());
                // A single byte that is no text stands for the file of the line before.
                body.extend(if *file == "same" { SAME_FILE } else { file.as_bytes() });
                body.push(0);
            }
            self.record(DEBUG_INFO, 0, &body)
        }

        fn read(&self) -> (JitCode, Option<String>) {
            read(&mut &self.0[..], Account::alone())
        }
    }

    fn history(code: &JitCode, address: u64) -> Vec<(u64, String)> {
        let name = |locations: Vec<crate::symbols::Location>| {
            locations.first().map_or_else(String::new, |l| l.function.clone())
        };
        code.history(address).into_iter().map(|(from, locations)| (from, name(locations))).collect()
    }

    fn expect(code: &JitCode, address: u64, expected: &[(u64, &str)]) {
        let expected: Vec<_> = expected.iter().map(|(from, name)| (*from, (*name).to_owned())).collect();
        assert_eq!(history(code, address), expected, "{address:#x}");
    }

    #[test]
    fn functions_that_replace_each_other_and_move() {
        let made = Made::new(0)
            .load(100, 0x1000, 0x40, 0, "first")
            .load(200, 0x1000, 0x20, 1, "second")
            .record(4, 250, &[0; 24])
            .moved(300, 0x1000, 0x3000, 0x20, 1)
            .load(400, 0x1000, 0x10, 2, "third")
            .record(CLOSE, 500, &[])
            .load(600, 0x5000, 0x10, 3, "after the end");
        let (code, problem) = made.read();
        assert_eq!(problem, None);
        expect(&code, 0x1000, &[(100, "first"), (200, "second"), (300, ""), (400, "third")]);
        expect(&code, 0x1018, &[(100, "first"), (200, "second"), (300, "")]);
        expect(&code, 0x1030, &[(100, "first")]);
        expect(&code, 0x3010, &[(300, "second")]);
        expect(&code, 0x5000, &[]);
        assert_eq!(code.last(0x1008)[0].function, "third");
    }

    #[test]
    fn lines_of_source() {
        let lines = [(0x1000, 3, "a.js"), (0x1010, 4, "same"), (0x1020, 9, "b.js")];
        let with_header = lines.map(|(address, line, file)| (address + ELF_HEADER_BYTES, line, file));
        for lines in [lines, with_header] {
            let (code, problem) = Made::new(0).lines(0x1000, &lines).load(1, 0x1000, 0x40, 0, "f").read();
            assert_eq!(problem, None);
            let place =
                |address| code.last(address).pop().map(|location| (location.file.unwrap(), location.line.unwrap()));
            assert_eq!(place(0x100f), Some(("a.js".to_owned(), 3)));
            assert_eq!(place(0x1010), Some(("a.js".to_owned(), 4)));
            assert_eq!(place(0x103f), Some(("b.js".to_owned(), 9)));
        }
        // Those of another function are not used.
        let (code, _) = Made::new(0).lines(0x1000, &lines).load(1, 0x2000, 0x40, 0, "g").read();
        assert_eq!(code.last(0x2000)[0].line, None);
    }

    #[test]
    fn without_comparable_times_the_last_function_wins() {
        let (code, problem) = Made::new(1).load(5, 0x1000, 8, 0, "old").load(6, 0x1000, 8, 1, "new").read();
        assert!(problem.unwrap().starts_with("has times of another clock"));
        assert_eq!(code.last(0x1000)[0].function, "new");
    }

    /// Any bytes give what is whole of them, and one sentence.
    #[test]
    fn files_that_violate_the_format() {
        let whole = Made::new(0).load(1, 0x1000, 8, 0, "whole");
        let first_bytes = whole.0.len();
        let made = whole.lines(0x2000, &[(0x2000, 3, "a.js")]).moved(2, 0x1000, 0x2000, 8, 0);
        for bytes in 0..made.0.len() {
            let (code, problem) = read(&mut &made.0[..bytes], Account::alone());
            assert_eq!(code.last(0x1000).len(), usize::from(bytes >= first_bytes), "{bytes}");
            let is_at_end =
                bytes == HEADER_BYTES as usize || bytes == first_bytes || bytes == first_bytes + 16 + 16 + 16 + 5;
            assert_eq!(problem.is_none(), is_at_end, "{bytes}: {problem:?}");
        }
        for (wrong, why) in [
            (Made::new(0).record(LOAD, 1, &[0; 8]), "has 1 records that describe no function"),
            (Made::new(0).load(1, u64::MAX, 8, 0, "beyond"), "has 1 records"),
            (Made::new(0).load(1, 0x1000, 1 << 40, 0, "all"), "has 1 records"),
            (Made::new(0).moved(1, 0, 0, 0, 9), "has 1 records"),
            (Made(b"\x7fELF".repeat(20)), "is no jitdump"),
        ] {
            let (code, problem) = wrong.read();
            assert!(problem.as_deref().is_some_and(|problem| problem.starts_with(why)), "{problem:?}");
            assert!(code.last(0x1000).is_empty());
        }
        let mut damaged = Made::new(0).load(1, 0x1000, 8, 0, "whole");
        damaged.0.extend([[0xff; 4], [3, 0, 0, 0]].concat());
        damaged.0.extend([0; 8]);
        assert!(damaged.read().1.unwrap().starts_with("is damaged at byte"));
    }
}
