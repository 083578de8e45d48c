//! The gdb protocol for tests, client and server.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use glass_profiler_core::arch::x86_64::Registers;

/// A packet with its checksum.
pub fn packet(body: &str) -> String {
    let sum = body.bytes().fold(0u8, |sum, byte| sum.wrapping_add(byte));
    format!("${body}#{sum:02x}")
}

/// A debugger of a guest, which stops when it connects.
pub struct Gdb(UnixStream);

impl Gdb {
    pub fn connect(path: &Path) -> Gdb {
        let stream = UnixStream::connect(path).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        Gdb(stream)
    }

    /// Does as gdb does: uses the multiprocess mode, reads, and resumes the guest.
    pub fn visit(&mut self) {
        self.ask("qSupported:multiprocess+");
        self.registers();
        assert_eq!(self.ask("D;1"), "OK");
    }

    fn ask(&mut self, body: &str) -> String {
        self.0.write_all(format!("+{}", packet(body)).as_bytes()).unwrap();
        let answer = self.receive();
        // The report of the stop may arrive at any moment.
        if answer.starts_with('T') { self.receive() } else { answer }
    }

    fn receive(&mut self) -> String {
        let mut text = String::new();
        let mut byte = [0];
        while !text.contains('#') {
            self.0.read_exact(&mut byte).unwrap();
            if byte[0] == b'$' || !text.is_empty() {
                text.push(char::from(byte[0]));
            }
        }
        self.0.read_exact(&mut [0; 2]).unwrap();
        self.0.write_all(b"+").unwrap();
        text.trim_matches(['$', '#']).to_owned()
    }

    /// In the order of QEMU's x86-64: rax, rbx, rcx, rdx, rsi, rdi, rbp, rsp, r8 to r15, rip.
    pub fn registers(&mut self) -> Registers {
        let digits = self.ask("g");
        let word = |index: usize| {
            let bytes = (0..8).rev().map(|byte| &digits[index * 16 + byte * 2..][..2]).collect::<String>();
            u64::from_str_radix(&bytes, 16).unwrap()
        };
        let mut general = [0; 16];
        for (index, number) in [0, 3, 2, 1, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15].into_iter().enumerate() {
            general[number] = word(index);
        }
        Registers::of_all(word(16), general)
    }

    pub fn memory(&mut self, address: u64, bytes: usize) -> Vec<u8> {
        let digits = self.ask(&format!("m{address:x},{bytes:x}"));
        let pairs = digits.as_bytes().chunks_exact(2);
        let bytes = pairs.map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap());
        bytes.collect()
    }
}
