//! The grant table of the domain.

use super::shared::{self, SPACE_GRANT_TABLE};
use crate::serial::print_line;
use glass_drivers_xen::{Frames, Grants, IdentityFrames, PAGE_BYTES};

/// Pages of the table: 512 grants each. A card needs 514, and a disk 8,225 at most.
const PAGES: usize = 32;

/// Makes the table. `None` without memory, or if Xen does not give as many pages: a domain may have fewer (`max_grant_frames`).
pub fn start() -> Option<Grants> {
    let table = IdentityFrames.allocate(PAGES)?;
    for index in 0..PAGES {
        let address = table.frame(index) * PAGE_BYTES as u64;
        // SAFETY: the page was just allocated for this, and is never freed: Xen's page stays in its place.
        if let Err(refused) = unsafe { shared::put_in_place(SPACE_GRANT_TABLE, index as u64, address) } {
            print_line(format_args!(
                "the domain's grant table is too small: give it max_grant_frames = {PAGES} or more ({refused})"
            ));
            core::mem::forget(table);
            return None;
        }
    }
    let grants = Grants::new(table);
    // One handle never ends, so that the pages are never freed.
    core::mem::forget(grants.clone());
    Some(grants)
}
