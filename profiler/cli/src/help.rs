//! The help of `glass` itself: commands in groups, by what a user wants to do.

use clap::Command;

use crate::console;

/// The groups, with their commands in the order in which one needs them.
const GROUPS: [(&str, &[&str]); 5] = [
    ("Profile a VM or a process that runs", &["ps", "top", "record", "stacks", "trace", "tail", "dump", "agent"]),
    ("Read a recording", &["report", "diff", "export", "info", "import"]),
    ("Write and run a service", &["new", "build", "run", "snapshot", "queue"]),
    ("Test what a service keeps", &["powercut"]),
    ("Set up", &["completions", "man", "help"]),
];
const EXAMPLES: &str = "Examples:
  glass record --open -- ./program          Sample a program, and open its flame graph
  glass top -p PID                          Where a VM or a process spends its time, live
  glass ps -p PID                           The processes of a Linux VM, from outside
  glass stacks -p PID --blocked             What each blocked task of a Linux VM waits for
  glass new shop && cd shop && glass run    A service of your own, as a VM

Exit status: 0 success; 1 failure, with one line on standard error; 2 wrong arguments.
`glass run` returns that of the service.";
/// Columns that the help fits.
const WIDTH: usize = 100;

/// The command with its help in groups.
pub fn grouped(command: Command) -> Command {
    let template = format!(
        "{{about}}\n\n{{usage-heading}} {{usage}}\n\n{}Options:\n{{options}}\n\n{EXAMPLES}\n",
        commands(&command)
    );
    command.help_template(template)
}

fn commands(command: &Command) -> String {
    let width = GROUPS.iter().flat_map(|(_, names)| *names).map(|name| name.len()).max().unwrap_or(0);
    let mut out = String::new();
    for (title, names) in GROUPS {
        out.push_str(&format!("{title}:\n"));
        for name in names {
            let about = command.find_subcommand(name).and_then(Command::get_about).map(ToString::to_string);
            // clap adds this one when it parses.
            let about = about.unwrap_or_else(|| "Prints the help of a command".to_owned());
            let mut label = *name;
            for line in console::wrap(&about, WIDTH - width - 4) {
                out.push_str(&format!("  {label:<width$}  {line}\n"));
                label = "";
            }
        }
        out.push('\n');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory as _;

    #[test]
    fn every_command_is_in_one_group_or_hidden() {
        let command = crate::Arguments::command();
        let grouped: Vec<&str> = GROUPS.iter().flat_map(|(_, names)| *names).copied().collect();
        for command in command.get_subcommands().filter(|command| !command.is_hide_set()) {
            let count = grouped.iter().filter(|name| **name == command.get_name()).count();
            assert_eq!(count, 1, "{}", command.get_name());
        }
        for name in grouped.iter().filter(|name| **name != "help") {
            let found = command.find_subcommand(name).unwrap_or_else(|| panic!("there is no command {name}"));
            assert!(!found.is_hide_set(), "{name}");
        }
    }

    #[test]
    fn the_options_of_run_for_qemu_have_a_heading_of_their_own() {
        let mut command = crate::Arguments::command();
        // Of every command, that no two options or groups have one name.
        command.clone().debug_assert();
        let help = command.find_subcommand_mut("run").expect("it is there").render_help().to_string();
        let (_, qemu) = help.split_once("\nQEMU:\n").expect("it has the heading");
        let qemu = qemu.split_once("\n\n").map_or(qemu, |(qemu, _)| qemu);
        let options: Vec<&str> =
            qemu.lines().filter_map(|line| line.trim().strip_prefix("--")?.split(' ').next()).collect();
        assert_eq!(options, ["accel", "machine", "bus", "qemu-firmware", "gic", "print-command"]);
    }

    #[test]
    fn the_help_fits_and_has_every_group() {
        let help = grouped(crate::Arguments::command()).render_help().to_string();
        assert!(GROUPS.iter().all(|(title, _)| help.contains(title)), "{help}");
        assert!(help.contains("--version") && help.contains("Exit status"), "{help}");
        let long: Vec<&str> = help.lines().filter(|line| line.chars().count() > WIDTH).collect();
        assert!(long.is_empty(), "{long:?}");
    }
}
