//! Where a VMM has its monitor, and how a command is written to it.

use serde_json::json;

use crate::stream::SocketAddress;

/// The protocol of a monitor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Language {
    /// The QEMU Machine Protocol: JSON.
    Qmp,
    /// The human monitor protocol.
    Hmp,
}

/// The address of a monitor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MonitorAddress {
    /// Its protocol.
    pub language: Language,
    /// Its socket.
    pub socket: SocketAddress,
}

impl MonitorAddress {
    /// All bytes that a client without a parser sends to execute `commands`.
    pub(crate) fn script(&self, commands: &[&str]) -> Vec<u8> {
        let mut words = Vec::new();
        if self.language == Language::Qmp {
            words.extend_from_slice(b"{\"execute\":\"qmp_capabilities\"}\n");
        }
        commands.iter().for_each(|command| words.extend(self.line(command)));
        words
    }

    /// The bytes of one command.
    pub(crate) fn line(&self, command: &str) -> Vec<u8> {
        match self.language {
            Language::Hmp => format!("{command}\n").into_bytes(),
            Language::Qmp => {
                let arguments = json!({ "command-line": command });
                format!("{}\n", json!({ "execute": "human-monitor-command", "arguments": arguments })).into_bytes()
            }
        }
    }
}
