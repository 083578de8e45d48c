//! A console (virtio 1.2, section 5.3), one port of it: text to the host, and input from it.
//!
//! Writing never waits. Text is gathered in a buffer that is sent when it is full or at the next
//! kick; when the host does not read and all buffers are in flight, text is dropped. A writer that waits
//! instead calls [`Console::has_space`] first, then [`Console::want_space`], and polls
//! [`Console::take_space_freed`].

use crate::console_input::{INPUT_BUFFERS, Input};
use crate::console_output::Output;
use crate::console_port::{self, Control};
use crate::queue::{Queue, QueueOptions, kick_all};
use crate::session::Session;
use crate::transport::{Transport, device, feature};
use glass_drivers_device::{Dma, Driver, SetupError, Violation};

/// How much a console may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConsoleConfig {
    /// Buffers for text to the host, 1 to 64.
    pub buffers: u16,
    /// Size of each.
    pub buffer_bytes: usize,
    /// Whether input from the host is wanted.
    pub receive: bool,
    /// Which port, from 0 on.
    pub port: u16,
}

impl Default for ConsoleConfig {
    fn default() -> ConsoleConfig {
        ConsoleConfig { buffers: 16, buffer_bytes: 1024, receive: false, port: 0 }
    }
}

/// A console. Dropping it resets the device; [`Console::drain`] first to lose nothing.
pub struct Console<T: Transport, D: Dma> {
    session: Session<T>,
    dma: D,
    config: ConsoleConfig,
    port: Port,
}

/// What belongs to one use of the device.
struct Port {
    output: Output,
    input: Input,
    control: Option<Control>,
}

/// Resets the device, agrees on features and makes it run.
fn start<T: Transport>(session: &mut Session<T>, dma: &impl Dma, config: &ConsoleConfig) -> Result<Port, SetupError> {
    let ports = if config.port == 0 { 0 } else { feature::CONSOLE_MULTIPORT };
    let features = session.begin(device::CONSOLE, feature::EVENT_IDX | ports, ports, &[])?;
    let event_idx = features & feature::EVENT_IDX != 0;
    // The receive queue is set up even if no input is wanted: some devices insist on both.
    let (receive_queue, transmit_queue) = console_port::queues(config.port);
    let options = QueueOptions { size: INPUT_BUFFERS, event_idx, table_entries: 0 };
    let input = Input::new(session, dma, receive_queue, options)?;
    let buffers = (config.buffers, config.buffer_bytes);
    let output = Output::new(session, dma, transmit_queue, event_idx, buffers)?;
    let control = match config.port {
        0 => None,
        port => Some(Control::new(session, dma, port, event_idx)?),
    };
    let mut port = Port { output, input, control };
    if config.receive {
        port.input.open();
    }
    session.go();
    if let Some(control) = &mut port.control {
        control.open(&mut session.transport);
    }
    Ok(port)
}

impl<T: Transport, D: Dma> Console<T, D> {
    /// Starts the console behind `transport`.
    pub fn new(transport: T, dma: D, config: ConsoleConfig) -> Result<Console<T, D>, SetupError> {
        let mut session = Session::new(transport);
        let port = start(&mut session, &dma, &config)?;
        let mut console = Console { session, dma, config, port };
        console.kick();
        Ok(console)
    }

    /// Whether [`Console::write`] takes `bytes` bytes now, or if that is more than there ever is room for, whether
    /// everything is free. True for a console that does not work: it drops what it gets.
    pub fn has_space(&mut self, bytes: usize) -> bool {
        self.port.output.has_space(bytes) || self.violation().is_some()
    }

    /// Requests a notice when the host has read something: [`Driver::poll`] then reports progress, [`Driver::arm`] requests
    /// an interrupt, and [`Console::take_space_freed`] answers once.
    pub fn want_space(&mut self) {
        self.port.output.want_space();
    }

    /// Whether the host has read something since [`Console::want_space`], or never will. True once.
    pub fn take_space_freed(&mut self) -> bool {
        self.port.output.take_space_freed()
    }

    /// Takes as much of `text` as there is room for and returns how much. The host gets it at the next kick.
    pub fn write(&mut self, text: &[u8]) -> usize {
        self.port.output.write(text)
    }

    /// Copies input into `bytes` and returns how much; 0 when there is none.
    pub fn read(&mut self, bytes: &mut [u8]) -> usize {
        self.port.input.read(bytes)
    }

    /// Sends everything and polls up to `polls` times whether the host has taken it. For the crash
    /// report of a VM: it spins. Returns whether the host has everything.
    pub fn drain(&mut self, polls: usize) -> bool {
        self.kick();
        for _ in 0..polls {
            self.port.output.reap();
            if self.port.output.queue.in_flight() == 0 || self.port.output.queue.violation().is_some() {
                break;
            }
            core::hint::spin_loop();
        }
        self.port.output.queue.in_flight() == 0
    }

    fn check(&mut self) -> bool {
        let Some(violation) = self.violation() else { return true };
        self.port.output.queue.break_with(violation);
        self.port.input.queue.break_with(violation);
        self.session.end();
        false
    }
}

impl<T: Transport, D: Dma> Driver for Console<T, D> {
    fn poll(&mut self) -> bool {
        if !self.check() {
            self.port.output.end_wait();
            return self.port.output.space_freed();
        }
        self.port.output.reap_if_wanted();
        self.port.input.has_input() || self.port.output.space_freed()
    }

    fn kick(&mut self) -> bool {
        self.port.output.send_current();
        let queues = [&mut self.port.output.queue, &mut self.port.input.queue];
        if let Some(ticks) = kick_all(queues, &mut self.session.transport) {
            glass_lib_trace::kick(self.port.output.name, ticks);
        }
        false
    }

    fn arm(&mut self) -> bool {
        if let Some(violation) = self.session.check_alive() {
            self.port.output.queue.break_with(violation);
        }
        if !self.check() {
            return self.port.output.wants_space() || self.port.output.space_freed();
        }
        let has_space = self.port.output.wants_space() && self.port.output.queue.arm();
        self.port.input.queue.arm() || self.port.input.has_input() || has_space || self.port.output.space_freed()
    }

    fn disarm(&mut self) {
        self.port.output.queue.disarm();
        self.port.input.queue.disarm();
    }

    fn acknowledge(&mut self) {
        let queues = [&self.port.input.queue, &self.port.output.queue];
        self.session.acknowledge(queues.into_iter().any(Queue::explains_interrupt));
    }

    /// The violation that ended the use of the console; `None` while it is used.
    fn violation(&self) -> Option<Violation> {
        self.port.output.queue.violation().or(self.port.input.queue.violation())
    }

    /// Text that the host had not taken is lost. A writer that waits for room need not wait any more.
    fn restart(&mut self) -> Result<(), SetupError> {
        let name = self.port.output.name;
        let waits = self.port.output.wants_space() || self.port.output.space_freed();
        self.port = start(&mut self.session, &self.dma, &self.config)?;
        self.set_trace_name(name);
        if waits {
            self.port.output.want_space();
            self.port.output.end_wait();
        }
        self.kick();
        Ok(())
    }

    fn set_trace_name(&mut self, name: u32) {
        self.port.output.name = name;
    }
}
