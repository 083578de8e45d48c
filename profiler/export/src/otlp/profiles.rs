//! Samples as a profile (`opentelemetry/proto/profiles/v1development`). Entry 0 of each table of the dictionary is its zero value, as the format requires.

use std::collections::HashMap;
use std::hash::Hash;
use std::io::{self, Write};

use glass_profiler_core::model::State;
use glass_profiler_core::recording::Recording;
use opentelemetry_proto::tonic::common::v1::AnyValue;
use opentelemetry_proto::tonic::profiles::v1development::{
    Function, KeyValueAndUnit, Line, Link, Location, Mapping, Profile, ProfilesData, ProfilesDictionary,
    ResourceProfiles, Sample, ScopeProfiles, Stack, ValueType,
};
use prost::Message as _;

use super::{any, number, resource, scope, text};
use crate::Options;
use crate::chains::{Chains, Group, Label};

/// Names of attributes as the conventions of OpenTelemetry have them.
const BUILD_ID: &str = "process.executable.build_id.gnu";
const FRAME_TYPE: &str = "profile.frame.type";

pub(crate) fn write(recording: &Recording, options: Options<'_>, output: &mut dyn Write) -> io::Result<()> {
    let mut tables = Tables::new(recording);
    let profile = tables.profile(options);
    let scope_profiles =
        vec![ScopeProfiles { scope: Some(scope()), profiles: vec![profile], ..ScopeProfiles::default() }];
    let resource = Some(resource(recording, options));
    let data = ProfilesData {
        resource_profiles: vec![ResourceProfiles { resource, scope_profiles, ..ResourceProfiles::default() }],
        dictionary: Some(tables.dictionary()),
    };
    output.write_all(&data.encode_to_vec())
}

/// A table whose entries are numbered in the order in which they are first used.
struct Table<K> {
    numbers: HashMap<K, i32>,
}

impl<K: Hash + Eq> Table<K> {
    fn starting_with(zero: K) -> Table<K> {
        Table { numbers: HashMap::from([(zero, 0)]) }
    }

    fn number(&mut self, key: K) -> i32 {
        let next = self.numbers.len() as i32;
        *self.numbers.entry(key).or_insert(next)
    }

    fn entries(self) -> Vec<K> {
        let mut entries: Vec<(i32, K)> = self.numbers.into_iter().map(|(key, number)| (number, key)).collect();
        entries.sort_unstable_by_key(|(number, _)| *number);
        entries.into_iter().map(|(_, key)| key).collect()
    }
}

/// The tables that samples refer to.
struct Tables<'a> {
    recording: &'a Recording,
    chains: Chains<'a>,
    strings: Table<String>,
    functions: Table<Function>,
    attributes: Table<(i32, Label)>,
    stacks: Table<Stack>,
    /// By the steps that share an address, outermost first.
    locations: HashMap<Vec<u32>, i32>,
    location_list: Vec<Location>,
}

impl<'a> Tables<'a> {
    fn new(recording: &'a Recording) -> Tables<'a> {
        Tables {
            recording,
            chains: Chains::new(recording),
            strings: Table::starting_with(String::new()),
            functions: Table::starting_with(Function::default()),
            attributes: Table::starting_with((0, Label::Text(String::new()))),
            stacks: Table::starting_with(Stack::default()),
            locations: HashMap::new(),
            location_list: vec![Location::default()],
        }
    }

    fn string(&mut self, text: &str) -> i32 {
        self.strings.number(text.to_owned())
    }

    fn profile(&mut self, options: Options<'_>) -> Profile {
        let origin = &self.recording.profile.origin;
        let unit = |tables: &mut Tables<'_>, what, unit| ValueType {
            type_strindex: tables.string(what),
            unit_strindex: tables.string(unit),
        };
        Profile {
            sample_type: Some(unit(self, "samples", "count")),
            period_type: Some(unit(self, "cpu", "nanoseconds")),
            period: self.chains.period_ns() as i64,
            time_unix_nano: origin.start_unix_ns,
            duration_nano: origin.duration_ns,
            samples: self.chains.groups(options.states).iter().map(|group| self.sample(*group, options)).collect(),
            ..Profile::default()
        }
    }

    fn sample(&mut self, (group, count): (Group, u64), options: Options<'_>) -> Sample {
        let mut labels = self.chains.labels(group.track, group.thread, options.labels);
        labels.extend(self.chains.labels_of_code(group));
        let attribute_indices = labels.into_iter().map(|(key, value)| self.attribute(key, value)).collect();
        let stack_index = self.stack(group.stack, group.state());
        Sample { stack_index, attribute_indices, values: vec![count as i64], ..Sample::default() }
    }

    fn attribute(&mut self, key: &str, value: Label) -> i32 {
        let key = self.string(key);
        self.attributes.number((key, value))
    }

    fn stack(&mut self, stack: u32, state: State) -> i32 {
        let places = self.chains.places(stack, state);
        let location_indices = places.into_iter().map(|place| self.location(place)).collect();
        self.stacks.number(Stack { location_indices })
    }

    fn location(&mut self, steps: Vec<u32>) -> i32 {
        if let Some(number) = self.locations.get(&steps) {
            return *number;
        }
        let lines = steps.iter().rev().map(|step| self.line(*step)).collect();
        let place = steps.first().and_then(|step| self.chains.steps[*step as usize].place);
        let image = place.and_then(|place| place.image);
        let location = Location {
            mapping_index: image.map_or(0, |image| image as i32 + 1),
            address: place.map_or(0, |place| place.address),
            lines,
            attribute_indices: vec![self.attribute(FRAME_TYPE, Label::Text("native".to_owned()))],
        };
        let number = self.location_list.len() as i32;
        self.location_list.push(location);
        self.locations.insert(steps, number);
        number
    }

    fn line(&mut self, step: u32) -> Line {
        let step = self.chains.steps[step as usize].clone();
        let function = Function {
            name_strindex: self.string(&step.name),
            filename_strindex: self.string(step.file.as_deref().unwrap_or_default()),
            start_line: step.start_line.unwrap_or(0).into(),
            ..Function::default()
        };
        Line { function_index: self.functions.number(function), line: step.line.unwrap_or(0).into(), column: 0 }
    }

    fn dictionary(mut self) -> ProfilesDictionary {
        let mapping_table = self.mappings();
        let attribute = |(key_strindex, label)| KeyValueAndUnit {
            key_strindex,
            value: (key_strindex != 0).then(|| labelled(label)),
            unit_strindex: 0,
        };
        ProfilesDictionary {
            mapping_table,
            location_table: self.location_list,
            function_table: self.functions.entries(),
            link_table: vec![Link::default()],
            attribute_table: self.attributes.entries().into_iter().map(attribute).collect(),
            stack_table: self.stacks.entries(),
            string_table: self.strings.entries(),
        }
    }

    /// The images, by the addresses for which they were linked, of which only those in stacks are known.
    fn mappings(&mut self) -> Vec<Mapping> {
        let mut ranges: HashMap<i32, (u64, u64)> = HashMap::new();
        for location in &self.location_list {
            let (start, end) = ranges.entry(location.mapping_index).or_insert((u64::MAX, 0));
            (*start, *end) = ((*start).min(location.address), (*end).max(location.address));
        }
        let mut mappings = vec![Mapping::default()];
        for (number, image) in (1..).zip(&self.recording.images) {
            let (first, last) = ranges.get(&number).copied().unwrap_or_default();
            let hex: String = image.build_id.iter().map(|byte| format!("{byte:02x}")).collect();
            let build_id = (!hex.is_empty()).then(|| self.attribute(BUILD_ID, Label::Text(hex)));
            mappings.push(Mapping {
                memory_start: first,
                memory_limit: last.saturating_add(1),
                file_offset: 0,
                filename_strindex: self.string(&image.path),
                attribute_indices: build_id.into_iter().collect(),
            });
        }
        mappings
    }
}

fn labelled(label: Label) -> AnyValue {
    any(match label {
        Label::Text(said) => text(&said),
        Label::Number(value) => number(value),
    })
}
