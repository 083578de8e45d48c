//! pprof's `profile.proto`, compressed by gzip.
//!
//! Samples with the same stack, track and state are one, so the file does not grow with the duration.

mod proto;

use std::collections::HashMap;
use std::io::{self, Write};

use flate2::Compression;
use flate2::write::GzEncoder;
use glass_profiler_core::model::State;
use glass_profiler_core::recording::{RecordedImage, Recording};
use prost::Message;
use prost::encoding::{WireType, encode_key, encode_varint};

use crate::Options;
use crate::chains::{Chains, Label, Step, cost_line, remarks, title};

pub(crate) fn write(recording: &Recording, options: Options<'_>, output: &mut dyn Write) -> io::Result<()> {
    let mut encoder = GzEncoder::new(output, Compression::default());
    Tables::new(recording).write(options, &mut encoder)?;
    encoder.finish()?;
    Ok(())
}

const PAGE_BYTES: u64 = 4096;

/// The tables that samples refer to. Numbers in the file start at 1; 0 means none.
struct Tables<'a> {
    recording: &'a Recording,
    chains: Chains<'a>,
    strings: HashMap<String, i64>,
    string_list: Vec<String>,
    /// By name, file and first line.
    functions: HashMap<(i64, i64, i64), u64>,
    function_list: Vec<proto::Function>,
    /// By the steps that share an address, outermost first.
    locations: HashMap<Vec<u32>, u64>,
    location_list: Vec<proto::Location>,
}

impl<'a> Tables<'a> {
    fn new(recording: &'a Recording) -> Tables<'a> {
        let mut tables = Tables {
            recording,
            chains: Chains::new(recording),
            strings: HashMap::new(),
            string_list: Vec::new(),
            functions: HashMap::new(),
            function_list: Vec::new(),
            locations: HashMap::new(),
            location_list: Vec::new(),
        };
        // The first string must be the empty one.
        tables.string("");
        tables
    }

    fn string(&mut self, text: &str) -> i64 {
        if let Some(index) = self.strings.get(text) {
            return *index;
        }
        let index = self.string_list.len() as i64;
        self.strings.insert(text.to_owned(), index);
        self.string_list.push(text.to_owned());
        index
    }

    fn write(mut self, options: Options<'_>, output: &mut dyn Write) -> io::Result<()> {
        let period_ns = self.chains.period_ns() as i64;
        self.head(period_ns, output)?;
        let mut known: HashMap<(u32, Option<usize>), Vec<proto::Label>> = HashMap::new();
        for (group, count) in self.chains.groups(options.states) {
            let mut labels = match known.get(&(group.track, group.thread)) {
                Some(labels) => labels.clone(),
                None => {
                    let labels = self.chains.labels(group.track, group.thread, options.labels);
                    let labels: Vec<proto::Label> =
                        labels.into_iter().map(|(key, value)| self.label(key, value)).collect();
                    known.entry((group.track, group.thread)).or_insert(labels).clone()
                }
            };
            let of_code = self.chains.labels_of_code(group);
            labels.extend(of_code.into_iter().map(|(key, value)| self.label(key, value)));
            let sample = proto::Sample {
                location_id: self.locations(group.stack, group.state()),
                value: vec![count as i64, (count as i64).saturating_mul(period_ns)],
                label: labels,
            };
            field(output, proto::SAMPLE, &sample)?;
        }
        self.tail(output)
    }

    fn label(&mut self, key: &str, value: Label) -> proto::Label {
        let key = self.string(key);
        match value {
            Label::Text(text) => proto::Label { key, str: self.string(&text), ..Default::default() },
            Label::Number(number) => proto::Label { key, num: number as i64, ..Default::default() },
        }
    }

    /// Whether an image is the program that was recorded: the file that was named, or the one that its first process is named after; else the first that is
    /// no library.
    fn rank_of_program(&self, image: &RecordedImage) -> u8 {
        let path = image.path.as_str();
        let file = path.rsplit('/').next().unwrap_or_default();
        // Beside a guest they are the host's.
        let processes = if self.chains.view().is_none() { &self.chains.processes[..] } else { &[] };
        let program = processes.first().map(|process| process.name.as_str());
        match () {
            () if path == self.recording.profile.origin.symbols => 0,
            // The kernel keeps 15 bytes of a program's name.
            () if program.is_some_and(|program| {
                !program.is_empty() && (file == program || program.len() == 15 && file.starts_with(program))
            }) =>
            {
                1
            }
            () if !path.starts_with('/') || file.contains(".so") || path.starts_with("/[") => 3,
            () => 2,
        }
    }

    /// The fields that describe the profile.
    fn head(&mut self, period_ns: i64, output: &mut dyn Write) -> io::Result<()> {
        let (samples, count) = (self.string("samples"), self.string("count"));
        let (cpu, nanoseconds) = (self.string("cpu"), self.string("nanoseconds"));
        let profile = &self.recording.profile;
        let mut comments = vec![title(profile), cost_line(profile)];
        comments.extend(remarks(profile));
        let head = proto::Profile {
            sample_type: vec![
                proto::ValueType { r#type: samples, unit: count },
                proto::ValueType { r#type: cpu, unit: nanoseconds },
            ],
            time_nanos: profile.origin.start_unix_ns as i64,
            duration_nanos: profile.origin.duration_ns as i64,
            period_type: Some(proto::ValueType { r#type: cpu, unit: nanoseconds }),
            period: period_ns,
            comment: comments.iter().map(|text| self.string(text)).collect(),
            default_sample_type: cpu,
        };
        output.write_all(&head.encode_to_vec())
    }

    /// The tables; they may come after references to them.
    fn tail(mut self, output: &mut dyn Write) -> io::Result<()> {
        // Readers treat the first mapping as the program.
        let mut order: Vec<usize> = (0..self.recording.images.len()).collect();
        order.sort_by_key(|index| self.rank_of_program(&self.recording.images[*index]));
        // As locations have them: the addresses for which it was linked, of which only those in stacks are known.
        let mut ranges: HashMap<u64, (u64, u64)> = HashMap::new();
        for location in &self.location_list {
            let (start, end) = ranges.entry(location.mapping_id).or_insert((u64::MAX, 0));
            (*start, *end) = ((*start).min(location.address), (*end).max(location.address));
        }
        for index in order {
            let image = &self.recording.images[index];
            let (first, last) = ranges.get(&(index as u64 + 1)).copied().unwrap_or_default();
            let hex: String = image.build_id.iter().map(|byte| format!("{byte:02x}")).collect();
            let mapping = proto::Mapping {
                id: index as u64 + 1,
                memory_start: first & !(PAGE_BYTES - 1),
                memory_limit: (last | (PAGE_BYTES - 1)).saturating_add(1),
                filename: self.string(&image.path),
                build_id: self.string(&hex),
                // Otherwise readers would look names up themselves.
                has_functions: true,
                has_filenames: true,
                has_line_numbers: true,
                has_inline_frames: true,
            };
            field(output, proto::MAPPING, &mapping)?;
        }
        for location in &self.location_list {
            field(output, proto::LOCATION, location)?;
        }
        for function in &self.function_list {
            field(output, proto::FUNCTION, function)?;
        }
        for text in &self.string_list {
            bytes(output, proto::STRING_TABLE, text.as_bytes())?;
        }
        Ok(())
    }

    /// The locations of a stack, innermost first as the format requires.
    fn locations(&mut self, stack: u32, state: State) -> Vec<u64> {
        self.chains.places(stack, state).into_iter().map(|place| self.location(place)).collect()
    }

    fn location(&mut self, steps: Vec<u32>) -> u64 {
        if let Some(id) = self.locations.get(&steps) {
            return *id;
        }
        let id = self.location_list.len() as u64 + 1;
        let mut lines = Vec::with_capacity(steps.len());
        for index in steps.iter().rev() {
            let Step { name, file, line, start_line, .. } = self.chains.steps[*index as usize].clone();
            let function_id = self.function(&name, file.as_deref().unwrap_or(""), start_line.unwrap_or(0).into());
            lines.push(proto::Line { function_id, line: line.unwrap_or(0).into() });
        }
        let place = steps.first().and_then(|step| self.chains.steps[*step as usize].place);
        let image = place.and_then(|place| place.image);
        self.location_list.push(proto::Location {
            id,
            mapping_id: image.map_or(0, |image| u64::from(image) + 1),
            address: place.map_or(0, |place| place.address),
            line: lines,
        });
        self.locations.insert(steps, id);
        id
    }

    fn function(&mut self, name: &str, file: &str, start_line: i64) -> u64 {
        let (name, filename) = (self.string(name), self.string(file));
        let next = self.function_list.len() as u64 + 1;
        *self.functions.entry((name, filename, start_line)).or_insert_with(|| {
            // Without a system name readers leave the name unchanged: with an equal one, pprof would treat a
            // Rust name as a C++ one and remove its arguments.
            self.function_list.push(proto::Function { id: next, name, filename, start_line });
            next
        })
    }
}

/// Writes a message as a field of the profile.
fn field(output: &mut dyn Write, number: u32, message: &impl Message) -> io::Result<()> {
    bytes(output, number, &message.encode_to_vec())
}

fn bytes(output: &mut dyn Write, number: u32, value: &[u8]) -> io::Result<()> {
    let mut header = Vec::with_capacity(16);
    encode_key(number, WireType::LengthDelimited, &mut header);
    encode_varint(value.len() as u64, &mut header);
    output.write_all(&header)?;
    output.write_all(value)
}
