//! A console (virtio 1.2, section 5.3), one port of it: text to the host, and input from it.
//!
//! Writing never waits. Text is gathered in a buffer that is sent when it is full or at the next
//! kick; when the host does not read and all buffers are under way, text is dropped. Who
//! would rather wait asks [`Console::has_room`] first, says [`Console::want_room`] and hears of it
//! from [`Console::take_room`].

use crate::Driver;
use crate::console_input::{INPUT_BUFFERS, Input};
use crate::console_output::Output;
use crate::console_port::{self, Control};
use crate::dma::Dma;
use crate::error::{Lie, SetupError};
use crate::queue::QueueOptions;
use crate::session::Session;
use crate::transport::{self, Transport, device, feature};

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
pub struct Console<T: Transport> {
    session: Session<T>,
    output: Output,
    input: Input,
    control: Option<Control>,
}

impl<T: Transport> Console<T> {
    /// Starts the console behind `transport`.
    pub fn new(mut transport: T, dma: &impl Dma, config: ConsoleConfig) -> Result<Console<T>, SetupError> {
        let ports = if config.port == 0 { 0 } else { feature::CONSOLE_MULTIPORT };
        let features = transport::negotiate(&mut transport, device::CONSOLE, feature::EVENT_IDX | ports, ports)?;
        let event_idx = features & feature::EVENT_IDX != 0;
        // The receive queue is set up even if no input is wanted: some devices insist on both.
        let (receive_queue, transmit_queue) = console_port::queues(config.port);
        let options = QueueOptions { size: INPUT_BUFFERS, event_idx, table_entries: 0 };
        let input = Input::new(&mut transport, dma, receive_queue, options)?;
        let buffers = (config.buffers, config.buffer_bytes);
        let output = Output::new(&mut transport, dma, transmit_queue, event_idx, buffers)?;
        let control = match config.port {
            0 => None,
            port => Some(Control::new(&mut transport, dma, port, event_idx)?),
        };
        let mut console = Console { session: Session::new(transport), output, input, control };
        if config.receive {
            console.input.open();
        }
        transport::go(&mut console.session.transport);
        if let Some(control) = &mut console.control {
            control.open(&mut console.session.transport);
        }
        console.kick();
        Ok(console)
    }

    /// Says what the trace calls the console: a number of `glass_trace::intern`.
    pub fn set_trace_name(&mut self, name: u32) {
        self.output.name = name;
    }

    /// Whether [`Console::write`] takes `bytes` bytes now, or if that is more than there ever is room for, whether
    /// everything is free. True for a console that does not work: it drops what it gets.
    pub fn has_room(&mut self, bytes: usize) -> bool {
        self.output.has_room(bytes) || self.lie().is_some()
    }

    /// Asks to hear when the host has read something: [`Driver::poll`] then tells of progress, [`Driver::arm`] asks
    /// for an interrupt, and [`Console::take_room`] answers once.
    pub fn want_room(&mut self) {
        self.output.want_room();
    }

    /// Whether the host has read something since [`Console::want_room`], or never will. True once.
    pub fn take_room(&mut self) -> bool {
        self.output.take_room()
    }

    /// Why the console is not used any more, if that is so.
    pub fn lie(&self) -> Option<Lie> {
        self.output.queue.lie().or(self.input.queue.lie())
    }

    /// Takes as much of `text` as there is room for and tells how much. The host gets it at the next kick.
    pub fn write(&mut self, text: &[u8]) -> usize {
        self.output.write(text)
    }

    /// Copies input into `bytes` and tells how much; 0 when there is none.
    pub fn read(&mut self, bytes: &mut [u8]) -> usize {
        self.input.read(bytes)
    }

    /// Sends everything and looks up to `looks` times whether the host has taken it. For the last
    /// words of a VM: it spins. Returns whether the host has everything.
    pub fn drain(&mut self, looks: usize) -> bool {
        self.kick();
        for _ in 0..looks {
            self.output.reap();
            if self.output.queue.in_flight() == 0 || self.output.queue.lie().is_some() {
                break;
            }
            core::hint::spin_loop();
        }
        self.output.queue.in_flight() == 0
    }

    fn check(&mut self) -> bool {
        let Some(lie) = self.lie() else { return true };
        self.output.queue.break_with(lie);
        self.input.queue.break_with(lie);
        self.end();
        false
    }

    fn end(&mut self) {
        let Console { session, output, input, control } = self;
        session.end(|| {
            output.leak();
            input.leak();
            if let Some(control) = control {
                control.leak();
            }
        });
    }
}

impl<T: Transport> Driver for Console<T> {
    fn poll(&mut self) -> bool {
        if !self.check() {
            self.output.end_wait();
            return self.output.room_came();
        }
        self.output.reap_if_wanted();
        self.input.has_input() || self.output.room_came()
    }

    fn kick(&mut self) {
        self.output.send_current();
        let is_told = self.output.queue.kick(&mut self.session.transport);
        if self.input.queue.kick(&mut self.session.transport) | is_told {
            glass_trace::kick(self.output.name);
        }
    }

    fn arm(&mut self) -> bool {
        if let Some(lie) = self.session.check_alive() {
            self.output.queue.break_with(lie);
        }
        if !self.check() {
            return self.output.wants_room() || self.output.room_came();
        }
        let has_room = self.output.wants_room() && self.output.queue.arm();
        self.input.queue.arm() || self.input.has_input() || has_room || self.output.room_came()
    }

    fn disarm(&mut self) {
        self.output.queue.disarm();
        self.input.queue.disarm();
    }

    fn acknowledge_interrupt(&mut self) {
        self.session.acknowledge_interrupt(self.input.queue.has_used() || self.output.queue.has_used());
    }
}

impl<T: Transport> Drop for Console<T> {
    fn drop(&mut self) {
        self.end();
    }
}
