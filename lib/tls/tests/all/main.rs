//! TLS between simulated machines: what arrives, what is refused, and that each wait has an end.

mod certificates;
mod exchange;
mod hostile;
mod site;
