//! The domains of Xen, as `glass ps` shows them in a dom0.

use std::fmt::Write as _;

use glass_profiler_guests::GuestError;
use glass_profiler_guests::find::domains::{self, Domain};
use serde_json::{Value, json};

use super::{NAME_WIDTH_MAX, fit, ram, write_indented};

/// What is to be shown: nothing where there is no Xen.
pub(super) type Domains = Option<Result<Vec<Domain>, GuestError>>;

/// Looks for domains, if this machine runs over Xen.
pub(super) fn find() -> Domains {
    domains::is_xen().then(|| domains::list(false))
}

/// A table of its own, because a domain has no process; a sentence where domains cannot be seen.
pub(super) fn table(domains: &[Domain]) -> String {
    let ids = domains.iter().map(|domain| domain.id.to_string().len()).max().unwrap_or(0).max("DOMAIN".len());
    let names = domains.iter().map(|domain| fit(&domain.name, NAME_WIDTH_MAX)).collect::<Vec<_>>();
    let width = names.iter().map(|name| name.chars().count()).max().unwrap_or(0).max("NAME".len());
    let rams = domains.iter().map(|domain| ram(Some(domain.ram_bytes))).collect::<Vec<_>>();
    let ram_width = rams.iter().map(String::len).max().unwrap_or(0).max("RAM".len());
    let mut out = format!("{:>ids$}  {:<width$}  TYPE  VCPUS  {:>ram_width$}  BACKEND\n", "DOMAIN", "NAME", "RAM");
    for ((domain, name), ram) in domains.iter().zip(names).zip(rams) {
        let (id, kind, vcpus) = (domain.id, domain.kind.to_string(), domain.vcpus);
        // Writing to a string does not fail.
        let _ = writeln!(out, "{id:>ids$}  {name:<width$}  {kind:<4}  {vcpus:>5}  {ram:>ram_width$}  xen");
    }
    out
}

/// The text where there is no table.
pub(super) fn remark(error: &GuestError) -> String {
    let mut out = String::new();
    write_indented(&format!("the domains of Xen cannot be listed: {error}"), &mut out);
    out
}

/// The same for scripts; `null` where there is no Xen, or it cannot be seen.
pub(super) fn to_json(domains: &Domains) -> Value {
    let Some(Ok(domains)) = domains else { return Value::Null };
    let domain = |domain: &Domain| {
        json!({
            "id": domain.id,
            "name": domain.name,
            "type": domain.kind.to_string(),
            "vcpus": domain.vcpus,
            "ram_bytes": domain.ram_bytes,
            "kernel": domain.kernel,
            "backend": "xen",
        })
    };
    domains.iter().map(domain).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use glass_profiler_guests::find::domains::DomainKind;

    fn domain(id: u32, name: &str, kind: DomainKind) -> Domain {
        Domain { id, name: name.to_owned(), kind, vcpus: 2, ram_bytes: 16 << 20, kernel: None }
    }

    #[test]
    fn columns_are_aligned() {
        let domains = [domain(1, "queue", DomainKind::Pvh), domain(12_345, "ü", DomainKind::Pv)];
        let expected = "DOMAIN  NAME   TYPE  VCPUS     RAM  BACKEND\n     1  queue  PVH       2  16 MiB  xen\n 12345  ü      PV        2  16 MiB  xen\n";
        assert_eq!(table(&domains), expected);
        assert!(remark(&GuestError::NotFound("why".to_owned())).contains("cannot be listed: why"));
    }

    #[test]
    fn scripts_see_whether_there_is_a_xen() {
        assert_eq!(to_json(&None), Value::Null);
        assert_eq!(to_json(&Some(Err(GuestError::NotFound(String::new())))), Value::Null);
        let value = to_json(&Some(Ok(vec![domain(1, "queue", DomainKind::Pvh)])));
        assert_eq!((&value[0]["type"], &value[0]["vcpus"]), (&json!("PVH"), &json!(2)));
    }
}
