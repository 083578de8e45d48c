//! Recordings, and everything that is derived from them.

use std::io;
use std::sync::LazyLock;

use fastrand::Rng;
use glass_profiler_core::files::NoFiles;
use glass_profiler_core::model::Profile;
use glass_profiler_core::recording::{PlainSettings, Recording, open, write_plain};
use glass_profiler_core::{trace, tree, view};
use glass_profiler_export::{Format, Options, States};
use glass_profiler_report::trace::{Settings, View};

use super::Target;
use crate::{corpus, mutate};

/// Properties of every result of the reader.
fn check(recording: &Recording, input: &[u8]) {
    let profile = &recording.profile;
    assert_eq!(profile.frames.len(), recording.places.len());
    for place in &recording.places {
        assert!(place.image.is_none_or(|image| (image as usize) < recording.images.len()));
    }
    for sample in &profile.samples {
        assert!((sample.track as usize) < profile.tracks.len());
        let stack = &profile.stacks[sample.stack as usize];
        assert!(stack.frames.iter().all(|frame| (*frame as usize) < profile.frames.len()));
    }
    assert!(profile.samples.is_sorted_by_key(|sample| sample.time_ns));
    assert!(profile.samples.len() <= input.len(), "more samples than bytes");
    assert!(recording.trace.event_count() <= input.len() as u64 / 32, "more events than bytes");
    // Two for each packet that was left out, and a few about the end.
    assert!(profile.warnings.len() <= 200);
}

/// Outputs that are derived from recordings.
pub struct Reader {
    name: &'static str,
    run: fn(&[u8]),
}

/// The reader, and the copier of packets.
pub static RECORDINGS: Reader = Reader { name: "recording", run: read_and_copy };
/// Reports for the terminal and the browser.
pub static REPORTS: Reader = Reader { name: "report", run: report };
/// The formats of other viewers.
pub static EXPORTS: Reader = Reader { name: "export", run: export };

impl Target for Reader {
    fn name(&self) -> &'static str {
        self.name
    }

    fn corpus(&self) -> Vec<Vec<u8>> {
        corpus::recordings()
    }

    fn change(&self, bytes: &mut Vec<u8>, corpus: &[Vec<u8>], rng: &mut Rng) {
        mutate::protobuf(bytes, corpus, rng);
    }

    fn run(&self, input: &[u8]) {
        (self.run)(input);
    }
}

fn read_and_copy(input: &[u8]) {
    let recording = match open(input, &mut NoFiles) {
        Ok(recording) => recording,
        Err(error) => return assert_eq!(error.to_string().lines().count(), 1, "{error}"),
    };
    check(&recording, input);
    let mut plain = Vec::new();
    write_plain(input, &recording, PlainSettings::default(), &mut plain).expect("memory takes all");
    // Of host and guest, stacks of the view are added.
    let has_host = view::View::Guest.of(&recording.profile).profile.host.is_some();
    assert!(has_host || plain.len() <= input.len() * 2 + 64, "{} bytes of {}", plain.len(), input.len());
    for view in view::View::ALL {
        let viewed = view.of(&recording.profile);
        let counted = viewed.profile.counted().count() as u64;
        assert_eq!(tree::Tree::build(&viewed.profile).counts().active(), counted);
        let settings = PlainSettings { only_running: true, view };
        write_plain(input, &recording, settings, &mut io::sink()).expect("nothing fails");
    }
}

/// A profile that each one is compared with.
static HONEST: LazyLock<Profile> = LazyLock::new(|| {
    let recording = open(&corpus::recordings()[0], &mut NoFiles).expect("what we wrote can be read");
    recording.profile
});

fn report(input: &[u8]) {
    let Ok(recording) = open(input, &mut NoFiles) else { return };
    let profile = &recording.profile;
    for view in view::View::ALL {
        let _ = glass_profiler_report::text_with_tree(&view.of(profile).profile, 20, 0.1);
    }
    let _ = glass_profiler_report::difference_text(&[profile], &[&HONEST], 20);
    assert!(glass_profiler_report::difference_html(&HONEST, profile).ends_with("</html>\n"));
    if recording.trace.is_empty() {
        assert!(glass_profiler_report::html(profile).ends_with("</html>\n"));
        return;
    }
    let trace = trace::build(&recording.trace);
    assert!(glass_profiler_report::trace_html(profile, &trace).ends_with("</html>\n"));
    for view in View::ALL {
        // An error is one sentence, or a list of what is possible.
        let _ = glass_profiler_report::trace::text(&trace, view, &Settings::default());
    }
    for span in ["upload", "upload#2", "upload#median"] {
        let settings = Settings { span: Some(span.to_owned()), ..Settings::default() };
        let _ = glass_profiler_report::trace::text(&trace, View::Path, &settings);
        let _ = glass_profiler_report::trace::text(&trace, View::Calls, &settings);
    }
}

fn export(input: &[u8]) {
    let Ok(recording) = open(input, &mut NoFiles) else { return };
    for view in view::View::ALL {
        let options = Options { states: States::All, lines: true, view, ..Options::default() };
        for format in Format::ALL.into_iter().filter(|format| !format.is_folder()) {
            let mut output = Vec::new();
            glass_profiler_export::write(format, &recording, input, options, &mut output).expect("memory takes all");
        }
    }
    let written = glass_profiler_export::ctf::write(&recording, |_| Ok(io::sink())).expect("nothing fails");
    assert!(written.events <= recording.trace.event_count());
    assert!(written.moved <= written.events);
}
