//! The unwind tables of an image, indexed (`.eh_frame`, `.debug_frame`).

use std::ops::Range;
use std::sync::Arc;

use framehop::x86_64::UnwinderX86_64;
use framehop::{ExplicitModuleSectionInfo, Module, Unwinder as _};

/// The unwind tables of an image, at the addresses that it was linked for: those of a C library serve every process
/// that has it. Indexed when they are first used, which takes 8 bytes for each function.
#[derive(Default)]
pub(crate) struct Tables {
    /// By `.eh_frame`, and by `.debug_frame`: framehop uses only one table of an image.
    pub(crate) eh: UnwinderX86_64<Arc<[u8]>>,
    pub(crate) debug: UnwinderX86_64<Arc<[u8]>>,
}

impl Tables {
    /// Those of an image that was linked for `linked`: `.eh_frame` with the addresses that it was linked for, and `.debug_frame`.
    pub(crate) fn of(
        linked: &Range<u64>,
        eh_frame: Option<&(Range<u64>, Arc<[u8]>)>,
        debug_frame: Option<&Arc<[u8]>>,
    ) -> Tables {
        let module = |sections| Module::new(String::new(), linked.clone(), linked.start, sections);
        let mut tables = Tables::default();
        if let Some((svma, data)) = eh_frame {
            tables.eh.add_module(module(ExplicitModuleSectionInfo {
                base_svma: linked.start,
                eh_frame_svma: Some(svma.clone()),
                eh_frame: Some(data.clone()),
                ..Default::default()
            }));
        }
        if let Some(data) = debug_frame {
            tables.debug.add_module(module(ExplicitModuleSectionInfo {
                base_svma: linked.start,
                debug_frame: Some(data.clone()),
                ..Default::default()
            }));
        }
        tables
    }
}

impl std::fmt::Debug for Tables {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Tables")
    }
}
