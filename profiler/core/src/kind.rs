//! What an entry of a report is: code, or one of the report's own.

use crate::stack_end::StackEnd;
use crate::state::State;

/// What an entry of [`Tree::functions`](crate::tree::Tree::functions) stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    /// Everything.
    Root,
    /// Code that was recorded.
    Function,
    /// The parent of stacks that do not reach their thread's start.
    Broken(Broken),
    /// The parent of samples in a state in which no code ran. In a tree by line also of those in [`State::InVmm`], so that a page can
    /// distinguish them.
    In(State),
    /// In a view of the host only: a sample of a vCPU without segments of the host.
    Guest,
    /// Nodes that were too small to keep apart.
    Merged,
}

/// Why a stack has no more callers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Broken {
    /// [`StackEnd::CopyEnded`].
    CopyEnded,
    /// [`StackEnd::TooDeep`].
    TooDeep,
    /// [`StackEnd::NoUnwindInfo`].
    NoUnwindInfo,
    /// [`StackEnd::BadAddress`].
    BadAddress,
    /// [`StackEnd::NotLongMode`].
    NotLongMode,
    /// [`StackEnd::RuleFailed`].
    RuleFailed,
    /// [`StackEnd::OtherStack`].
    OtherStack,
    /// The track was running, but no function is known.
    NoFrames,
    /// The sample names a stack, or the stack a frame, that the recording does not hold.
    Missing,
}

impl Broken {
    /// All of them.
    pub const ALL: [Broken; Broken::Missing as usize + 1] = [
        Broken::CopyEnded,
        Broken::TooDeep,
        Broken::NoUnwindInfo,
        Broken::BadAddress,
        Broken::NotLongMode,
        Broken::RuleFailed,
        Broken::OtherStack,
        Broken::NoFrames,
        Broken::Missing,
    ];

    /// Why a stack with this end is broken; `None` if it is whole.
    pub fn of(end: StackEnd) -> Option<Broken> {
        match end {
            StackEnd::Complete => None,
            StackEnd::CopyEnded => Some(Broken::CopyEnded),
            StackEnd::TooDeep => Some(Broken::TooDeep),
            StackEnd::NoUnwindInfo => Some(Broken::NoUnwindInfo),
            StackEnd::BadAddress => Some(Broken::BadAddress),
            StackEnd::NotLongMode => Some(Broken::NotLongMode),
            StackEnd::RuleFailed => Some(Broken::RuleFailed),
            StackEnd::OtherStack => Some(Broken::OtherStack),
        }
    }

    fn reason(self) -> &'static str {
        match self {
            Broken::CopyEnded => "the copied part was used up",
            Broken::TooDeep => "too deep",
            Broken::NoUnwindInfo => "no unwind data: callers are missing",
            Broken::BadAddress => "bad address",
            Broken::NotLongMode => "not in 64-bit mode",
            Broken::RuleFailed => "an unwind rule has no result",
            Broken::OtherStack => "the callers are on another stack",
            Broken::NoFrames => "no frames",
            Broken::Missing => "missing from the recording",
        }
    }
}

impl Kind {
    /// The parents that a stack may have although no code was recorded for them, in the order of their numbers in reports.
    pub fn parents() -> impl Iterator<Item = Kind> {
        let states = State::ALL.into_iter().filter(|state| *state != State::Running);
        Broken::ALL.into_iter().map(Kind::Broken).chain(states.map(Kind::In))
    }

    /// What the report calls an entry of its own; empty for code.
    pub fn label(self) -> String {
        match self {
            Kind::Root => "all".to_string(),
            Kind::Function => String::new(),
            Kind::Broken(broken) => format!("[broken stack: {}]", broken.reason()),
            Kind::In(state) => format!("[{}]", state.word()),
            Kind::Guest => "[guest]".to_string(),
            Kind::Merged => "[small nodes, merged]".to_string(),
        }
    }
}
