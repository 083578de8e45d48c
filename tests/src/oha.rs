//! The load generator `oha`, as clients that come all at once.

use crate::crates;
use std::path::PathBuf;

const NAME: &str = "oha";
const VERSION: &str = "1.16.0";

/// The program, which is built once; `None` after printing why it cannot be had. That takes minutes, so only `--long` tests want it.
pub fn program() -> Option<PathBuf> {
    crates::or_skip(NAME, crates::built(NAME, VERSION)).map(|folder| folder.join(NAME))
}
