//! Exports for OpenTelemetry, decoded by its own crate: what the format requires, and the totals and names of the other exports.

use std::collections::BTreeMap;

use crate::common::{export, read, recording};
use glass_profiler_core::trace::{build, example};
use glass_profiler_export::{Format, Labels, Options, States, write};
use opentelemetry_proto::tonic::profiles::v1development::{Function, Location, Mapping, ProfilesData, Stack};
use opentelemetry_proto::tonic::trace::v1::TracesData;
use prost::Message;

const SAMPLES: u64 = 500;

fn profiles(bytes: &[u8], options: Options<'_>) -> ProfilesData {
    let mut made = Vec::new();
    write(Format::OtlpProfiles, &read(bytes), bytes, options, &mut made).unwrap();
    ProfilesData::decode(&made[..]).unwrap()
}

/// The samples by their stacks, as folded stacks have them.
fn folded(data: &ProfilesData) -> BTreeMap<String, i64> {
    let dictionary = data.dictionary.as_ref().unwrap();
    let name = |function: i32| {
        let function = dictionary.function_table[function as usize];
        dictionary.string_table[function.name_strindex as usize].replace(';', ":")
    };
    let mut sums = BTreeMap::new();
    for sample in &data.resource_profiles[0].scope_profiles[0].profiles[0].samples {
        let locations = &dictionary.stack_table[sample.stack_index as usize].location_indices;
        let lines = locations.iter().flat_map(|location| &dictionary.location_table[*location as usize].lines);
        let mut names: Vec<String> = lines.map(|line| name(line.function_index)).collect();
        names.reverse();
        *sums.entry(names.join(";")).or_default() += sample.values[0];
    }
    sums
}

#[test]
fn samples_are_those_of_folded_stacks() {
    let bytes = recording(SAMPLES);
    for states in [States::Running, States::All] {
        let data = profiles(&bytes, Options { states, ..Options::default() });
        let text = String::from_utf8(export(Format::Folded, &bytes, states)).unwrap();
        let expected: BTreeMap<String, i64> = text
            .lines()
            .map(|line| line.rsplit_once(' ').unwrap())
            .map(|(stack, count)| (stack.to_owned(), count.parse().unwrap()))
            .collect();
        assert_eq!(folded(&data), expected);
        let dictionary = data.dictionary.unwrap();
        assert_eq!((&dictionary.mapping_table[0], &dictionary.string_table[0]), (&Mapping::default(), &String::new()));
        assert_eq!(dictionary.location_table[0], Location::default());
        assert_eq!(
            (dictionary.function_table[0], &dictionary.stack_table[0]),
            (Function::default(), &Stack::default())
        );
        assert!(dictionary.attribute_table[0].value.is_none() && dictionary.link_table.len() == 1);
        // No two entries of a table are the same.
        let mut strings = dictionary.string_table.clone();
        strings.sort();
        strings.dedup();
        assert_eq!(strings.len(), dictionary.string_table.len());
    }
}

#[test]
fn names_of_files_and_attributes_are_as_requested() {
    let bytes = recording(SAMPLES);
    let attributes = [("service.name".to_owned(), "web".to_owned()), ("zone".to_owned(), "a".to_owned())];
    let data = profiles(&bytes, Options { labels: Labels::None, attributes: &attributes, ..Options::default() });
    let resource = data.resource_profiles[0].resource.clone().unwrap();
    let keys: Vec<&str> = resource.attributes.iter().map(|attribute| attribute.key.as_str()).collect();
    assert_eq!(keys, ["service.name", "zone", "host.name"]);
    let has_path = |data: &ProfilesData| {
        let strings = &data.dictionary.as_ref().unwrap().string_table;
        strings.iter().any(|text| text.contains("/images/queue") || text.contains("src/dir/file.rs"))
    };
    assert!(!has_path(&data) && has_path(&profiles(&bytes, Options::default())));
}

#[test]
fn each_span_is_there_once() {
    let bytes = recording(10);
    let mut recording = read(&bytes);
    recording.trace = example::queue(20_000, 7);
    let trace = build(&recording.trace);
    let mut made = Vec::new();
    write(Format::OtlpTraces, &recording, &bytes, Options::default(), &mut made).unwrap();
    let data = TracesData::decode(&made[..]).unwrap();
    let spans = &data.resource_spans[0].scope_spans[0].spans;
    assert!(spans.len() > 10 && spans.len() == trace.spans.len(), "{}", spans.len());
    let numbers: std::collections::BTreeSet<&[u8]> = spans.iter().map(|span| span.span_id.as_slice()).collect();
    assert_eq!(numbers.len(), spans.len());
    let start_ns = recording.profile.origin.start_unix_ns;
    for (span, known) in spans.iter().zip(&trace.spans) {
        assert_eq!(span.name, trace.name(known.name));
        assert_eq!(span.start_time_unix_nano + trace.shift_ns, start_ns + known.start_ns);
        assert_eq!(span.end_time_unix_nano - span.start_time_unix_nano, trace.span_end_ns(known) - known.start_ns);
        if let Some(parent) = known.parent {
            assert_eq!(span.parent_span_id, spans[parent as usize].span_id);
        }
    }
    let messages = trace.messages.iter().filter(|message| message.span.is_some()).count();
    assert_eq!(spans.iter().map(|span| span.events.len()).sum::<usize>(), messages);
}
