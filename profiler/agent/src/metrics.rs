//! The counters in the text format of Prometheus (exposition format 0.0.4).

use std::fmt::Write as _;

use crate::state::Known;

/// All of them.
pub fn text(known: &Known) -> String {
    let mut text = String::new();
    let mut add = |name: &str, kind: &str, help: &str, values: &[(String, f64)]| {
        let _ = write!(text, "# HELP glass_agent_{name} {help}\n# TYPE glass_agent_{name} {kind}\n");
        for (labels, value) in values {
            let _ = writeln!(text, "glass_agent_{name}{labels} {value}");
        }
    };
    let one = |value: f64| vec![(String::new(), value)];
    let counts = &known.counts;
    let seconds = |ns: u64| ns as f64 / 1e9;
    let with_problem = known.vms.values().filter(|vm| vm.problem.is_some()).count();
    add("vms", "gauge", "VMs that run and are selected.", &one(known.vms.len() as f64));
    add("vms_with_problem", "gauge", "VMs that cannot be recorded at the moment.", &one(with_problem as f64));
    add("segments_total", "counter", "Recordings that are whole.", &one(counts.segments as f64));
    add("failures_total", "counter", "Recorders that failed.", &one(counts.failures as f64));
    add(
        "segments_removed_total",
        "counter",
        "Recordings that were removed for space.",
        &one(counts.segments_removed as f64),
    );
    add("samples_expected_total", "counter", "Samples that were expected.", &one(counts.samples_expected as f64));
    add("samples_lost_total", "counter", "Samples that were lost.", &one(counts.samples_lost as f64));
    add("recorded_seconds_total", "counter", "Time of VMs that was recorded.", &one(seconds(counts.recorded_ns)));
    add("gap_seconds_total", "counter", "Time of VMs between two recordings.", &one(seconds(counts.gap_ns)));
    add("recorder_cpu_seconds_total", "counter", "CPU time of the recorders.", &one(seconds(counts.recorder_cpu_ns)));
    add("pause_seconds_total", "counter", "Time for which vCPUs were paused.", &one(seconds(counts.pause_ns)));
    add("kept_bytes", "gauge", "Size of the recordings that are kept.", &one(known.kept.0 as f64));
    add("kept_segments", "gauge", "Recordings that are kept.", &one(known.kept.1 as f64));
    let by_sink = |value: fn(&crate::state::SinkState) -> f64| -> Vec<(String, f64)> {
        known.sinks.iter().map(|(url, sink)| (format!("{{sink=\"{}\"}}", escaped(url)), value(sink))).collect()
    };
    add("sink_sent_total", "counter", "Profiles that an engine has.", &by_sink(|sink| sink.sent as f64));
    add("sink_refused_total", "counter", "Profiles that an engine has refused.", &by_sink(|sink| sink.refused as f64));
    add(
        "sink_removed_total",
        "counter",
        "Profiles that were removed before an engine had them.",
        &by_sink(|sink| sink.removed as f64),
    );
    add("sink_waiting", "gauge", "Profiles that wait for an engine.", &by_sink(|sink| sink.waiting as f64));
    text
}

fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::SinkState;

    #[test]
    fn each_counter_has_a_type_and_its_labels_are_escaped() {
        let mut known = Known::default();
        known.counts.pause_ns = 1_500_000_000;
        known.sinks.insert("http://a\"b".to_owned(), SinkState { sent: 3, ..SinkState::default() });
        let text = text(&known);
        assert!(text.contains("# TYPE glass_agent_pause_seconds_total counter\nglass_agent_pause_seconds_total 1.5\n"));
        assert!(text.contains("glass_agent_sink_sent_total{sink=\"http://a\\\"b\"} 3\n"), "{text}");
        let (samples, types) =
            (text.lines().filter(|line| !line.starts_with('#')).count(), text.matches("# TYPE").count());
        assert_eq!(samples, types);
    }
}
