//! The stacks of a recording in order of time, for each track, as `glass export --format speedscope --states all` writes them.

use anyhow::{Context, Result};
use serde_json::Value;

/// What a track did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// It executed.
    Running,
    /// It polled before it would halt.
    Spinning,
    /// It was halted.
    Idle,
    /// It had not started yet.
    NeverStarted,
    /// Its owner had paused it.
    Paused,
    /// It was runnable, and the host ran something else.
    Stolen,
    /// Its VMM worked for it.
    InVmm,
    /// There is no sample, or none with a state.
    Unknown,
}

/// Adjacent samples of one stack.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Piece {
    /// What the track did.
    pub state: State,
    /// Why the stack is broken, if it is.
    pub broken: Option<String>,
    /// Functions, innermost first.
    pub functions: Vec<String>,
    /// How long it lasted.
    pub ns: u64,
}

/// A vCPU or thread.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Track {
    /// Its name.
    pub name: String,
    /// What it did, in order of time.
    pub pieces: Vec<Piece>,
}

/// The roots of stacks that stand for a state.
const ROOTS: [(&str, State); 7] = [
    ("[spinning]", State::Spinning),
    ("[idle]", State::Idle),
    ("[never started]", State::NeverStarted),
    ("[paused]", State::Paused),
    ("[stolen]", State::Stolen),
    ("[in the VMM]", State::InVmm),
    ("[state unknown]", State::Unknown),
];
/// How the root of a broken stack starts.
const BROKEN: &str = "[broken stack";

/// Parses an export.
pub fn parse(text: &str) -> Result<Vec<Track>> {
    let file: Value = serde_json::from_str(text).context("the export is no JSON")?;
    let list = |value: &Value| value.as_array().cloned().with_context(|| format!("no list: {value}"));
    let text = |value: &Value| value.as_str().map(str::to_owned).with_context(|| format!("no text: {value}"));
    let names = list(&file["shared"]["frames"])?;
    let names: Vec<String> = names.iter().map(|frame| text(&frame["name"])).collect::<Result<_>>()?;
    let name = |index: &Value| {
        let name = index.as_u64().and_then(|index| names.get(usize::try_from(index).ok()?));
        name.cloned().with_context(|| format!("no frame {index}"))
    };
    let piece = |(sample, weight): (&Value, &Value)| {
        let frames: Vec<String> = list(sample)?.iter().map(name).collect::<Result<_>>()?;
        Ok(piece(frames, weight.as_u64().with_context(|| format!("no weight: {weight}"))?))
    };
    let track = |profile: &Value| {
        let (samples, weights) = (list(&profile["samples"])?, list(&profile["weights"])?);
        let pieces = samples.iter().zip(&weights).map(piece).collect::<Result<_>>()?;
        Ok(Track { name: text(&profile["name"])?, pieces })
    };
    list(&file["profiles"])?.iter().map(track).collect()
}

/// A stack with its outermost function first, and before it our roots.
fn piece(frames: Vec<String>, ns: u64) -> Piece {
    let state = match frames.first() {
        None => State::Unknown,
        Some(first) => ROOTS.iter().find(|(root, _)| root == first).map_or(State::Running, |(_, state)| *state),
    };
    let mut frames = frames.into_iter().skip(usize::from(!matches!(state, State::Running | State::Unknown))).peekable();
    let broken = frames.next_if(|frame| frame.starts_with(BROKEN));
    let mut functions: Vec<String> = frames.collect();
    functions.reverse();
    Piece { state, broken, functions, ns }
}

impl Track {
    /// How long it was in a state.
    pub fn ns_in(&self, state: State) -> u64 {
        self.pieces.iter().filter(|piece| piece.state == state).map(|piece| piece.ns).sum()
    }

    /// The share of a state, in percent of the time that has samples.
    pub fn percent_in(&self, state: State) -> f64 {
        let known: u64 = self.known().map(|piece| piece.ns).sum();
        self.ns_in(state) as f64 * 100.0 / known.max(1) as f64
    }

    /// The pieces that have samples.
    pub fn known(&self) -> impl DoubleEndedIterator<Item = &Piece> {
        self.pieces.iter().filter(|piece| piece.state != State::Unknown)
    }

    /// The pieces from the first in a state to the last, except where there is no sample.
    pub fn between(&self, state: State) -> &[Piece] {
        let is_it = |piece: &Piece| piece.state == state;
        match (self.pieces.iter().position(is_it), self.pieces.iter().rposition(is_it)) {
            (Some(first), Some(last)) => &self.pieces[first..=last],
            _ => &[],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_are_roots() {
        let text = r#"{"shared":{"frames":[{"name":"main"},{"name":"[idle]"},{"name":"[paused]"},{"name":"[broken stack: why]"},{"name":"wait"}]},
            "profiles":[{"name":"vCPU 0","samples":[[0],[],[1,0,4],[2,3,4],[3]],"weights":[30,40,10,5,5]}]}"#;
        let tracks = parse(text).unwrap();
        let states: Vec<State> = tracks[0].pieces.iter().map(|piece| piece.state).collect();
        assert_eq!(states, [State::Running, State::Unknown, State::Idle, State::Paused, State::Running]);
        assert_eq!(tracks[0].pieces[2].functions, ["wait", "main"]);
        assert_eq!(tracks[0].pieces[3].broken.as_deref(), Some("[broken stack: why]"));
        assert_eq!((tracks[0].percent_in(State::Running), tracks[0].ns_in(State::Idle)), (70.0, 10));
        assert_eq!(tracks[0].between(State::Running).len(), 5);
        assert!(tracks[0].between(State::Spinning).is_empty());
        assert!(parse("{}").is_err() && parse("[").is_err());
    }
}
