//! Chromium, driven over pipes with the DevTools protocol.

use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};

use nix::sys::stat::Mode;
use nix::unistd::mkfifo;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::harness::LIMIT;

/// A page in its own browser.
pub(super) struct Browser {
    child: Child,
    to: File,
    from: Receiver<Value>,
    session: Option<String>,
    sent: u64,
    /// Errors reported by the page.
    pub(super) errors: Vec<String>,
    _dir: TempDir,
}

impl Browser {
    pub(super) fn start() -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let pipes = ["to", "from"].map(|name| dir.path().join(name));
        pipes.iter().for_each(|pipe| mkfifo(pipe, Mode::S_IRWXU).expect("a pipe"));
        let script = "exec chromium --headless --no-sandbox --disable-gpu --remote-debugging-pipe \
                      --user-data-dir=\"$3\" about:blank 3<\"$1\" 4>\"$2\"";
        let child = Command::new("sh")
            .args(["-c", script, "sh"])
            .args(&pipes)
            .arg(dir.path().join("profile"))
            .env("TMPDIR", dir.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("a shell");
        let to = OpenOptions::new().write(true).open(&pipes[0]).expect("the browser's input");
        let mut answers = BufReader::new(File::open(&pipes[1]).expect("the browser's output"));
        let (sender, from) = channel();
        std::thread::spawn(move || {
            let mut message = Vec::new();
            while answers.read_until(0, &mut message).is_ok_and(|n| n > 0) {
                let value = serde_json::from_slice(message.strip_suffix(&[0]).unwrap_or(&message));
                if sender.send(value.expect("JSON")).is_err() {
                    return;
                }
                message.clear();
            }
        });
        let mut browser = Self { child, to, from, session: None, sent: 0, errors: Vec::new(), _dir: dir };
        let target = browser.call("Target.createTarget", json!({"url": "about:blank"}));
        let attach = json!({"targetId": target["targetId"], "flatten": true});
        let session = browser.call("Target.attachToTarget", attach);
        browser.session = session["sessionId"].as_str().map(str::to_owned);
        for domain in ["Page.enable", "Runtime.enable", "Log.enable"] {
            browser.call(domain, json!({}));
        }
        browser
    }

    /// Returns the next message, and keeps the page's errors.
    pub(super) fn message(&mut self) -> Value {
        let message =
            self.from.recv_timeout(LIMIT).expect("a message from chromium; scripts/test installs it");
        let is_error = match message["method"].as_str() {
            Some("Runtime.exceptionThrown") => true,
            Some("Log.entryAdded") => message["params"]["entry"]["level"] == "error",
            Some("Runtime.consoleAPICalled") => message["params"]["type"] == "error",
            _ => false,
        };
        if is_error {
            self.errors.push(message.to_string());
        }
        message
    }

    pub(super) fn call(&mut self, method: &str, params: Value) -> Value {
        self.sent += 1;
        let mut call = json!({"id": self.sent, "method": method, "params": params});
        if let Some(session) = &self.session {
            call["sessionId"] = json!(session);
        }
        let mut bytes = call.to_string().into_bytes();
        bytes.push(0);
        self.to.write_all(&bytes).expect("the browser reads");
        loop {
            let message = self.message();
            if message["id"] == self.sent {
                assert!(message["error"].is_null(), "{method}: {message}");
                return message["result"].clone();
            }
        }
    }

    /// Opens a page with this width, height and theme.
    pub(super) fn open(&mut self, page: &Path, (width, height): (u32, u32), theme: &str) {
        let size = json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": false});
        self.call("Emulation.setDeviceMetricsOverride", size);
        let theme = json!({"features": [{"name": "prefers-color-scheme", "value": theme}]});
        self.call("Emulation.setEmulatedMedia", theme);
        self.call("Page.navigate", json!({"url": format!("file://{}", page.display())}));
        while self.message()["method"] != "Page.loadEventFired" {}
    }

    /// Returns the value of an expression in the page.
    pub(super) fn value(&mut self, expression: &str) -> Value {
        let params = json!({"expression": expression, "awaitPromise": true, "returnByValue": true, "userGesture": true});
        let result = self.call("Runtime.evaluate", params);
        assert!(result["exceptionDetails"].is_null(), "{expression}: {result}");
        result["result"]["value"].clone()
    }

    /// Presses a key in the focused element.
    pub(super) fn press(&mut self, key: &str, code: u32) {
        for kind in ["keyDown", "keyUp"] {
            let text = match key {
                "Enter" => "\r",
                one if kind == "keyDown" && one.chars().count() == 1 => one,
                _ => "",
            };
            let event =
                json!({"type": kind, "key": key, "code": key, "windowsVirtualKeyCode": code, "text": text});
            self.call("Input.dispatchKeyEvent", event);
        }
        self.rest();
    }

    /// Waits until the page has been drawn twice and is idle. An effect of an input, such as a closing dialog, may only
    /// be queued when the browser acknowledges the input.
    pub(super) fn rest(&mut self) {
        self.value(
            "new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(done, 50))))",
        );
    }
}

impl Browser {
    /// Scrolls an element into view, moves the mouse to its middle, and clicks there if `kind` is a click.
    pub(super) fn mouse(&mut self, element: &str, kind: Mouse) {
        let (x, y) = self.middle(element);
        let kinds: &[&str] = match kind {
            Mouse::Point => &["mouseMoved"],
            Mouse::Click => &["mouseMoved", "mousePressed", "mouseReleased"],
        };
        for kind in kinds {
            let event = json!({"type": kind, "x": x, "y": y, "button": "left", "clickCount": 1});
            self.call("Input.dispatchMouseEvent", event);
        }
        self.rest();
    }

    /// Starts the browser's trace.
    pub(super) fn start_trace(&mut self) {
        let categories = json!({"includedCategories": ["devtools.timeline"]});
        self.call_browser(
            "Tracing.start",
            json!({"traceConfig": categories, "transferMode": "ReportEvents"}),
        );
    }

    /// Stops the trace, and returns the browser's events.
    pub(super) fn end_trace(&mut self) -> Vec<Value> {
        self.call_browser("Tracing.end", json!({}));
        let mut events = Vec::new();
        loop {
            let message = self.message();
            match message["method"].as_str() {
                Some("Tracing.dataCollected") => {
                    events.extend(message["params"]["value"].as_array().into_iter().flatten().cloned());
                }
                Some("Tracing.tracingComplete") => return events,
                _ => {}
            }
        }
    }

    /// Calls the browser itself, not its page.
    fn call_browser(&mut self, method: &str, params: Value) {
        let page = self.session.take();
        self.call(method, params);
        self.session = page;
    }

    /// Taps an element; returns true if the tap enlarges a picture.
    pub(super) fn touch(&mut self, element: &str) -> bool {
        let (x, y) = self.middle(element);
        self.call("Emulation.setTouchEmulationEnabled", json!({"enabled": true}));
        let event = json!({"type": "touchStart", "touchPoints": [{"x": x, "y": y}]});
        self.call("Input.dispatchTouchEvent", event);
        self.call("Input.dispatchTouchEvent", json!({"type": "touchEnd", "touchPoints": []}));
        self.call("Emulation.setTouchEmulationEnabled", json!({"enabled": false}));
        self.rest();
        self.value("document.querySelector('dialog').open") == true
    }

    /// Scrolls an element into view, and returns its middle.
    fn middle(&mut self, element: &str) -> (f64, f64) {
        let place = format!(
            "(() => {{ const e = {element}; e.scrollIntoView({{block: 'center'}}); const r = e.getBoundingClientRect(); \
             return [r.x + r.width / 2, r.y + r.height / 2]; }})()"
        );
        serde_json::from_value(self.value(&place)).expect("a position")
    }
}

/// A mouse action.
#[derive(Clone, Copy)]
pub(super) enum Mouse {
    Point,
    Click,
}

impl Drop for Browser {
    fn drop(&mut self) {
        _ = self.child.kill();
        _ = self.child.wait();
    }
}
