//! The views of host and guest, and whose code a frame is.

use crate::guest::Mode;

/// What of host and guest is shown.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum View {
    /// Guest only: stacks without segments of the host; the host's tracks are listed, and their samples do not count.
    #[default]
    Guest,
    /// Host only: stacks without segments of the guest. A sample of a vCPU that has no others is `[guest]`.
    Host,
    /// Merged: the frames of the VMM follow the guest's function that caused the exit, and those of the host's kernel follow the VMM's.
    Merged,
}

impl View {
    /// All of them.
    pub const ALL: [View; 3] = [View::Guest, View::Host, View::Merged];

    /// Its name on command lines and in pages.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            View::Guest => "guest",
            View::Host => "host",
            View::Merged => "merged",
        }
    }

    /// What it shows, in a sentence.
    #[must_use]
    pub fn sentence(self) -> &'static str {
        match self {
            View::Guest => "guest only: without segments of the host, and tracks of the host do not count",
            View::Host => {
                "host only: without segments of the guest; [guest] is a sample of a vCPU without segments of the host"
            }
            View::Merged => "merged: the guest's function that caused an exit, then the VMM, then the host's kernel",
        }
    }

    /// Whether boxes are coloured by [`Layer`], and names are marked with it.
    #[must_use]
    pub fn is_by_layer(self) -> bool {
        self != View::Guest
    }

    /// Whether segments of the host are shown, or those of the guest.
    #[must_use]
    pub fn shows(self, is_host: bool) -> bool {
        match self {
            View::Guest => !is_host,
            View::Host => is_host,
            View::Merged => true,
        }
    }
}

/// Whose code a frame is, and in which mode of its machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Layer {
    /// A process of the guest.
    GuestUser,
    /// The guest's kernel, or an image that is both.
    GuestKernel,
    /// The VMM or one of its helpers: a process of the host.
    Vmm,
    /// The host's kernel.
    HostKernel,
}

impl Layer {
    /// All of them, from the outermost to the innermost in a stack.
    pub const ALL: [Layer; 4] = [Layer::GuestUser, Layer::GuestKernel, Layer::Vmm, Layer::HostKernel];

    /// Its position in [`Layer::ALL`].
    #[must_use]
    pub fn number(self) -> usize {
        self as usize
    }

    /// The word for it.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Layer::GuestUser => "guest user",
            Layer::GuestKernel => "guest kernel",
            Layer::Vmm => "VMM",
            Layer::HostKernel => "host kernel",
        }
    }

    /// Whether it is code of the host.
    #[must_use]
    pub fn is_host(self) -> bool {
        matches!(self, Layer::Vmm | Layer::HostKernel)
    }

    /// Of code in a mode of the guest's machine, or of the host.
    pub(crate) fn of(mode: Mode, is_host: bool) -> Layer {
        match (is_host, mode) {
            (false, Mode::User) => Layer::GuestUser,
            (false, _) => Layer::GuestKernel,
            (true, Mode::User) => Layer::Vmm,
            (true, _) => Layer::HostKernel,
        }
    }
}
