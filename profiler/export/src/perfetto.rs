//! The recording as a plain Perfetto trace: a copy without our fields, with all names.

use std::io::{self, Write};

use glass_profile::recording::{PlainSettings, Recording, write_plain};

use crate::{Options, States};

pub(crate) fn write(
    recording: &Recording,
    bytes: &[u8],
    options: Options,
    mut output: &mut dyn Write,
) -> io::Result<()> {
    let settings = PlainSettings { only_running: options.states == States::Running };
    write_plain(bytes, recording, settings, &mut output)
}
