//! For any bytes of a client, in any pieces, the server neither panics nor hangs, and every response
//! is whole.

use crate::world::{ask, echo, exchange};
use glass_lib_http::HttpError;
use proptest::prelude::*;

/// Bytes that reach deeper code than noise does: fragments of requests, mixed with noise.
fn fragments() -> impl Strategy<Value = Vec<u8>> {
    let fragment = prop_oneof![
        Just(&b"GET / HTTP/1.1\r\n"[..]),
        Just(&b"PUT /x HTTP/1.1\r\n"[..]),
        Just(&b"HEAD http://a/ HTTP/1.0\r\n"[..]),
        Just(&b"Host: a\r\n"[..]),
        Just(&b"Content-Length: "[..]),
        Just(&b"Content-Length: 3\r\n"[..]),
        Just(&b"Transfer-Encoding: chunked\r\n"[..]),
        Just(&b"Expect: 100-continue\r\n"[..]),
        Just(&b"Connection: keep-alive, close\r\n"[..]),
        Just(&b"18446744073709551615"[..]),
        Just(&b"\r\n"[..]),
        Just(&b"\r\n\r\n"[..]),
        Just(&b"\n"[..]),
        Just(&b"\r"[..]),
        Just(&b" "[..]),
        Just(&b":"[..]),
        Just(&b"abc"[..]),
        Just(&b"\0"[..]),
        Just(&b"\xff"[..]),
    ];
    prop::collection::vec(fragment, 0..24).prop_map(|fragments| fragments.concat())
}

fn check(request: &[u8], piece: usize, ends: bool) -> Result<(), TestCaseError> {
    let outcome = exchange(request, piece, ends, echo);
    let text = &outcome.text;
    prop_assert!(text.is_empty() || text.starts_with("HTTP/1.1 "), "{text:?}");
    if outcome.end.is_ok() && !text.is_empty() {
        prop_assert!(text.contains("\r\n\r\n"), "{text:?}");
    }
    // A head may take 10 s after an idle minute, a body 30 s, lingering 5 s.
    prop_assert!(outcome.took.as_secs() <= 61 * 30, "{:?}", outcome.took);
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn noise_ends(request in prop::collection::vec(any::<u8>(), 0..600), piece in 1usize..80, ends: bool) {
        check(&request, piece, ends)?;
    }

    #[test]
    fn fragments_of_requests_end(request in fragments(), piece in 1usize..80, ends: bool) {
        check(&request, piece, ends)?;
    }

    /// The cuts between pieces change nothing: the incremental search for the end of a head
    /// agrees with a search in the whole.
    #[test]
    fn pieces_do_not_matter(request in fragments(), piece in 1usize..20) {
        // A body in the same piece as its head needs no 100, one in pieces may.
        let strip = |text: String| text.replace("HTTP/1.1 100 Continue\r\n\r\n", "");
        let (whole, pieces) = (ask(request.clone(), usize::MAX), ask(request, piece));
        // The server may have refused a cut head for its first bytes.
        prop_assume!(whole.served != Err(HttpError::HeadCut) && pieces.served != Err(HttpError::HeadCut));
        prop_assert_eq!(whole.served, pieces.served);
        prop_assert_eq!(strip(whole.text), strip(pieces.text));
    }
}
