//! Small traces made by hand.

use glass_profiler_core::trace::model::*;

/// A millisecond of two tasks on a core: "reader" (7) waits from 100 to 600 us for a request to "disk 0" of 120 to 560 us, "writer"
/// (8) runs in between and waits from 700 us on for a timer. A message lies at 300 us, a counter steps.
pub fn two_tasks() -> Trace {
    let us = 1_000;
    let names = ["", "reader", "writer", "disk 0", "tick", "bytes", "app::main", "upload"];
    let poll = |task, start_ns, end_ns| Poll { task, core: 0, start_ns, end_ns, is_last: false, is_cut: false };
    Trace {
        start_ns: 0,
        end_ns: 1_000 * us,
        names: names.map(String::from).to_vec(),
        cores: vec![Core { name: "core 0".into() }],
        tasks: vec![
            Task { number: 7, name: 1, ..Task::default() },
            Task { number: 8, name: 2, parent: Some(0), ..Task::default() },
        ],
        polls: vec![poll(0, 0, 100 * us), poll(1, 200 * us, 700 * us), poll(0, 710 * us, 1_000 * us)],
        waits: vec![
            Wait {
                task: 0,
                start_ns: 100 * us,
                end_ns: 710 * us,
                woken_ns: Some(560 * us),
                first_reason: 0,
                reason_count: 1,
                wake: Some(0),
                is_cut: false,
            },
            Wait {
                task: 1,
                start_ns: 700 * us,
                end_ns: 1_000 * us,
                first_reason: 1,
                reason_count: 1,
                is_cut: true,
                ..Wait::default()
            },
        ],
        reasons: vec![
            Reason { kind: BlockKind::Request, name: 3, object: 41 },
            Reason { kind: BlockKind::Timer, name: 4, object: 0 },
        ],
        wakes: vec![Wake { time_ns: 560 * us, core: 0, task: 0, cause: Cause::Request(0) }],
        idles: vec![Idle {
            interval: Interval { core: 0, start_ns: 100 * us, end_ns: 190 * us },
            source: WakeSource::Device,
            device: 3,
        }],
        devices: vec![Device { name: 3 }],
        requests: vec![Request {
            device: 0,
            number: 41,
            operation: Operation::Read,
            bytes: 4_096,
            depth: 1,
            submit_ns: 120 * us,
            complete_ns: Some(560 * us),
            has_failed: false,
            task: Some(0),
        }],
        counters: vec![Counter {
            name: 5,
            is_gauge: true,
            points: vec![(100 * us, 5), (500 * us, -3), (800 * us, 12)],
        }],
        messages: vec![Message {
            time_ns: 300 * us,
            task: Some(1),
            level: 3,
            place: 6,
            text: "hello there".into(),
            fields: vec![(5, Value::Unsigned(12))],
            ..Message::default()
        }],
        event_count: 20,
        ..Trace::default()
    }
}

/// `two_tasks` with calls: while the reader runs first, "outer" (10 to 90 us) calls "inner" (20 to 60 us), and outside of any
/// task "poll" runs from 110 to 115 us. The writer wakes the reader at 650 us. The disk is notified at 121 us; "net" sends from 130 to
/// 140 us; a connection was open before, another is from 300 to 900 us and has a segment at 400 us; groups are switched at 0 and 950 us.
pub fn with_calls() -> Trace {
    let us = 1_000;
    let mut trace = two_tasks();
    let function = |name: &str| Function { name: name.into(), library: "app".into(), ..Function::default() };
    trace.functions = ["app::outer", "app::inner", "app::poll"].map(function).to_vec();
    let call = |function, start_us: u64, end_us: u64| Call {
        function,
        start_ns: start_us * us,
        end_ns: end_us * us,
        ..Call::default()
    };
    trace.calls = vec![
        Call { task: Some(0), ..call(0, 10, 90) },
        Call { task: Some(0), parent: Some(0), depth: 1, ..call(1, 20, 60) },
        call(2, 110, 115),
    ];
    trace.wakes.push(Wake { time_ns: 650 * us, core: 0, task: 0, cause: Cause::Task(1) });
    trace.names.push("net".into());
    trace.devices.push(Device { name: trace.names.len() as u32 - 1 });
    trace.requests.push(Request {
        device: 1,
        number: 77,
        operation: Operation::Transmit,
        submit_ns: 130 * us,
        complete_ns: Some(140 * us),
        ..trace.requests[0]
    });
    trace.kicks = vec![Kick { time_ns: 121 * us, took_ns: None, core: 0, device: 0, task: Some(1) }];
    let connection = |number, start_ns, end_ns| Connection {
        known_ns: Option::unwrap_or(start_ns, 0),
        number,
        remote: 0x0a00_0002,
        local_port: 8080,
        remote_port: 50_000 + number as u16,
        start_ns,
        end_ns,
        last_ns: 0,
    };
    trace.connections = vec![connection(4, None, None), connection(5, Some(300 * us), Some(900 * us))];
    trace.segments = vec![Segment {
        time_ns: 400 * us,
        core: 0,
        connection: 1,
        direction: Direction::In,
        flags: 24,
        sequence: 1,
        acknowledgement: 1,
        bytes: 100,
        window: 65_535,
    }];
    let switch = |time_ns, groups| Switch { time_ns, core: 0, groups };
    trace.switches = vec![switch(0, 1 | 2), switch(950 * us, 0)];
    trace
}

/// `two_tasks` with these for names, texts and fields, indices that lead nowhere, and times out of order.
pub fn hostile(texts: &[&str]) -> Trace {
    let mut trace = two_tasks();
    let text = |index: usize| texts[index % texts.len()].to_string();
    for (index, name) in trace.names.iter_mut().enumerate() {
        *name = text(index);
    }
    trace.cores[0].name = text(3);
    trace.warnings = texts.iter().map(|text| text.to_string()).collect();
    for index in 0..200_u32 {
        let at = u64::from(index) * 7_919 % 1_200_000;
        trace.messages.push(Message {
            time_ns: at,
            core: index,
            task: Some(index),
            span: Some(index),
            level: index as u8,
            place: index,
            text: text(index as usize),
            fields: vec![(index, Value::Text(text(index as usize + 1))), (1, Value::Float(f64::NAN))],
        });
        trace.polls.push(Poll {
            task: index,
            core: index,
            start_ns: at,
            end_ns: at.wrapping_sub(5),
            ..Poll::default()
        });
        trace.waits.push(Wait {
            task: index,
            start_ns: at,
            end_ns: u64::MAX - u64::from(index),
            woken_ns: Some(at / 2),
            first_reason: u32::MAX - index,
            reason_count: u32::MAX,
            wake: Some(index),
            is_cut: true,
        });
        trace.wakes.push(Wake { time_ns: at, core: index, task: index, cause: Cause::Interrupt(index) });
        trace.functions.push(Function {
            name: text(index as usize),
            file: Some(text(1)),
            line: Some(index),
            library: text(2),
        });
        trace.calls.push(Call {
            function: index,
            core: index % 2,
            depth: index * 1_000,
            parent: Some(index + 1),
            start_ns: at,
            end_ns: 0,
            ..Call::default()
        });
        trace.spans.push(Span {
            number: u64::MAX,
            name: index,
            parent: Some(index),
            start_ns: at,
            end_ns: Some(at / 3),
            ..Span::default()
        });
        trace.span_visits.push(SpanVisit {
            span: index,
            interval: Interval { core: index, start_ns: at, end_ns: at },
            task: Some(index),
        });
        trace.requests.push(Request {
            device: index,
            number: u64::MAX,
            bytes: u32::MAX,
            complete_ns: Some(at / 2),
            submit_ns: at,
            task: Some(index),
            ..trace.requests[0]
        });
        trace.segments.push(Segment {
            time_ns: at,
            core: index,
            connection: index,
            direction: Direction::Again,
            flags: u16::MAX,
            sequence: u32::MAX,
            acknowledgement: 1,
            bytes: u32::MAX,
            window: 0,
        });
        trace.losses.push(Loss { interval: Interval { core: index, start_ns: at, end_ns: at / 2 }, events: u64::MAX });
        trace.interrupts.push(Interrupt { time_ns: at, core: index % 3, device: index, vector: u64::MAX });
    }
    trace.connections.push(Connection::default());
    trace.counters.push(Counter {
        name: 99,
        is_gauge: true,
        points: vec![(5, i64::MIN), (3, i64::MAX), (u64::MAX, 0)],
    });
    trace
}
