//! The folder of files that can be made or downloaded again.

use std::ffi::OsString;
use std::path::PathBuf;

/// `$GLASS_CACHE`, `$XDG_CACHE_HOME/glasshouse` or `~/.cache/glasshouse`; it may not exist yet. `None` without all of these variables.
pub fn folder() -> Option<PathBuf> {
    let variable = |name| std::env::var_os(name).filter(|value: &OsString| !value.is_empty()).map(PathBuf::from);
    let general = || variable("XDG_CACHE_HOME").or_else(|| Some(variable("HOME")?.join(".cache")));
    variable("GLASS_CACHE").or_else(|| Some(general()?.join("glasshouse")))
}
