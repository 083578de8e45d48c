//! The place of each register in the answer to `g`: QEMU describes it in XML, which it requires a client to read
//! before it answers all requests.

use std::borrow::Cow;

use super::stub::Stub;
use crate::arch::gdb::Layout;
use crate::error::GuestError;

/// The longest description, in bytes.
const DESCRIPTION_BYTES_MAX: usize = 1 << 20;
/// The most parts in which a file is requested; QEMU sends 2 KiB at a time.
const PARTS_MAX: usize = 1024;
/// The most files of one description.
const FILES_MAX: usize = 16;

fn read_file(stub: &mut Stub, name: &str) -> Result<String, GuestError> {
    let mut text = String::new();
    for _ in 0..PARTS_MAX {
        if text.len() >= DESCRIPTION_BYTES_MAX {
            break;
        }
        let answers = stub.ask(&[format!("qXfer:features:read:{name}:{:x},7f0", text.len())])?;
        let answer = answers.first().map_or(Cow::Borrowed(""), |answer| String::from_utf8_lossy(answer));
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

/// Reads the description, while the VM is held, and finds the registers in it.
pub(super) fn read_layout(stub: &mut Stub) -> Result<Layout, GuestError> {
    let target = read_file(stub, "target.xml")?;
    let target = without_comments(&target);
    let mut registers = registers_of(&target);
    let files: Vec<String> =
        tags(&target, "xi:include").filter_map(|tag| Some(attribute(tag, "href")?.to_owned())).collect();
    for file in files.into_iter().take(FILES_MAX) {
        registers.extend(registers_of(&without_comments(&read_file(stub, &file)?)));
    }
    Layout::of(&registers).ok_or_else(|| {
        GuestError::Protocol("its guest is neither x86-64 nor AArch64, or it does not send CR3 or TTBR0_EL1".to_owned())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use glass_profiler_core::arch::Width;
    use glass_profiler_core::arch::x86_64::Registers;
    use glass_profiler_core::arch::x86_64::paging::Paging;

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
        let mut digits = String::new();
        for (index, (_, bytes)) in registers_of(&without_comments(XML)).iter().enumerate() {
            digits += &format!("{:02x}", index + 1);
            digits += &"00".repeat(bytes - 1);
        }
        // Each register's lowest byte is its place in the description.
        let core = layout.registers(digits.as_bytes()).unwrap();
        assert_eq!(core.registers, Registers::new(4, 2, 1).into());
        assert_eq!(core.paging, Paging { cr0: 5, cr3: 6, cr4: 7, efer: None }.into());
        assert_eq!((core.width, core.is_privileged), (Width::Bits32, false));
        // CR0 without protection: real mode.
        let real = digits.replace("0500000000000000", "0400000000000000");
        let core = layout.registers(real.as_bytes()).unwrap();
        assert_eq!(core.registers, Registers::new(0x34, 2, 1).into());
        assert_eq!((core.width, core.is_privileged, core.is_at_reset), (Width::Bits16, true, false));
        // One that waits to be started: this selector and this instruction pointer.
        let waits = |selector: &str, rip: &str| {
            let digits = real.replace("03000000", selector).replacen("0400000000000000", rip, 1);
            layout.registers(digits.as_bytes()).unwrap().is_at_reset
        };
        assert!(waits("00f00000", "f0ff000000000000"));
        assert!(!waits("00f00000", "f1ff000000000000") && !waits("00000000", "f0ff000000000000"));
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
