//! From a service's function to a process.

use crate::options::{Options, OptionsError, help};
use crate::platform::LinuxPlatform;
use crate::trace;
use glass_api::{NetError, Port};
use std::error::Error;
use std::fmt;
use std::io::{self, Write};
use std::process::ExitCode;

/// The service failed.
const FAILED: u8 = 1;
/// The command line, or a resource that it names, was unusable.
const UNUSABLE: u8 = 2;

/// Runs `serve` as this process, with the options of its command line. `name` is the service's name
/// for messages. A failure is one sentence on standard error: exit code 1 when the service failed,
/// 2 when it could not be started.
pub fn main<F>(name: &str, serve: impl FnOnce(LinuxPlatform) -> F) -> ExitCode
where
    F: Future<Output = Result<(), Box<dyn Error>>> + 'static,
{
    let options = match Options::parse(std::env::args_os().skip(1)) {
        Ok(options) => options,
        Err(OptionsError::Help) => {
            // A reader that closes the pipe early is not an error.
            let _ = io::stdout().write_all(help(name).as_bytes());
            return ExitCode::SUCCESS;
        }
        Err(error) => return fail(name, &error, UNUSABLE),
    };
    let traced = trace::wanted_groups().map(trace::start);
    match traced {
        Ok(Ok(())) => (),
        Ok(Err(error)) => report(name, format_args!("this runs without a trace: {error}")),
        Err(error) => {
            report(name, format_args!("{error}"));
            return ExitCode::from(UNUSABLE);
        }
    }
    let platform = match LinuxPlatform::new(&options) {
        Ok(platform) => platform,
        Err(error) => return fail(name, &error, UNUSABLE),
    };
    let outcome = platform.run(serve(platform.clone()));
    platform.end();
    match outcome {
        Ok(Ok(())) => ExitCode::SUCCESS,
        Ok(Err(error)) => fail(name, &*error, FAILED),
        Err(error) => fail(name, &error, FAILED),
    }
}

fn fail(name: &str, error: &(dyn Error + 'static), code: u8) -> ExitCode {
    let advice = match error.downcast_ref::<NetError>() {
        Some(NetError::PortInUse(Port::Tcp(port))) => {
            format!(": stop the process that listens there (`ss -ltnp sport = :{port}` names it) or take another port")
        }
        Some(NetError::Host(errno)) => {
            let meaning = io::Error::from_raw_os_error(*errno);
            let low_port = "; ports below 1024 are for root, take another one";
            format!(", {meaning}{}", if meaning.kind() == io::ErrorKind::PermissionDenied { low_port } else { "" })
        }
        _ => String::new(),
    };
    report(name, format_args!("{error}{advice}"));
    ExitCode::from(code)
}

fn report(name: &str, what: fmt::Arguments) {
    // When standard error is closed, an error cannot be reported.
    let _ = writeln!(io::stderr(), "{name}: {what}");
}
