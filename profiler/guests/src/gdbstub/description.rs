//! Where each register is in the answer to `g`: QEMU describes it in XML, which must be read once
//! before it answers all requests anyway.

use glass_profile::event::Registers;

use super::client::{Client, hex_byte};
use crate::error::GuestError;
use crate::memory::Paging;
use crate::vm::CoreRegisters;

/// The longest description, in bytes.
const DESCRIPTION_BYTES_MAX: usize = 1 << 20;
/// The most parts in which a file is asked for; QEMU sends 2 KiB at a time.
const PARTS_MAX: usize = 1024;
/// The most files of one description.
const FILES_MAX: usize = 16;

/// Offsets of registers in bytes. Each is 8 bytes long, but `cs`, which has 4.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Layout {
    rip: usize,
    rsp: usize,
    rbp: usize,
    cs: usize,
    cr0: usize,
    cr3: usize,
    cr4: usize,
    /// Old versions of QEMU do not send it.
    efer: Option<usize>,
}

fn read_file(client: &mut Client, name: &str) -> Result<String, GuestError> {
    let mut text = String::new();
    for _ in 0..PARTS_MAX {
        if text.len() >= DESCRIPTION_BYTES_MAX {
            break;
        }
        let answer = client.ask(&format!("qXfer:features:read:{name}:{:x},7f0", text.len()))?;
        match answer.split_at_checked(1) {
            Some(("l", rest)) => {
                text.push_str(rest);
                return Ok(text);
            }
            Some(("m", rest)) if !rest.is_empty() => text.push_str(rest),
            _ => return Err(GuestError::Protocol(format!("does not describe its registers ({name})"))),
        }
    }
    Err(GuestError::Protocol("describes its registers at endless length".to_owned()))
}

/// The value of an attribute in a tag.
fn attribute<'a>(tag: &'a str, name: &str) -> Option<&'a str> {
    let start = tag.find(&format!("{name}=\""))? + name.len() + 2;
    tag[start..].split('"').next()
}

/// The description without its comments: QEMU has commented out registers that it does not send.
fn without_comments(xml: &str) -> String {
    let mut parts = xml.split("<!--");
    let mut kept = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        kept.push_str(part.split_once("-->").map_or("", |(_, after)| after));
    }
    kept
}

/// The tags `<name ...` of a description, without their brackets.
fn tags<'a>(xml: &'a str, name: &'a str) -> impl Iterator<Item = &'a str> {
    xml.split('<').filter_map(move |part| {
        let tag = part.split('>').next()?;
        let rest = tag.strip_prefix(name)?;
        rest.starts_with(char::is_whitespace).then_some(rest)
    })
}

/// Names and sizes in bytes, in the order of the `g` packet.
fn registers_of(xml: &str) -> Vec<(String, usize)> {
    let register = |tag: &str| {
        let bits: usize = attribute(tag, "bitsize")?.parse().ok()?;
        Some((attribute(tag, "name")?.to_owned(), bits.min(1 << 16).div_ceil(8)))
    };
    tags(xml, "reg").filter_map(register).collect()
}

impl Layout {
    pub(super) fn read(client: &mut Client) -> Result<Layout, GuestError> {
        let target = read_file(client, "target.xml")?;
        let target = without_comments(&target);
        let mut registers = registers_of(&target);
        let files: Vec<String> =
            tags(&target, "xi:include").filter_map(|tag| Some(attribute(tag, "href")?.to_owned())).collect();
        for file in files.into_iter().take(FILES_MAX) {
            registers.extend(registers_of(&without_comments(&read_file(client, &file)?)));
        }
        Layout::of(&registers)
            .ok_or_else(|| GuestError::Protocol("its guest is no x86-64 machine, or it does not tell CR3".to_owned()))
    }

    fn of(registers: &[(String, usize)]) -> Option<Layout> {
        let offset_of = |name: &str, size: usize| {
            let index = registers.iter().position(|(known, bytes)| known == name && *bytes == size)?;
            Some(registers[..index].iter().map(|(_, bytes)| bytes).sum())
        };
        let offset = |name| offset_of(name, 8);
        Some(Layout {
            rip: offset("rip")?,
            rsp: offset("rsp")?,
            rbp: offset("rbp")?,
            cs: offset_of("cs", 4)?,
            cr0: offset("cr0")?,
            cr3: offset("cr3")?,
            cr4: offset("cr4")?,
            efer: offset("efer"),
        })
    }

    /// Takes the registers out of the digits of a `g` packet; `None` if one is missing.
    pub(super) fn registers(&self, digits: &[u8]) -> Option<CoreRegisters> {
        let value = |offset: usize, bytes: usize| {
            let mut value = 0u64;
            for (index, pair) in digits.get(offset * 2..(offset + bytes) * 2)?.chunks_exact(2).enumerate() {
                value |= u64::from(hex_byte(pair[0], pair[1])?) << (8 * index);
            }
            Some(value)
        };
        let word = |offset| value(offset, 8);
        let registers = Registers { rip: word(self.rip)?, rsp: word(self.rsp)?, rbp: word(self.rbp)? };
        let paging = Paging { cr0: word(self.cr0)?, cr3: word(self.cr3)?, cr4: word(self.cr4)?, efer: None };
        let code = value(self.cs, 4)?;
        // In real mode a selector tells its segment's base. QEMU does not name that of the stack in all versions, and
        // nothing in real mode can be unwound.
        let is_real = paging.cr0 & CR0_PROTECTION == 0;
        let registers = if is_real { registers.in_segments(code << 4, 0) } else { registers };
        let ring = if is_real { 0 } else { (code & 3) as u8 };
        Some(CoreRegisters { registers, paging, ring })
    }
}

/// The bit of CR0 that says that the core is in protected mode.
const CR0_PROTECTION: u64 = 1;

#[cfg(test)]
mod tests {
    use super::*;

    const XML: &str = r#"<?xml version="1.0"?><!DOCTYPE feature SYSTEM "gdb-target.dtd">
        <feature name="x"><flags id="f" size="4"><field name="" start="22" end="22"/></flags>
        <reg name="rbp" bitsize="64" type="data_ptr"/><reg name="rsp" bitsize="64"/>
        <reg name="cs" bitsize="32"/>
        <!-- <reg name="ss_base" bitsize="64"/>
        <reg name="ds_base" bitsize="64"/>--><reg name="rip" bitsize="64"/>
        <reg name="cr0" bitsize="64"/><reg name="cr3" bitsize="64"/><reg name="cr4" bitsize="64"/></feature>"#;

    #[test]
    fn offsets_follow_the_sizes() {
        let layout = Layout::of(&registers_of(&without_comments(XML))).unwrap();
        assert_eq!((layout.rbp, layout.rsp, layout.rip, layout.cr3), (0, 8, 20, 36));
        let mut digits = String::new();
        for (index, (_, bytes)) in registers_of(&without_comments(XML)).iter().enumerate() {
            digits += &format!("{:02x}", index + 1);
            digits += &"00".repeat(bytes - 1);
        }
        let core = layout.registers(digits.as_bytes()).unwrap();
        assert_eq!(core.registers, Registers { rbp: 1, rsp: 2, rip: 4 });
        assert_eq!(core.paging, Paging { cr0: 5, cr3: 6, cr4: 7, efer: None });
        assert_eq!(core.ring, 3);
        // CR0 without protection: real mode.
        let real = digits.replace("0500000000000000", "0400000000000000");
        assert_eq!(layout.registers(real.as_bytes()).unwrap().registers, Registers { rbp: 1, rsp: 2, rip: 0x34 });
        assert_eq!(layout.registers(&digits.as_bytes()[..digits.len() - 1]), None);
        assert_eq!(layout.registers(digits.replace('1', "x").as_bytes()), None);
    }

    #[test]
    fn a_machine_without_these_registers() {
        assert_eq!(Layout::of(&registers_of(&without_comments(XML).replace("cr3", "cr9"))), None);
        assert_eq!(Layout::of(&registers_of(&without_comments(XML).replace("64", "32"))), None);
        assert_eq!(Layout::of(&registers_of(&without_comments("<!--<reg name=<<\"rip"))), None);
    }
}
