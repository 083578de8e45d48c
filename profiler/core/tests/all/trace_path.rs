//! Paths through spans.

use glass_profiler_core::trace::path::{Index, Path, spans_by_duration, summarise};
use glass_profiler_core::trace::{build, example};

#[test]
fn parts_follow_each_other_and_sum_up_to_the_span() {
    let trace = build(&example::queue(200_000, 1));
    let index = Index::new(&trace);
    let spans = spans_by_duration(&trace, "upload");
    let paths: Vec<Path> = spans.iter().filter_map(|span| Path::find(&trace, &index, *span)).collect();
    assert!(paths.len() > 100);
    for path in &paths {
        assert!(!path.is_cut);
        let mut now_ns = path.start_ns;
        for part in &path.parts {
            assert_eq!(part.start_ns, now_ns);
            assert!(part.end_ns > part.start_ns);
            now_ns = part.end_ns;
        }
        assert_eq!(now_ns, path.end_ns);
    }
    assert!(paths.windows(2).all(|pair| pair[0].duration_ns() >= pair[1].duration_ns()));
    let summary = summarise(&trace, &paths);
    for shares in [&summary.own, &summary.followed] {
        assert_eq!(shares.iter().map(|share| share.sum_ns).sum::<u64>(), summary.sum_ns);
    }
    println!("{summary:?}");
}
