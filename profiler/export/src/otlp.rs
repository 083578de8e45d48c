//! OpenTelemetry's protocol, as the body of a request to a collector: spans of a trace (`/v1/traces`), and samples (`/v1development/profiles`, which
//! is experimental).
//!
//! The messages are those of the crate `opentelemetry-proto`. A body is made in memory: a collector takes some megabytes at most.

pub(crate) mod profiles;
pub(crate) mod traces;

use glass_profiler_core::names::printable;
use glass_profiler_core::recording::Recording;
use glass_profiler_core::trace::model::Value;
use opentelemetry_proto::tonic::common::v1::any_value::Value as Any;
use opentelemetry_proto::tonic::common::v1::{AnyValue, InstrumentationScope, KeyValue};
use opentelemetry_proto::tonic::resource::v1::Resource;

use crate::Options;
use crate::chains::title;

/// What has recorded.
fn scope() -> InstrumentationScope {
    InstrumentationScope {
        name: "glass".to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        ..InstrumentationScope::default()
    }
}

/// What was recorded: the attributes of the options, and where these are not among them its name and its host.
fn resource(recording: &Recording, options: Options<'_>) -> Resource {
    let profile = &recording.profile;
    let name = profile.guests.first().map(|guest| printable(&guest.name)).filter(|name| !name.is_empty());
    let mut attributes: Vec<KeyValue> =
        options.attributes.iter().map(|(key, value)| attribute(key, text(value))).collect();
    let defaults =
        [("service.name", name.unwrap_or_else(|| title(profile))), ("host.name", printable(&profile.origin.host))];
    for (key, value) in defaults {
        if !options.attributes.iter().any(|(given, _)| given == key) {
            attributes.push(attribute(key, Any::StringValue(value)));
        }
    }
    Resource { attributes, ..Resource::default() }
}

fn attribute(key: &str, value: Any) -> KeyValue {
    KeyValue { key: key.to_owned(), value: Some(any(value)), ..KeyValue::default() }
}

fn any(value: Any) -> AnyValue {
    AnyValue { value: Some(value) }
}

fn text(text: &str) -> Any {
    Any::StringValue(text.to_owned())
}

/// The format's numbers have a sign: a larger one is a text.
fn number(number: u64) -> Any {
    i64::try_from(number).map_or_else(|_| Any::StringValue(number.to_string()), Any::IntValue)
}

fn value(value: &Value) -> Any {
    match value {
        Value::Unsigned(unsigned) => number(*unsigned),
        Value::Signed(signed) => Any::IntValue(*signed),
        Value::Bool(flag) => Any::BoolValue(*flag),
        Value::Float(float) => Any::DoubleValue(*float),
        Value::Text(said) => text(said),
    }
}
