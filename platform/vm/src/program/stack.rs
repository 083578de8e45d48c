//! What a program finds on its stack when it starts: its arguments, its environment, and what the C library wants to know (System V ABI for
//! x86-64, section 3.4.1).

use alloc::string::String;
use alloc::vec::Vec;

/// Keys of the auxiliary vector.
mod key {
    pub const END: u64 = 0;
    pub const HEADERS: u64 = 3;
    pub const HEADER_BYTES: u64 = 4;
    pub const HEADERS_COUNT: u64 = 5;
    pub const PAGE_BYTES: u64 = 6;
    pub const ENTRY: u64 = 9;
    pub const IS_SECURE: u64 = 23;
    pub const RANDOM: u64 = 25;
}

/// What the stack is made of.
pub struct Start<'a> {
    pub arguments: &'a [String],
    pub environment: &'a [String],
    pub entry: u64,
    /// Address and number of the segments' headers.
    pub headers: (u64, u64),
    pub random: [u8; 16],
}

impl Start<'_> {
    /// The content of the end of a stack that ends at address `end`, and the address at which it starts, which is the stack pointer.
    pub fn lay_out(&self, end: u64) -> (u64, Vec<u8>) {
        let mut text = Vec::new();
        let mut put = |bytes: &[u8]| {
            let offset = text.len() as u64;
            text.extend_from_slice(bytes);
            text.push(0);
            offset
        };
        let arguments: Vec<u64> = self.arguments.iter().map(|word| put(word.as_bytes())).collect();
        let environment: Vec<u64> = self.environment.iter().map(|word| put(word.as_bytes())).collect();
        let random = put(&self.random);
        let text_start = (end & !15) - (text.len() as u64).next_multiple_of(16);
        let mut words = Vec::from([arguments.len() as u64]);
        words.extend(arguments.iter().map(|offset| text_start + offset));
        words.push(0);
        words.extend(environment.iter().map(|offset| text_start + offset));
        words.push(0);
        let pairs = [
            (key::HEADERS, self.headers.0),
            (key::HEADER_BYTES, 56),
            (key::HEADERS_COUNT, self.headers.1),
            (key::PAGE_BYTES, crate::paging::PAGE_BYTES),
            (key::ENTRY, self.entry),
            (key::IS_SECURE, 0),
            (key::RANDOM, text_start + random),
            (key::END, 0),
        ];
        words.extend(pairs.into_iter().flat_map(|(key, value)| [key, value]));
        // The stack pointer is a multiple of 16.
        if words.len() % 2 == 1 {
            words.push(0);
        }
        let start = text_start - words.len() as u64 * 8;
        let mut content: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        content.append(&mut text);
        (start, content)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    #[test]
    fn a_program_finds_its_arguments() {
        for count in 1..4 {
            let arguments: Vec<String> = ["program", "-i", "x y"].iter().take(count).map(ToString::to_string).collect();
            let environment = ["A=1".to_string()];
            let start = Start {
                arguments: &arguments,
                environment: &environment,
                entry: 0x77,
                headers: (0x40, 8),
                random: [9; 16],
            };
            let end = 0x10_0000;
            let (pointer, content) = start.lay_out(end);
            assert!(pointer.is_multiple_of(16) && pointer + content.len() as u64 <= end);
            let word = |index: usize| u64::from_le_bytes(content[index * 8..index * 8 + 8].try_into().unwrap());
            let text = |address: u64| {
                let bytes = &content[(address - pointer) as usize..];
                core::str::from_utf8(&bytes[..bytes.iter().position(|byte| *byte == 0).unwrap()]).unwrap()
            };
            assert_eq!(word(0), count as u64);
            let found: Vec<&str> = (0..count).map(|index| text(word(1 + index))).collect();
            assert_eq!(found, arguments);
            assert_eq!((word(1 + count), text(word(2 + count)), word(3 + count)), (0, "A=1", 0));
            let pairs: Vec<(u64, u64)> =
                (0..8).map(|pair| (word(4 + count + 2 * pair), word(5 + count + 2 * pair))).collect();
            assert_eq!(pairs[0], (3, 0x40));
            assert_eq!((pairs[4], pairs[7]), ((9, 0x77), (0, 0)));
            assert_eq!(content[(pairs[6].1 - pointer) as usize], 9);
        }
    }
}
