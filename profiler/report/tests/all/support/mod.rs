//! What the tests of reports share.

pub mod barriers;
pub mod browser;
pub mod profiles;
pub mod trace_view;
pub mod traces;

#[path = "../../../../core/tests/all/common/host_and_guest.rs"]
pub mod host_and_guest;
#[path = "../../../../core/tests/all/common/linux_guest.rs"]
pub mod linux_guest;
