//! speedscope's own format: one sampled profile for each track, and for each thread of a guest; frames shared.
//!
//! The format has no field for modes: of host and guest names end in them, in brackets.
//! The weight of a sample is one period. Where a track has none for longer than that (it was idle, or samples were lost), an
//! empty stack fills the gap, so that the time axis is to scale.

use std::collections::HashMap;
use std::io::{self, Write};

use glass_profiler_core::recording::Recording;

use crate::chains::{Chains, Series, cost_line, title};
use crate::json::{self, column};
use crate::{Options, States};

pub(crate) fn write(recording: &Recording, options: Options<'_>, output: &mut dyn Write) -> io::Result<()> {
    let chains = Chains::new(recording).by_vcpu(options.by_vcpu);
    let (frames, frame_of) = frames(&chains);
    output.write_all(b"{\"$schema\":\"https://www.speedscope.app/file-format-schema.json\",\"exporter\":")?;
    json::string(output, concat!("glass ", env!("CARGO_PKG_VERSION")))?;
    output.write_all(b",\"name\":")?;
    json::string(output, &format!("{} ({})", title(chains.profile), cost_line(chains.profile)))?;
    output.write_all(b",\"activeProfileIndex\":0,\"shared\":{\"frames\":")?;
    json::list(output, frames, |output, step| {
        let step = &chains.steps[step];
        output.write_all(b"{\"name\":")?;
        let layer = step.layer.filter(|_| chains.is_by_layer() && step.place.is_some());
        match layer {
            Some(layer) => json::string(output, &format!("{} [{}]", step.name, layer.word()))?,
            None => json::string(output, &step.name)?,
        }
        if let Some(file) = &step.file {
            output.write_all(b",\"file\":")?;
            json::string(output, file)?;
        }
        output.write_all(b"}")
    })?;
    output.write_all(b"},\"profiles\":")?;
    json::list(output, chains.series(), |output, series| profile(output, &chains, &frame_of, &series, options.states))?;
    output.write_all(b"}\n")
}

/// One step for each function, and for each step the index of its function. speedscope treats every
/// entry as a separate function, so an entry for each line would split functions.
fn frames(chains: &Chains<'_>) -> (Vec<usize>, Vec<u32>) {
    let mut known = HashMap::new();
    let mut frames = Vec::new();
    let mut frame_of = Vec::with_capacity(chains.steps.len());
    for (index, step) in chains.steps.iter().enumerate() {
        frame_of.push(*known.entry((&step.name, &step.image, step.layer)).or_insert_with(|| {
            frames.push(index);
            frames.len() as u32 - 1
        }));
    }
    (frames, frame_of)
}

/// A stack and its duration; without a stack, a gap.
struct Piece {
    stack: Option<u32>,
    weight_ns: u64,
}

fn pieces(chains: &Chains<'_>, samples: &[u32], states: States) -> Vec<Piece> {
    let period_ns = chains.period_ns();
    let mut pieces: Vec<Piece> = Vec::new();
    let mut now_ns = 0u64;
    for index in samples {
        let sample = &chains.profile.samples[*index as usize];
        if !chains.is_exported(sample, states) {
            continue;
        }
        if sample.time_ns > now_ns.saturating_add(period_ns) {
            pieces.push(Piece { stack: None, weight_ns: sample.time_ns - now_ns });
            now_ns = sample.time_ns;
        }
        now_ns = now_ns.saturating_add(period_ns);
        match pieces.last_mut().filter(|last| {
            let same = |other: u32| {
                let other = &chains.profile.samples[other as usize];
                (other.stack, other.state) == (sample.stack, sample.state)
            };
            last.stack.is_some_and(same)
        }) {
            Some(last) => last.weight_ns = last.weight_ns.saturating_add(period_ns),
            None => pieces.push(Piece { stack: Some(*index), weight_ns: period_ns }),
        }
    }
    pieces
}

fn profile(
    output: &mut dyn Write,
    chains: &Chains<'_>,
    frame_of: &[u32],
    series: &Series,
    states: States,
) -> io::Result<()> {
    let pieces = pieces(chains, &series.samples, states);
    let end_ns = pieces.iter().fold(0u64, |sum, piece| sum.saturating_add(piece.weight_ns));
    output.write_all(b"{\"type\":\"sampled\",\"name\":")?;
    json::string(output, &chains.label(series))?;
    write!(output, ",\"unit\":\"nanoseconds\",\"startValue\":0,\"endValue\":{end_ns},\"samples\":")?;
    json::list(output, &pieces, |output, piece| {
        let sample = piece.stack.map(|index| &chains.profile.samples[index as usize]);
        let steps = sample.into_iter().flat_map(|sample| chains.chain(sample.stack, sample.state));
        json::list(output, steps, |output, step| write!(output, "{}", frame_of[step as usize]))
    })?;
    output.write_all(b",")?;
    column(output, "weights", pieces.iter().map(|piece| piece.weight_ns))?;
    output.write_all(b"}")
}
