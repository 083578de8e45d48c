//! A headless Chromium, driven over its debugging protocol: real clicks, real keys, and a record of
//! everything that the page logged or requested from the network.
//!
//! The protocol runs over the browser's standard input and output, so no port is open, and a browser
//! whose test was killed ends by itself. Every wait has a limit. To start a browser takes longer than most tests, so
//! one that a test is done with serves the next, which gets a context (cookies, storage) of its own.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use glass_tests::programs::CHROMIUM;
use serde_json::{Value, json};

/// For one answer; the first includes the browser's start.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(240);
const CONDITION_TIMEOUT: Duration = Duration::from_secs(120);
const END_TIMEOUT: Duration = Duration::from_secs(5);

/// A browser's process and the two ends of its protocol.
struct Engine {
    process: Child,
    input: ChildStdin,
    messages: Receiver<String>,
    folder: PathBuf,
    last_id: u64,
}

/// Browsers that are running and have no page. At the end of the program their input closes, and they end.
static IDLE: Mutex<Vec<Engine>> = Mutex::new(Vec::new());

/// A page in a browser.
pub struct Browser {
    /// There until it is dropped.
    engine: Option<Engine>,
    session: String,
    context: Value,
    /// Console messages, exceptions, violations of the content security policy.
    pub complaints: Vec<String>,
    /// Addresses that were requested.
    pub requests: Vec<String>,
}

/// The browser's program, or `None` with a printed reason.
fn program() -> Option<PathBuf> {
    if let Some(named) = std::env::var_os("GLASS_CHROMIUM") {
        return Some(named.into());
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path)
        .flat_map(|folder| ["chromium", "chromium-browser", "google-chrome"].map(|name| folder.join(name)))
        .find(|program| program.is_file());
    if found.is_none() {
        let reason = "there is no chromium in PATH (apt-get install chromium, or set GLASS_CHROMIUM)";
        assert!(std::env::var_os("GLASS_TESTS_REQUIRED").is_none(), "{reason}");
        glass_tests::programs::skip(reason);
    }
    found
}

impl Browser {
    /// Starts a browser that shows a page, or returns `None` where there is none to start.
    pub fn open(html: &str) -> Option<Browser> {
        Browser::open_at(html, "")
    }

    /// The same with an address that ends in `hash`, which is empty or begins with `#`.
    pub fn open_at(html: &str, hash: &str) -> Option<Browser> {
        let idle = IDLE.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let engine = match idle {
            Some(engine) => engine,
            None => Engine::start()?,
        };
        let mut browser = Browser {
            engine: Some(engine),
            session: String::new(),
            context: Value::Null,
            complaints: Vec::new(),
            requests: Vec::new(),
        };
        browser.attach();
        browser.show_at(html, hash);
        Some(browser)
    }

    /// Makes a page that shows nothing yet.
    fn attach(&mut self) {
        self.context = self.call("Target.createBrowserContext", json!({}))["browserContextId"].clone();
        let blank = json!({"url": "about:blank", "browserContextId": self.context});
        let target = self.call("Target.createTarget", blank);
        let attached = self.call("Target.attachToTarget", json!({"targetId": target["targetId"], "flatten": true}));
        self.session = attached["sessionId"].as_str().expect("a session has a name").to_string();
        for domain in ["Page", "Runtime", "Network", "Log"] {
            self.call(&format!("{domain}.enable"), json!({}));
        }
        self.resize(1280, 900);
    }

    /// Shows a page at an address that ends in `hash`.
    pub fn show_at(&mut self, html: &str, hash: &str) {
        let page = self.engine.as_ref().expect("there until it is dropped").folder.join("report.html");
        std::fs::write(&page, html).expect("the page can be written");
        self.call("Page.navigate", json!({"url": format!("file://{}{hash}", page.display())}));
        self.wait_for("document.readyState === 'complete' && location.protocol === 'file:'");
    }

    pub fn resize(&mut self, width: u32, height: u32) {
        let metrics = json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": false});
        self.call("Emulation.setDeviceMetricsOverride", metrics);
    }

    pub fn prefer(&mut self, colours: &str) {
        let features = json!({"features": [{"name": "prefers-color-scheme", "value": colours}]});
        self.call("Emulation.setEmulatedMedia", features);
    }

    /// What an expression is worth in the page.
    pub fn eval(&mut self, expression: &str) -> Value {
        let answer = self.call("Runtime.evaluate", json!({"expression": expression, "returnByValue": true}));
        assert!(answer.get("exceptionDetails").is_none(), "{expression}: {answer}");
        answer["result"]["value"].clone()
    }

    /// What a promise brings.
    pub fn eval_async(&mut self, expression: &str) -> Value {
        let parameters = json!({"expression": expression, "returnByValue": true, "awaitPromise": true});
        let answer = self.call("Runtime.evaluate", parameters);
        assert!(answer.get("exceptionDetails").is_none(), "{expression}: {answer}");
        answer["result"]["value"].clone()
    }

    /// The rows of a table: a function's full name, and the numbers of its first columns, self and total.
    pub fn rows(&mut self, table: &str) -> Vec<(String, u64, u64)> {
        while self.eval(&format!("document.querySelector('{table} .more').hidden")) == json!(false) {
            self.click(&format!("{table} .more"));
        }
        let rows = self.eval(&format!(
            "[...document.querySelectorAll('{table} tbody tr')].map((row) => [row.querySelector('.name button').title, \
             ...[...row.querySelectorAll('.count')].map((cell) => Number(cell.textContent.replaceAll(',', '')))])"
        ));
        serde_json::from_value(rows).expect("rows of a name and two numbers")
    }

    pub fn text(&mut self, selector: &str) -> String {
        let text = self.eval(&format!("document.querySelector({selector:?}).textContent"));
        text.as_str().expect("an element has text").to_string()
    }

    pub fn wait_for(&mut self, condition: &str) {
        let started = Instant::now();
        while self.eval(&format!("Boolean({condition})")) != json!(true) {
            assert!(
                started.elapsed() < CONDITION_TIMEOUT,
                "{condition} did not come true; said: {:?}",
                self.complaints
            );
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Where an element is, in sight: left, top, width, height.
    pub fn place(&mut self, selector: &str) -> [f64; 4] {
        let script = format!(
            "(() => {{ const e = document.querySelector({selector:?}); e.scrollIntoView({{block: 'nearest', behavior: 'instant'}}); \
             const r = e.getBoundingClientRect(); return [r.left, r.top, r.width, r.height]; }})()"
        );
        let place = self.eval(&script);
        std::array::from_fn(|index| place[index].as_f64().expect("a place is made of numbers"))
    }

    /// Clicks on an element once nothing lies over its centre: what has just been opened may not be laid out yet.
    pub fn click(&mut self, selector: &str) {
        self.wait_for(&format!(
            "(() => {{ const e = document.querySelector({selector:?}); if (!e) return false; \
             e.scrollIntoView({{block: 'nearest', behavior: 'instant'}}); const r = e.getBoundingClientRect(); \
             const hit = document.elementFromPoint(r.left + r.width / 2, r.top + r.height / 2); \
             return hit && (e.contains(hit) || hit.closest('label')?.contains(e)); }})()"
        ));
        // It may still move while what was opened around it is laid out.
        let mut place = self.place(selector);
        loop {
            self.eval_async("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done(0))))");
            let before = std::mem::replace(&mut place, self.place(selector));
            if place == before {
                break;
            }
        }
        let [left, top, width, height] = place;
        self.click_at(left + width / 2.0, top + height / 2.0);
    }

    pub fn hover_at(&mut self, x: f64, y: f64) {
        self.mouse("mouseMoved", x, y, 0);
    }

    pub fn click_at(&mut self, x: f64, y: f64) {
        self.mouse("mouseMoved", x, y, 0);
        self.mouse("mousePressed", x, y, 1);
        self.mouse("mouseReleased", x, y, 1);
    }

    pub fn double_click_at(&mut self, x: f64, y: f64) {
        self.click_at(x, y);
        self.mouse("mousePressed", x, y, 2);
        self.mouse("mouseReleased", x, y, 2);
    }

    pub fn shift_click_at(&mut self, x: f64, y: f64) {
        for kind in ["mousePressed", "mouseReleased"] {
            self.call(
                "Input.dispatchMouseEvent",
                json!({"type": kind, "x": x, "y": y, "button": "left", "buttons": 1, "clickCount": 1, "modifiers": 8}),
            );
        }
    }

    pub fn wheel(&mut self, x: f64, y: f64, across: f64, down: f64) {
        self.call(
            "Input.dispatchMouseEvent",
            json!({"type": "mouseWheel", "x": x, "y": y, "deltaX": across, "deltaY": down, "button": "none"}),
        );
    }

    /// Two fingers, put down at two places of a height and moved apart to two others.
    pub fn pinch(&mut self, y: f64, from: [f64; 2], to: [f64; 2]) {
        let points = |x: [f64; 2]| json!([{"x": x[0], "y": y, "id": 0}, {"x": x[1], "y": y, "id": 1}]);
        for (kind, touches) in [("touchStart", points(from)), ("touchMove", points(to)), ("touchEnd", json!([]))] {
            self.call("Input.dispatchTouchEvent", json!({"type": kind, "touchPoints": touches}));
        }
    }

    /// Presses at one place, moves to another in steps, and lets go.
    pub fn drag(&mut self, from: (f64, f64), to: (f64, f64)) {
        self.mouse("mouseMoved", from.0, from.1, 0);
        self.mouse("mousePressed", from.0, from.1, 1);
        for step in 1..=6 {
            let part = f64::from(step) / 6.0;
            self.mouse("mouseMoved", from.0 + (to.0 - from.0) * part, from.1 + (to.1 - from.1) * part, 1);
        }
        self.mouse("mouseReleased", to.0, to.1, 1);
    }

    fn mouse(&mut self, kind: &str, x: f64, y: f64, clicks: u32) {
        let button = if clicks > 0 { "left" } else { "none" };
        self.call(
            "Input.dispatchMouseEvent",
            json!({"type": kind, "x": x, "y": y, "button": button, "buttons": clicks.min(1), "clickCount": clicks}),
        );
    }

    /// Presses a named key while Shift is held.
    pub fn shift_key(&mut self, key: &str) {
        for kind in ["keyDown", "keyUp"] {
            self.call("Input.dispatchKeyEvent", json!({"type": kind, "key": key, "modifiers": 8}));
        }
    }

    /// Presses a named key (`"Enter"`) or types a character.
    pub fn key(&mut self, key: &str) {
        let text = match key {
            "Enter" => "\r",
            one if one.chars().count() == 1 => one,
            _ => "",
        };
        self.call("Input.dispatchKeyEvent", json!({"type": "keyDown", "key": key, "text": text}));
        self.call("Input.dispatchKeyEvent", json!({"type": "keyUp", "key": key}));
    }

    /// Presses Tab, which moves the focus, and returns what has it then: its id, or else its name, its text or its element.
    pub fn tab(&mut self) -> String {
        let key = json!({"key": "Tab", "code": "Tab", "windowsVirtualKeyCode": 9, "nativeVirtualKeyCode": 9});
        for kind in ["keyDown", "keyUp"] {
            let mut event = key.clone();
            event["type"] = json!(kind);
            self.call("Input.dispatchKeyEvent", event);
        }
        let focused = self.eval(
            "(() => { const e = document.activeElement; return e === document.body ? 'BODY' : e.id || e.name || e.textContent.trim() || e.getAttribute('aria-label') || e.tagName; })()",
        );
        focused.as_str().expect("a text").to_owned()
    }

    pub fn type_text(&mut self, text: &str) {
        self.call("Input.insertText", json!({"text": text}));
    }

    /// A picture of what is in sight, as PNG.
    pub fn screenshot(&mut self) -> Vec<u8> {
        use base64::Engine as _;
        let answer = self.call("Page.captureScreenshot", json!({"format": "png"}));
        let data = answer["data"].as_str().expect("a screenshot has data");
        base64::engine::general_purpose::STANDARD.decode(data).expect("a screenshot is base64")
    }

    /// Leaves a picture of what is in sight in a folder.
    pub fn picture(&mut self, folder: &Path, name: &str) {
        std::thread::sleep(Duration::from_millis(200));
        std::fs::write(folder.join(name), self.screenshot()).expect("a picture can be written");
    }

    /// Everything that the page should not have done.
    pub fn assert_quiet(&mut self) {
        // One more round trip receives the events that are still in flight.
        self.eval("0");
        assert_eq!(self.complaints, Vec::<String>::new(), "the page complained");
        let outside: Vec<&String> = self.requests.iter().filter(|url| !url.ends_with("/report.html")).collect();
        assert!(outside.is_empty(), "the page asked for {outside:?}");
        assert_eq!(self.requests.len(), 1, "the page was loaded once");
    }

    /// Sends a request of the debugging protocol and waits for its answer.
    pub fn call(&mut self, method: &str, parameters: Value) -> Value {
        let engine = self.engine.as_mut().expect("there until it is dropped");
        let id = engine.send(&self.session, method, parameters);
        let limit = Instant::now() + ANSWER_TIMEOUT;
        loop {
            let engine = self.engine.as_mut().expect("there until it is dropped");
            let message = engine.receive(limit).unwrap_or_else(|| panic!("no answer to {method}"));
            if message["id"] == json!(id) {
                assert!(message.get("error").is_none(), "{method}: {message}");
                return message["result"].clone();
            }
            // An earlier page may still have something to report.
            if message["sessionId"] == json!(self.session) {
                self.note(&message);
            }
        }
    }

    fn note(&mut self, event: &Value) {
        let parameters = &event["params"];
        match event["method"].as_str() {
            Some("Runtime.consoleAPICalled") => self.complaints.push(format!("console: {}", parameters["args"])),
            Some("Runtime.exceptionThrown") => self.complaints.push(parameters["exceptionDetails"].to_string()),
            Some("Log.entryAdded") => self.complaints.push(parameters["entry"].to_string()),
            Some("Network.requestWillBeSent") => {
                self.requests.push(parameters["request"]["url"].as_str().unwrap_or("?").to_string());
            }
            _ => {}
        }
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        let Some(mut engine) = self.engine.take() else { return };
        // A test that failed may have left anything behind.
        if std::thread::panicking() {
            return;
        }
        let gone = engine.send("", "Target.disposeBrowserContext", json!({"browserContextId": self.context}));
        let limit = Instant::now() + END_TIMEOUT;
        while let Some(message) = engine.receive(limit) {
            if message["id"] == json!(gone) {
                IDLE.lock().unwrap_or_else(PoisonError::into_inner).push(engine);
                return;
            }
        }
    }
}

impl Engine {
    /// Starts a browser without a page, or returns `None` where there is none to start.
    fn start() -> Option<Engine> {
        let program = program()?;
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        // Examples, which use this file too, have no folder of their own from Cargo.
        let base = option_env!("CARGO_TARGET_TMPDIR").map_or_else(std::env::temp_dir, PathBuf::from);
        remove_leftovers(&base);
        let folder = base.join(format!("browser-{}-{number}", std::process::id()));
        // The browser leaves folders behind where it finds its temporary files.
        let scratch = folder.join("tmp");
        std::fs::create_dir_all(&scratch).expect("a folder for temporary files can be made");
        let mut process = Command::new("sh")
            // The protocol is spoken on file descriptors 3 and 4.
            .args(["-c", "exec \"$@\" 3<&0 4>&1 </dev/null >/dev/null 2>&1", "sh"])
            .arg(program)
            .env("TMPDIR", &scratch)
            .args(CHROMIUM)
            .args(["--host-resolver-rules=MAP * ~NOTFOUND", "--hide-scrollbars", "--remote-debugging-pipe"])
            .arg(format!("--user-data-dir={}", folder.join("profile").display()))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the browser starts");
        let input = process.stdin.take().expect("its input is a pipe");
        let messages = listen(process.stdout.take().expect("its output is a pipe"));
        Some(Engine { process, input, messages, folder, last_id: 0 })
    }

    /// Sends a request to a session, or to the browser itself if its name is empty, and returns the request's number.
    /// Messages end with a zero byte.
    fn send(&mut self, session: &str, method: &str, parameters: Value) -> u64 {
        self.last_id += 1;
        let mut message = json!({"id": self.last_id, "method": method, "params": parameters});
        if !session.is_empty() {
            message["sessionId"] = json!(session);
        }
        // Without a reader the answer is missing, which is noticed.
        let _ = self.input.write_all(format!("{message}\0").as_bytes()).and_then(|()| self.input.flush());
        self.last_id
    }

    fn receive(&mut self, limit: Instant) -> Option<Value> {
        let text = self.messages.recv_timeout(limit.saturating_duration_since(Instant::now())).ok()?;
        Some(serde_json::from_str(&text).expect("the browser speaks JSON"))
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.send("", "Browser.close", json!({}));
        let limit = Instant::now() + END_TIMEOUT;
        while matches!(self.process.try_wait(), Ok(None)) && Instant::now() < limit {
            std::thread::sleep(Duration::from_millis(20));
        }
        // Whatever fails here fails because the browser is gone already.
        let _ = self.process.kill();
        let _ = self.process.wait();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// Removes the folders of browsers whose test program has ended.
fn remove_leftovers(base: &Path) {
    for entry in std::fs::read_dir(base).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let owner = name.strip_prefix("browser-").and_then(|rest| rest.split('-').next());
        if owner.is_some_and(|pid| !Path::new("/proc").join(pid).exists()) {
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
}

/// Takes messages in for as long as the browser lives.
fn listen(output: ChildStdout) -> Receiver<String> {
    let (sender, messages) = channel();
    std::thread::spawn(move || {
        let mut output = BufReader::new(output);
        let mut message = Vec::new();
        while output.read_until(0, &mut message).is_ok_and(|bytes| bytes > 0) {
            message.pop();
            let text = String::from_utf8_lossy(&message).into_owned();
            if sender.send(text).is_err() {
                break;
            }
            message.clear();
        }
    });
    messages
}
