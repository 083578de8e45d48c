//! Tables of a snapshot: functions, lines, and what surrounds one function.

use std::collections::HashMap;
use std::sync::Arc;

use super::names::{Function, Line, Loader, NameCache};
use super::threads::{By, Subject, SubjectRow, SubjectSums};
use super::{CountedStack, LiveTrack, Snapshot};
use crate::model::State;

/// Stacks that are listed of one function.
const STACKS_SHOWN_MAX: usize = 32;

/// What is to be shown.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Query {
    /// Only this track.
    pub track: Option<u32>,
    /// Also time in which a track was idle.
    pub idle: bool,
    /// The function whose surroundings are wanted.
    pub focus: Option<Function>,
    /// What rows are.
    pub by: By,
    /// Only this process or thread.
    pub only: Option<Only>,
}

/// A process or a thread that is selected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Only {
    /// Which.
    pub subject: Subject,
    /// Its name, for the time after its end, too.
    pub label: String,
}

/// A function, or a line of one.
#[derive(Debug, Clone, PartialEq)]
pub struct Row {
    /// The function.
    pub function: Arc<Function>,
    /// Source file and line: of a function, the one where most of its own time is spent, or from where it calls most.
    pub place: Option<(Arc<str>, u32)>,
    /// Part of the shown samples that were in it, 0 to 1.
    pub self_share: f64,
    /// Part of the shown samples that were in it or in what it called; recursion counts once.
    pub total_share: f64,
}

/// What surrounds one function. Shares are of all shown samples, as in the rows.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Focus {
    /// The function.
    pub function: Function,
    /// As in its row.
    pub self_share: f64,
    /// As in its row.
    pub total_share: f64,
    /// Who called it, heaviest first; nothing for the start of a thread. Together with that they
    /// make the total.
    pub callers: Vec<(Arc<Function>, f64)>,
    /// Whom it called, heaviest first. Together with its self they make the total.
    pub callees: Vec<(Arc<Function>, f64)>,
    /// The heaviest call stacks that it is in, outermost function first.
    pub stacks: Vec<(Vec<Arc<Function>>, f64)>,
}

/// The tables.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct View {
    /// What it shows.
    pub query: Query,
    /// Weight of all shown samples, in samples.
    pub weight: f64,
    /// The part of it whose stacks were too rare to keep.
    pub forgotten_share: f64,
    /// Functions, heaviest self first.
    pub functions: Vec<Row>,
    /// Lines, heaviest self first.
    pub lines: Vec<Row>,
    /// Processes or threads, heaviest first, if rows are these.
    pub subjects: Vec<SubjectRow>,
    /// The function of [`Query::focus`], if there are samples of it.
    pub focus: Option<Focus>,
}

/// Self and total of one function or line while stacks are added up.
#[derive(Clone, Copy, Default)]
struct Sum {
    own: f64,
    total: f64,
    /// The last stack that was added: a function is counted once a stack.
    seen: u32,
}

impl Sum {
    fn add(&mut self, weight: f64, stack: u32, is_innermost: bool) {
        if is_innermost {
            self.own += weight;
        }
        if self.seen != stack {
            self.seen = stack;
            self.total += weight;
        }
    }
}

fn sum_at(sums: &mut Vec<Sum>, index: u32) -> &mut Sum {
    let index = index as usize;
    if index >= sums.len() {
        sums.resize(index + 1, Sum::default());
    }
    &mut sums[index]
}

/// The functions around one function while stacks are added up, by index.
#[derive(Default)]
struct Surroundings {
    function: u32,
    callers: HashMap<u32, f64>,
    callees: HashMap<u32, f64>,
    stacks: HashMap<Vec<u32>, f64>,
}

impl Surroundings {
    /// `path`: functions of a stack, innermost first. With recursion, the caller is that of the
    /// outermost call and the callee that of the innermost.
    fn add(&mut self, path: &[u32], weight: f64) {
        let is_it = |function: &u32| *function == self.function;
        let Some(innermost) = path.iter().position(is_it) else { return };
        let outermost = path.iter().rposition(is_it).unwrap_or(innermost);
        if let Some(callee) = innermost.checked_sub(1) {
            *self.callees.entry(path[callee]).or_default() += weight;
        }
        if let Some(caller) = path.get(outermost + 1) {
            *self.callers.entry(*caller).or_default() += weight;
        }
        *self.stacks.entry(path.to_vec()).or_default() += weight;
    }
}

fn heaviest<K: Ord>(weights: HashMap<K, f64>, most: usize) -> Vec<(K, f64)> {
    let mut sorted: Vec<(K, f64)> = weights.into_iter().collect();
    sorted.sort_by(|a, b| b.1.total_cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
    sorted.truncate(most);
    sorted
}

impl View {
    /// Adds up a snapshot. Names that are not known yet are looked up, which takes as long as `load` does.
    pub fn build(snapshot: &Snapshot, query: Query, names: &mut NameCache, load: &mut Loader<'_>) -> View {
        names.trim();
        let lines_of: Vec<Arc<[u32]>> = snapshot
            .frames
            .iter()
            .map(|call| {
                let path = call.image.and_then(|image| snapshot.paths.get(image as usize));
                names.lines(*call, path.map_or("", String::as_str), load)
            })
            .collect();
        let (functions, lines) = (names.functions(), names.all_lines());
        let focus = query.focus.as_ref().and_then(|wanted| functions.iter().position(|known| **known == *wanted));
        let mut surroundings = focus.map(|function| Surroundings { function: function as u32, ..Default::default() });
        let tracks: HashMap<u32, &LiveTrack> = snapshot.tracks.iter().map(|track| (track.track, track)).collect();
        let by_number = (&snapshot.threads, &tracks);
        let mut subjects = SubjectSums::default();
        let is_shown = |stack: &&CountedStack| {
            query.track.is_none_or(|track| track == stack.track)
                && query.only.as_ref().is_none_or(|only| snapshot.threads.is_of(stack, &tracks, only.subject))
                && (query.idle || !matches!(stack.state, State::Idle | State::Stolen))
        };
        // The forgotten belong to no track and no state.
        let forgotten = if query.track.is_none() && query.only.is_none() { snapshot.forgotten } else { 0.0 };
        let (mut of_function, mut of_line) = (Vec::new(), Vec::new());
        let (mut weight, mut path) = (forgotten, Vec::new());
        for (number, stack) in (1..).zip(snapshot.stacks.iter().filter(is_shown)) {
            weight += stack.weight;
            path.clear();
            for line in stack.frames.iter().flat_map(|frame| lines_of[*frame as usize].iter()) {
                let function = lines[*line as usize].function;
                sum_at(&mut of_line, *line).add(stack.weight, number, path.is_empty());
                sum_at(&mut of_function, function).add(stack.weight, number, path.is_empty());
                path.push(function);
            }
            if let Some(surroundings) = &mut surroundings {
                surroundings.add(&path, stack.weight);
            }
            if query.by != By::Function {
                subjects.add(stack, by_number, query.by, path.first().copied());
            }
        }
        let whole = if weight > 0.0 { weight } else { 1.0 };
        let function_rows = function_rows(&of_function, &of_line, functions, lines, whole);
        let focus = surroundings.and_then(|surroundings| {
            let sum = of_function.get(surroundings.function as usize).filter(|sum| sum.total > 0.0)?;
            Some(focus_of(surroundings, *sum, functions, whole))
        });
        let subjects = subjects.rows(by_number, functions, whole);
        View {
            query,
            subjects,
            weight,
            forgotten_share: forgotten / whole,
            functions: function_rows,
            lines: line_rows(&of_line, functions, lines, whole),
            focus,
        }
    }
}

fn by_self(a: &Row, b: &Row) -> std::cmp::Ordering {
    (b.self_share.total_cmp(&a.self_share))
        .then_with(|| b.total_share.total_cmp(&a.total_share))
        .then_with(|| a.function.cmp(&b.function))
        .then_with(|| a.place.cmp(&b.place))
}

fn function_rows(
    of_function: &[Sum],
    of_line: &[Sum],
    functions: &[Arc<Function>],
    lines: &[Line],
    whole: f64,
) -> Vec<Row> {
    let mut hottest: Vec<Option<usize>> = vec![None; of_function.len()];
    for (index, sum) in of_line.iter().enumerate().filter(|(_, sum)| sum.total > 0.0) {
        let best = &mut hottest[lines[index].function as usize];
        // As in a report: where its own time goes, or where it calls if it has none.
        let of = |sum: &Sum| (sum.own, sum.total);
        if best.is_none_or(|best| of(sum) > of(&of_line[best])) {
            *best = Some(index);
        }
    }
    let used = of_function.iter().zip(hottest).zip(functions).filter(|((sum, _), _)| sum.total > 0.0);
    let mut rows: Vec<Row> = used
        .map(|((sum, hottest), function)| Row {
            function: Arc::clone(function),
            place: hottest.and_then(|line| lines[line].place.clone()),
            self_share: sum.own / whole,
            total_share: sum.total / whole,
        })
        .collect();
    rows.sort_by(by_self);
    rows
}

fn line_rows(of_line: &[Sum], functions: &[Arc<Function>], lines: &[Line], whole: f64) -> Vec<Row> {
    let used = of_line.iter().zip(lines).filter(|(sum, _)| sum.total > 0.0);
    let mut rows: Vec<Row> = used
        .map(|(sum, line)| Row {
            function: Arc::clone(&functions[line.function as usize]),
            place: line.place.clone(),
            self_share: sum.own / whole,
            total_share: sum.total / whole,
        })
        .collect();
    rows.sort_by(by_self);
    rows
}

fn focus_of(surroundings: Surroundings, sum: Sum, functions: &[Arc<Function>], whole: f64) -> Focus {
    let function = |index: u32| Arc::clone(&functions[index as usize]);
    let named = |weights: HashMap<u32, f64>| {
        let sorted = heaviest(weights, STACKS_SHOWN_MAX);
        sorted.into_iter().map(|(index, weight)| (function(index), weight / whole)).collect()
    };
    let stacks = heaviest(surroundings.stacks, STACKS_SHOWN_MAX);
    Focus {
        function: (*functions[surroundings.function as usize]).clone(),
        self_share: sum.own / whole,
        total_share: sum.total / whole,
        callers: named(surroundings.callers),
        callees: named(surroundings.callees),
        stacks: stacks
            .into_iter()
            .map(|(path, weight)| (path.into_iter().rev().map(function).collect(), weight / whole))
            .collect(),
    }
}
