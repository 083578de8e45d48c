//! Whether a request may do what it wants: its token, and the role of who holds it.

use crate::account::Accounts;
use crate::operator::OperatorFiles;
use crate::problem::Problem;
use crate::reload::{Reload, read_file};
use crate::tokens::{FILE_BYTES_MAX, Grant, Role, Tokens};
use alloc::format;
use alloc::rc::Rc;
use alloc::string::String;
use core::cell::RefCell;
use glasshouse::http::{Request, Status};
use glasshouse::{Files, Platform};

/// In a path, what follows it is a token.
const MARK: &str = "/!";

/// The tokens, from their file.
pub(crate) struct Access {
    path: String,
    tokens: RefCell<Rc<Tokens>>,
    /// Whether this queue alone has the items, and so what each uploader has.
    counts_items: bool,
    pub(crate) accounts: Accounts,
}

/// What a request presents.
pub(crate) enum Holder {
    /// There are no tokens: all may do everything.
    Anyone,
    /// A token of the file.
    Of(Rc<Grant>),
    /// No token.
    None,
    /// A token that the file does not have.
    Unknown,
}

impl Holder {
    /// The name of its token.
    pub(crate) fn name(&self) -> Option<Rc<str>> {
        match self {
            Holder::Of(grant) => Some(grant.name.clone()),
            _ => None,
        }
    }

    /// Fails unless the holder has this role.
    pub(crate) fn check(&self, wanted: Role) -> Result<(), Problem> {
        let challenge =
            |detail, field: &str| Err(Problem::new(Status::UNAUTHORIZED, detail).field("WWW-Authenticate", field));
        match self {
            Holder::Anyone => Ok(()),
            Holder::Of(grant) if grant.role.may(wanted) => Ok(()),
            Holder::Of(grant) => {
                let detail =
                    format!("This is the token of {} {}: the role {wanted} is needed", article(grant.role), grant.role);
                Err(Problem::new(Status::FORBIDDEN, detail))
            }
            Holder::None => {
                challenge("A token is needed: Authorization: Bearer TOKEN", "Bearer realm=\"upload-queue\"")
            }
            Holder::Unknown => {
                challenge("There is no such token", "Bearer realm=\"upload-queue\", error=\"invalid_token\"")
            }
        }
    }
}

fn article(role: Role) -> &'static str {
    if role == Role::Consumer { "a" } else { "an" }
}

impl Access {
    /// Reads the file; an error states the line.
    pub(crate) async fn open(files: &impl Files, path: &str, counts_items: bool) -> Result<Access, String> {
        let tokens = RefCell::new(Rc::new(read(files, path, counts_items).await?));
        Ok(Access { path: path.into(), tokens, counts_items, accounts: Accounts::default() })
    }

    /// How many tokens there are.
    pub(crate) fn count(&self) -> usize {
        self.tokens.borrow().count()
    }

    /// Reads the file again whenever it changes, without end. After an error the tokens of before are valid.
    pub(crate) async fn renew<P: Platform>(self: Rc<Access>, platform: P, mut reload: Reload<OperatorFiles<P>>) {
        loop {
            reload.changed(&platform).await;
            match read(reload.files(), &self.path, self.counts_items).await {
                Ok(tokens) => {
                    self.accounts.retain(tokens.names());
                    *self.tokens.borrow_mut() = Rc::new(tokens);
                    platform.print(format_args!("upload-queue: {} tokens are valid now", self.count()));
                }
                Err(error) => platform.print(format_args!("upload-queue: the tokens of before are valid: {error}")),
            }
        }
    }

    fn find(&self, token: &[u8]) -> Option<Rc<Grant>> {
        self.tokens.borrow().find(token)
    }
}

/// The path of a request without its token, and who sends it. A path with a token that does not exist is returned whole: there is no such
/// path.
#[inline(never)]
pub(crate) fn holder<'a>(access: Option<&Access>, request: &'a Request) -> (&'a str, Holder) {
    let Some(access) = access else { return (request.path(), Holder::Anyone) };
    if let Some((path, token)) = request.path().split_once(MARK) {
        return match access.find(token.as_bytes()) {
            Some(grant) => (path, Holder::Of(grant)),
            None => (request.path(), Holder::Unknown),
        };
    }
    let holder = match request.header("Authorization").map(bearer) {
        None => Holder::None,
        Some(token) => token.and_then(|token| access.find(token)).map_or(Holder::Unknown, Holder::Of),
    };
    (request.path(), holder)
}

/// The end of a path with the token in it, with its mark; empty if there is none.
pub(crate) fn token_in_path(request: &Request) -> &str {
    request.path().find(MARK).map_or("", |place| &request.path()[place..])
}

/// The token of a field Authorization (RFC 6750, section 2.1).
fn bearer(field: &[u8]) -> Option<&[u8]> {
    let (scheme, token) = field.split_at_checked(b"Bearer ".len())?;
    scheme.eq_ignore_ascii_case(b"Bearer ").then(|| token.trim_ascii())
}

async fn read(files: &impl Files, path: &str, counts_items: bool) -> Result<Tokens, String> {
    let bytes = read_file(files, path, FILE_BYTES_MAX).await?;
    let tokens = Tokens::parse(&bytes).map_err(|error| format!("{path}, {error}"))?;
    if tokens.have_quotas() && !counts_items {
        return Err(format!(
            "{path}: a quota (bytes=) needs items on a disk: an engine is filled by other queues, too"
        ));
    }
    Ok(tokens)
}
