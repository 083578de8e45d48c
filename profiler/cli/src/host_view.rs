//! The views of a recording of host and guest, on the command line.

use glass_profiler_core::view::View;

/// What is shown of a recording of host and guest (`glass record --host`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum HostView {
    /// Guest only: stacks without the VMM and the host's kernel, and no tracks of the host.
    Guest,
    /// Host only: the VMM, its helpers and the host's kernel; one box for the rest of a vCPU's time.
    Host,
    /// Merged: the guest's function that caused an exit, then the VMM, then the host's kernel.
    Merged,
}

impl From<HostView> for View {
    fn from(view: HostView) -> View {
        match view {
            HostView::Guest => View::Guest,
            HostView::Host => View::Host,
            HostView::Merged => View::Merged,
        }
    }
}
