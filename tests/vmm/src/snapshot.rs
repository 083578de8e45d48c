//! Runs on what another VMM had: its RAM, and the registers of its vCPU in long mode.

use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::FileExt;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use kvm_bindings::{kvm_dtable, kvm_regs, kvm_segment};
use kvm_ioctls::VcpuFd;
use vm_memory::{Bytes, GuestAddress, GuestMemoryMmap};

const CHUNK_BYTES: usize = 1 << 20;
/// CR4: page tables of three levels and more, global pages, SSE.
const CR4_KEPT: u64 = 1 << 5 | 1 << 7 | 1 << 9 | 1 << 10;
/// CR3: the address of the page tables.
const TABLES: u64 = 0x000f_ffff_ffff_f000;

/// Copies RAM from a file, whose first byte is at the physical address 0. What is zero in it is left as it is.
pub fn load(file: &Path, memory: &GuestMemoryMmap) -> Result<()> {
    let file = fs::File::open(file).with_context(|| format!("cannot read {}", file.display()))?;
    let mut chunk = vec![0; CHUNK_BYTES];
    let mut at = 0;
    loop {
        let read = match file.read_at(&mut chunk, at) {
            Ok(0) => return Ok(()),
            Ok(read) => read,
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(error) => return Err(error).context("the RAM cannot be read"),
        };
        if chunk[..read].iter().any(|byte| *byte != 0) {
            memory.write_slice(&chunk[..read], GuestAddress(at)).context("the VM has not so much RAM")?;
        }
        at += read as u64;
    }
}

/// The registers of a file: lines of a name and a hexadecimal number.
pub struct Registers(BTreeMap<String, u64>);

impl Registers {
    pub fn read(file: &Path) -> Result<Registers> {
        let text = fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
        let parse = |line: &str| {
            let (name, value) = line.split_once(' ').with_context(|| format!("{line:?} is no register"))?;
            let value = u64::from_str_radix(value, 16).with_context(|| format!("{line:?} has no number"))?;
            Ok((name.to_owned(), value))
        };
        Ok(Registers(text.lines().map(parse).collect::<Result<_>>()?))
    }

    fn get(&self, name: &str) -> Result<u64> {
        self.0.get(name).copied().with_context(|| format!("the register {name} is missing"))
    }

    /// Gives them to a vCPU, which continues with the privileges of the code that ran.
    pub fn enter(&self, vcpu: &VcpuFd) -> Result<()> {
        let privilege = self.get("cpl")? as u8;
        ensure!(privilege == 0 || privilege == 3, "there is no code of ring {privilege}");
        let mut system = vcpu.get_sregs()?;
        let usual = kvm_segment { limit: 0xffff_ffff, present: 1, s: 1, g: 1, dpl: privilege, ..Default::default() };
        let data = kvm_segment { selector: self.get("ss")? as u16, type_: 3, db: 1, ..usual };
        system.cs = kvm_segment { selector: self.get("cs")? as u16, type_: 11, l: 1, ..usual };
        system.ss = data;
        let none = kvm_segment { unusable: 1, ..Default::default() };
        (system.ds, system.es, system.ldt) = (none, none, none);
        system.fs = kvm_segment { base: self.get("fs_base")?, ..data };
        system.gs = kvm_segment { base: self.get("gs_base")?, ..data };
        system.tr = kvm_segment {
            base: self.get("tr_base")?,
            limit: 0x206f,
            selector: 0x40,
            type_: 11,
            present: 1,
            ..Default::default()
        };
        let table = |base: u64, limit: u16| kvm_dtable { base, limit, padding: [0; 3] };
        system.gdt = table(self.get("gdt_base")?, 0x7f);
        system.idt = table(self.get("idt_base")?, 0xfff);
        (system.cr0, system.cr2) = (self.get("cr0")?, 0);
        (system.cr3, system.cr4) = (self.get("cr3")? & TABLES, self.get("cr4")? & CR4_KEPT);
        system.efer = self.get("efer")?;
        vcpu.set_sregs(&system).context("the system registers are refused")?;
        let registers = kvm_regs {
            rax: self.get("rax")?,
            rbx: self.get("rbx")?,
            rcx: self.get("rcx")?,
            rdx: self.get("rdx")?,
            rsi: self.get("rsi")?,
            rdi: self.get("rdi")?,
            rsp: self.get("rsp")?,
            rbp: self.get("rbp")?,
            r8: self.get("r8")?,
            r9: self.get("r9")?,
            r10: self.get("r10")?,
            r11: self.get("r11")?,
            r12: self.get("r12")?,
            r13: self.get("r13")?,
            r14: self.get("r14")?,
            r15: self.get("r15")?,
            rip: self.get("rip")?,
            rflags: self.get("rflags")?,
        };
        vcpu.set_regs(&registers).context("the registers are refused")
    }
}
