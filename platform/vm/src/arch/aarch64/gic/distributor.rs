//! The registers by which an interrupt is enabled: in the distributor for those that all cores share, in each redistributor for a core's own.
//! (GIC architecture specification, sections 4.3 and 12.9.)

/// Offsets.
mod register {
    pub const GROUPS: u64 = 0x080;
    pub const ENABLE: u64 = 0x100;
    pub const DISABLE: u64 = 0x180;
    pub const CLEAR_PENDING: u64 = 0x280;
    pub const PRIORITIES: u64 = 0x400;
    pub const CONFIGURATION: u64 = 0xc00;
}

/// Registers for 32 interrupts and more, which are mapped.
#[derive(Debug, Clone, Copy)]
pub struct Bank(u64);

impl Bank {
    /// The registers at `address`.
    ///
    /// # Safety
    /// They are a distributor's or a redistributor's, and stay mapped.
    pub unsafe fn new(address: u64) -> Bank {
        Bank(address)
    }

    pub fn read(self, offset: u64) -> u32 {
        // SAFETY: `new` has promised the registers, which touch no memory.
        unsafe { ((self.0 + offset) as *const u32).read_volatile() }
    }

    pub fn write(self, offset: u64, value: u32) {
        // SAFETY: as for `read`; interrupts are taken only by a crash, whatever is enabled.
        unsafe { ((self.0 + offset) as *mut u32).write_volatile(value) }
    }

    pub fn write_u8(self, offset: u64, value: u8) {
        // SAFETY: as for `write`.
        unsafe { ((self.0 + offset) as *mut u8).write_volatile(value) }
    }

    pub fn read_u64(self, offset: u64) -> u64 {
        // SAFETY: as for `read`.
        unsafe { ((self.0 + offset) as *const u64).read_volatile() }
    }

    /// The registers so many bytes before these.
    pub fn before(self, bytes: u64) -> Bank {
        Bank(self.0 - bytes)
    }

    /// Where the registers are.
    pub fn address(self) -> u64 {
        self.0
    }

    pub fn write_u64(self, offset: u64, value: u64) {
        // SAFETY: as for `write`.
        unsafe { ((self.0 + offset) as *mut u64).write_volatile(value) }
    }

    /// Sets bit `interrupt` of those from `offset` on, and leaves the others as they are.
    fn set(self, offset: u64, interrupt: u32) {
        let register = offset + u64::from(interrupt / 32) * 4;
        self.write(register, self.read(register) | 1 << (interrupt % 32));
    }

    pub fn set_group_1(self, interrupt: u32) {
        self.set(register::GROUPS, interrupt);
    }

    pub fn set_priority(self, interrupt: u32, priority: u8) {
        self.write_u8(register::PRIORITIES + u64::from(interrupt), priority);
    }

    /// The interrupt is pending when its line rises, or as long as it is up.
    pub fn set_edge(self, interrupt: u32, is_edge: bool) {
        let register = register::CONFIGURATION + u64::from(interrupt / 16) * 4;
        let bit = 2 << (interrupt % 16 * 2);
        let others = self.read(register) & !bit;
        self.write(register, if is_edge { others | bit } else { others });
    }

    pub fn enable(self, interrupt: u32) {
        self.write(register::ENABLE + u64::from(interrupt / 32) * 4, 1 << (interrupt % 32));
    }

    pub fn disable(self, interrupt: u32) {
        self.write(register::DISABLE + u64::from(interrupt / 32) * 4, 1 << (interrupt % 32));
        self.write(register::CLEAR_PENDING + u64::from(interrupt / 32) * 4, 1 << (interrupt % 32));
    }
}
