//! The two halves of HTTP exchange what scripts say, the same ones in each run.

use glass_fuzz::engine::{Plan, run};
use glass_fuzz::targets::find;
use std::time::Duration;

const CASES: u64 = 1000;
/// A debug build on a busy machine.
const CASE_TIME_MAX: Duration = Duration::from_secs(20);

#[test]
fn both_halves_of_http_understand_each_other() {
    let target = find("halves").unwrap();
    let plan = Plan::new(target, 57, Vec::new());
    for number in 0..CASES {
        if let Err(failure) = run(target, &plan.input(number), CASE_TIME_MAX) {
            panic!("case {number}: {} at {}: {:?}", failure.what, failure.place, plan.input(number));
        }
    }
}
