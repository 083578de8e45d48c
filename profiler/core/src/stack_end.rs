//! Why a stack has no more callers, as it was unwound.

/// Why unwinding stopped.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum StackEnd {
    /// At the start of the thread: the stack is whole.
    #[default]
    Complete,
    /// The copied part of the stack was used up.
    CopyEnded,
    /// At the limit of depth.
    TooDeep,
    /// No unwind information and no plausible frame pointer at this address.
    NoUnwindInfo,
    /// An address could not be read, or is outside of every known image.
    BadAddress,
    /// The code is not 64-bit, and is not unwound.
    NotLongMode,
    /// The unwind tables have a rule for this address that leads nowhere: it needs a register that is not known, or is damaged.
    RuleFailed,
    /// The function runs on another stack than its callers, which was not copied.
    OtherStack,
}

impl StackEnd {
    /// All of them.
    pub const ALL: [StackEnd; StackEnd::OtherStack as usize + 1] = [
        StackEnd::Complete,
        StackEnd::CopyEnded,
        StackEnd::TooDeep,
        StackEnd::NoUnwindInfo,
        StackEnd::BadAddress,
        StackEnd::NotLongMode,
        StackEnd::RuleFailed,
        StackEnd::OtherStack,
    ];
}
