//! Answers to requests that failed: problem details (RFC 9457).

use crate::json::push_string;
use crate::limits::RETRY_AFTER_SECS;
use alloc::boxed::Box;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt::Write;
use core::pin::Pin;
use glasshouse::http::{Connection, HttpError, Response, Status};
use glasshouse::{Clock, Stream};

/// Why a request failed: its answer. The type of most problems is `about:blank`: the status states the class, `detail` the reason.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Problem {
    pub(crate) status: Status,
    pub(crate) detail: String,
    fields: Vec<(&'static str, String)>,
    /// Its type, if it is not `about:blank`.
    kind: Option<&'static str>,
    members: Vec<(&'static str, u64)>,
}

impl Problem {
    /// A status 503 has the time of the next attempt.
    pub(crate) fn new(status: Status, detail: impl Into<String>) -> Problem {
        let problem = Problem { status, detail: detail.into(), fields: Vec::new(), kind: None, members: Vec::new() };
        match status {
            Status::SERVICE_UNAVAILABLE => problem.field("Retry-After", format!("{RETRY_AFTER_SECS}")),
            _ => problem,
        }
    }

    /// Adds a field to the head.
    pub(crate) fn field(mut self, name: &'static str, value: impl Into<String>) -> Problem {
        self.fields.push((name, value.into()));
        self
    }

    /// Sets its type, a URI.
    pub(crate) fn kind(mut self, kind: &'static str) -> Problem {
        self.kind = Some(kind);
        self
    }

    /// Adds a member that its type has.
    pub(crate) fn member(mut self, name: &'static str, value: u64) -> Problem {
        self.members.push((name, value));
        self
    }

    /// Answers the request with it. Boxed, because few requests fail, and the future of each would contain this one.
    #[inline(never)]
    pub(crate) fn send<S: Stream, C: Clock>(
        self,
        connection: &mut Connection<S, C>,
    ) -> Pin<Box<dyn Future<Output = Result<(), HttpError>> + '_>> {
        Box::pin(async move {
            let mut response = Response::new(self.status).header("Content-Type", "application/problem+json");
            for (name, value) in &self.fields {
                response = response.header(name, value);
            }
            connection.respond(response, self.json().as_bytes()).await
        })
    }

    fn json(&self) -> String {
        let Status(code) = self.status;
        let mut text = format!("{{\"status\":{code},\"title\":\"{}\",\"detail\":", self.status.reason());
        push_string(&mut text, &self.detail);
        // A `String` never fails to be written to.
        if let Some(kind) = self.kind {
            let _ = write!(text, ",\"type\":\"{kind}\"");
        }
        for (name, value) in &self.members {
            let _ = write!(text, ",\"{name}\":{value}");
        }
        text.push_str("}\n");
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_detail_cannot_leave_its_string() {
        let problem = Problem::new(Status::NOT_FOUND, "no '/\"},{\\\n\u{7}é'");
        let expected = "{\"status\":404,\"title\":\"Not Found\",\"detail\":\"no '/\\\"},{\\\\\\u000a\\u0007é'\"}\n";
        assert_eq!(problem.json(), expected);
    }

    #[test]
    fn a_type_may_have_members() {
        let problem = Problem::new(Status::CONFLICT, "x").kind("https://a.example/b").member("c", 1).member("d", 2);
        let expected = "{\"status\":409,\"title\":\"Conflict\",\"detail\":\"x\",\"type\":\"https://a.example/b\",\"c\":1,\"d\":2}\n";
        assert_eq!(problem.json(), expected);
    }

    #[test]
    fn some_statuses_have_a_field_that_helps() {
        assert_eq!(Problem::new(Status::SERVICE_UNAVAILABLE, "").fields, [("Retry-After", "1".into())]);
        assert!(Problem::new(Status::BAD_REQUEST, "").fields.is_empty());
    }
}
