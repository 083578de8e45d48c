//! Where a request is in a trace across services (W3C Trace Context, level 1): the header fields `traceparent` and `tracestate`.

use crate::Request;
use crate::framing::request::members;
use alloc::string::String;
use core::fmt;
use glass_api::Random;

/// Characters of `tracestate` that are passed on: what the specification expects at least (section 3.3.1.5).
const STATE_BYTES_MAX: usize = 512;
/// Characters of a `traceparent` of version 00; of later versions it is the start (section 3.2.4).
const PARENT_BYTES: usize = 55;
/// The only flag of this level: the trace is recorded (section 3.2.2.5).
const SAMPLED: u8 = 1;

/// A span of a trace that several services may be part of, as it is sent to them.
///
/// ```
/// use glass_api::Random;
/// use glass_lib_http::{Request, TraceContext, client};
///
/// /// The request that is sent because of another one, in the same trace.
/// fn passed_on(request: &Request, random: &impl Random) -> Result<client::Request, client::Error> {
///     let context = TraceContext::of(request, random);
///     Ok(client::Request::get("http://store/items")?.in_trace(&context))
/// }
/// ```
///
/// Its `Display` is for the field `trace_context` of the span of the `tracing` macros that it belongs to, from which an export has the
/// numbers (`docs/formats/trace.md`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TraceContext {
    trace: u128,
    /// The caller's span, 0 if there is none.
    parent: u64,
    span: u64,
    is_sampled: bool,
    state: String,
}

impl TraceContext {
    /// A new span in the trace of a request. A request without a valid `traceparent` starts a trace.
    pub fn of(request: &Request, random: &impl Random) -> TraceContext {
        match request.only("traceparent").and_then(parse) {
            None => TraceContext::start(random),
            Some((trace, parent, is_sampled)) => {
                let state = state(request.values("tracestate").flat_map(members));
                TraceContext { trace, parent, span: number(random), is_sampled, state }
            }
        }
    }

    /// The first span of a new trace.
    pub fn start(random: &impl Random) -> TraceContext {
        let trace = u128::from(number(random)) << 64 | u128::from(number(random));
        TraceContext { trace, parent: 0, span: number(random), is_sampled: true, state: String::new() }
    }

    /// A new span below this one.
    pub fn child(&self, random: &impl Random) -> TraceContext {
        TraceContext { parent: self.span, span: number(random), ..self.clone() }
    }

    /// The value of `traceparent`.
    pub fn traceparent(&self) -> impl fmt::Display + '_ {
        fmt::from_fn(|f| write!(f, "00-{:032x}-{:016x}-{:02x}", self.trace, self.span, u8::from(self.is_sampled)))
    }

    /// The value of `tracestate`: what other services have added; empty if there is nothing.
    pub fn tracestate(&self) -> &str {
        &self.state
    }

    /// The trace's number.
    pub fn trace(&self) -> u128 {
        self.trace
    }

    /// The span's number, unique in its trace.
    pub fn span(&self) -> u64 {
        self.span
    }

    /// The number of the caller's span.
    pub fn parent(&self) -> Option<u64> {
        (self.parent != 0).then_some(self.parent)
    }
}

/// Trace, span and caller: `4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-b7ad6b7169203331`.
impl fmt::Display for TraceContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}-{:016x}-{:016x}", self.trace, self.span, self.parent)
    }
}

/// Trace, span and whether it is recorded. `None` if the value is not valid (section 3.2.2).
fn parse(value: &str) -> Option<(u128, u64, bool)> {
    let bytes = value.as_bytes();
    let is_later = !value.starts_with("00");
    let has_end = bytes.len() == PARENT_BYTES || (is_later && bytes.get(PARENT_BYTES) == Some(&b'-'));
    if !has_end || value.starts_with("ff") {
        return None;
    }
    let mut words = value.get(..PARENT_BYTES)?.split('-');
    let mut hex = |digits: usize| {
        let word = words.next().filter(|word| word.len() == digits)?;
        let is_hex = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        word.bytes().all(is_hex).then(|| u128::from_str_radix(word, 16).ok())?
    };
    let (_version, trace, span, flags) = (hex(2)?, hex(32)?, hex(16)?, hex(2)?);
    (trace != 0 && span != 0).then_some((trace, span as u64, flags as u8 & SAMPLED != 0))
}

/// As many members of a list as fit, in order.
fn state<'a>(members: impl Iterator<Item = &'a [u8]>) -> String {
    let mut state = String::new();
    for member in members {
        // What is not valid may not be passed on (section 3.3.1).
        let Some(text) =
            str::from_utf8(member).ok().filter(|text| text.bytes().all(|byte| (b' '..=b'~').contains(&byte)))
        else {
            return String::new();
        };
        let comma = usize::from(!state.is_empty());
        if state.len() + comma + text.len() > STATE_BYTES_MAX {
            break;
        }
        if comma > 0 {
            state.push(',');
        }
        state.push_str(text);
    }
    state
}

/// A random number that is not 0.
fn number(random: &impl Random) -> u64 {
    let mut bytes = [0; 8];
    random.fill_random(&mut bytes);
    u64::from_ne_bytes(bytes).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client;
    use crate::framing::head::parse_head;
    use crate::framing::outgoing::Outgoing;
    use alloc::format;
    use alloc::string::ToString;
    use core::cell::Cell;

    /// 1, 2, 3 and so on.
    struct Counted(Cell<u64>);

    impl Random for Counted {
        fn fill_random(&self, bytes: &mut [u8]) {
            self.0.set(self.0.get() + 1);
            bytes.copy_from_slice(&self.0.get().to_ne_bytes());
        }
    }

    fn counted() -> Counted {
        Counted(Cell::new(0))
    }

    fn request(fields: &str) -> Request {
        parse_head(format!("GET / HTTP/1.1\r\nHost: a\r\n{fields}\r\n").as_bytes()).unwrap()
    }

    const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    #[test]
    fn a_request_continues_the_trace_of_its_caller() {
        let request = request(&format!("Traceparent: {PARENT}\r\ntracestate: a=1, b=2\r\nTraceState: c=3\r\n"));
        let context = TraceContext::of(&request, &counted());
        assert_eq!(
            (context.trace(), context.parent()),
            (0x4bf9_2f35_77b3_4da6_a3ce_929d_0e0e_4736, Some(0x00f0_67aa_0ba9_02b7))
        );
        let text = "4bf92f3577b34da6a3ce929d0e0e4736-0000000000000001-00f067aa0ba902b7";
        assert_eq!((context.to_string().as_str(), context.tracestate()), (text, "a=1,b=2,c=3"));
        let out = client::Request::get("http://b/").unwrap().in_trace(&context);
        let head = String::from_utf8(out.head(Outgoing::Length(0)).unwrap()).unwrap();
        let field =
            "\r\ntraceparent: 00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000001-01\r\ntracestate: a=1,b=2,c=3\r\n";
        assert!(head.contains(field), "{head}");
        let child = context.child(&counted());
        assert_eq!((child.trace(), child.parent()), (context.trace(), Some(1)));
    }

    #[test]
    fn what_is_not_valid_starts_a_trace() {
        let longer = format!("cc{}-more", &PARENT[2..]);
        for valid in [PARENT, &format!("cc{}", &PARENT[2..]), &longer] {
            let context = TraceContext::of(&request(&format!("traceparent: {valid}\r\n")), &counted());
            assert!(context.parent().is_some(), "{valid}");
        }
        let (upper, long) = (PARENT.to_uppercase(), format!("{PARENT}-more"));
        let (no_trace, no_span) = (format!("00-{:032}-00f067aa0ba902b7-01", 0), format!("00-{:032}-{:016}-01", 1, 0));
        let ff = format!("ff{}", &PARENT[2..]);
        let signed = PARENT.replace("00f067aa0ba902b7", "+0f067aa0ba902b7");
        let joined = format!("cc{}more", &PARENT[2..]);
        for value in ["", "00", &PARENT[1..], &upper, &long, &no_trace, &no_span, &ff, &signed, &joined, "00-\u{fc}"] {
            let context =
                TraceContext::of(&request(&format!("traceparent: {value}\r\ntracestate: a=1\r\n")), &counted());
            assert_eq!((context.parent(), context.tracestate()), (None, ""), "{value}");
            assert_eq!(context.traceparent().to_string(), "00-00000000000000010000000000000002-0000000000000003-01");
        }
        // Two of them are none.
        let twice =
            TraceContext::of(&request(&format!("traceparent: {PARENT}\r\ntraceparent: {PARENT}\r\n")), &counted());
        assert_eq!(twice.parent(), None);
    }

    #[test]
    fn flags_and_state_are_bounded() {
        let context = |fields: &str| TraceContext::of(&request(&format!("traceparent: {fields}\r\n")), &counted());
        let flags = |flags: &str| context(&PARENT.replace("-01", flags)).traceparent().to_string();
        assert!(flags("-00").ends_with("-00") && flags("-ff").ends_with("-01") && flags("-fe").ends_with("-00"));
        let member = format!("a={}", "x".repeat(254));
        let three = context(&format!("{PARENT}\r\ntracestate: {member},{member},b=1"));
        assert_eq!(three.tracestate(), member, "two are a character too long");
        assert_eq!(context(&format!("{PARENT}\r\ntracestate: a=1,b=\u{fc}")).tracestate(), "");
    }
}
