//! `report.html` in a browser: Chromium, driven over pipes by its own protocol.

use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};

use nix::sys::stat::Mode;
use nix::unistd::mkfifo;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::harness::{LIMIT, Rolldrop};

/// A page in a browser of its own.
struct Browser {
    child: Child,
    to: File,
    from: Receiver<Value>,
    session: Option<String>,
    sent: u64,
    /// What the page complained of.
    errors: Vec<String>,
    _dir: TempDir,
}

impl Browser {
    fn start() -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let pipes = ["to", "from"].map(|name| dir.path().join(name));
        pipes.iter().for_each(|pipe| mkfifo(pipe, Mode::S_IRWXU).expect("a pipe"));
        let script = "exec chromium --headless --no-sandbox --disable-gpu --remote-debugging-pipe \
                      --user-data-dir=\"$3\" about:blank 3<\"$1\" 4>\"$2\"";
        let child = Command::new("sh")
            .args(["-c", script, "sh"])
            .args(&pipes)
            .arg(dir.path().join("profile"))
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

    /// The next message; complaints of the page are kept.
    fn message(&mut self) -> Value {
        let message =
            self.from.recv_timeout(LIMIT).expect("chromium says something; scripts/test installs it");
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

    fn call(&mut self, method: &str, params: Value) -> Value {
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

    /// Opens a page that is so wide and high, in one of the themes.
    fn open(&mut self, page: &Path, (width, height): (u32, u32), theme: &str) {
        let size = json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": false});
        self.call("Emulation.setDeviceMetricsOverride", size);
        let theme = json!({"features": [{"name": "prefers-color-scheme", "value": theme}]});
        self.call("Emulation.setEmulatedMedia", theme);
        self.call("Page.navigate", json!({"url": format!("file://{}", page.display())}));
        while self.message()["method"] != "Page.loadEventFired" {}
    }

    /// The value of an expression in the page.
    fn value(&mut self, expression: &str) -> Value {
        let params = json!({"expression": expression, "awaitPromise": true, "returnByValue": true, "userGesture": true});
        let result = self.call("Runtime.evaluate", params);
        assert!(result["exceptionDetails"].is_null(), "{expression}: {result}");
        result["result"]["value"].clone()
    }

    /// Presses a key where the focus is.
    fn press(&mut self, key: &str, code: u32) {
        for kind in ["keyDown", "keyUp"] {
            let text = if key == "Enter" { "\r" } else { "" };
            let event =
                json!({"type": kind, "key": key, "code": key, "windowsVirtualKeyCode": code, "text": text});
            self.call("Input.dispatchKeyEvent", event);
        }
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        _ = self.child.kill();
        _ = self.child.wait();
    }
}

/// The report of a recorded rollout, for which a sleep is suggested.
fn report(dir: &TempDir) -> PathBuf {
    let run = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/reference/runs/plain-rollout/run");
    let out = dir.path().join("out");
    let args = ["report".as_ref(), run.as_os_str(), "--out".as_ref(), out.as_os_str()];
    let report = Rolldrop::new(args).args(["--assume-service-proxy", "nftables"]).finish();
    let page = out.join("report.html");
    assert!(page.is_file(), "{report}");
    page
}

#[test]
fn the_page_answers_on_its_first_screen_in_both_themes_and_widths() {
    let dir = tempfile::tempdir().expect("a directory");
    let page = report(&dir);
    let mut browser = Browser::start();
    for theme in ["light", "dark"] {
        for size in [(1280, 800), (390, 844)] {
            browser.open(&page, size, theme);
            let seen = browser
                .value("document.getElementById('remedy').getBoundingClientRect().bottom <= innerHeight");
            assert_eq!(seen, true, "the remedy is on the first screen: {theme} {size:?}");
            let root = "document.documentElement";
            let beyond = browser.value(&format!("{root}.scrollWidth - {root}.clientWidth"));
            assert_eq!(beyond, 0, "the page does not scroll sideways: {theme} {size:?}");
            let filter = browser.value("getComputedStyle(document.querySelector('figure img')).filter");
            assert_eq!(filter != "none", theme == "dark", "{theme}: {filter}");
        }
    }
    assert_eq!(browser.errors, Vec::<String>::new());
}

#[test]
fn terminations_sort_filter_and_unfold_pictures_zoom_and_the_remedy_is_copied() {
    let dir = tempfile::tempdir().expect("a directory");
    let page = report(&dir);
    let mut browser = Browser::start();
    browser.open(&page, (1280, 800), "light");

    let dropped = "[...document.querySelector('table.rows').tBodies].map(b => Number(b.rows[0].cells[4].dataset.value))";
    let click = "[...document.querySelectorAll('table.rows thead button')].find(b => b.textContent === 'dropped').click()";
    for (direction, is_down) in [("descending", true), ("ascending", false)] {
        browser.value(click);
        let sorted = browser.value(dropped);
        let values: Vec<f64> = serde_json::from_value(sorted).expect("numbers");
        assert!(values.len() == 18 && values[0] != values[17], "{values:?}");
        assert!(values.is_sorted_by(|a, b| if is_down { a >= b } else { a <= b }), "{direction}: {values:?}");
        let said = browser.value("document.querySelector('th[aria-sort]').getAttribute('aria-sort')");
        assert_eq!(said, direction);
    }

    let pod = browser.value("document.querySelector('.unfold').textContent.trim()");
    let pod = pod.as_str().expect("a name").to_owned();
    browser.value(&format!(
        "{{ const f = document.getElementById('filter'); f.value = '{pod}'; f.dispatchEvent(new Event('input')); }}"
    ));
    assert_eq!(browser.value("document.getElementById('shown').textContent"), "1 of 18");
    let rows = "[...document.querySelector('table.rows').tBodies].filter(b => b.checkVisibility()).length";
    assert_eq!(browser.value(rows), 1);

    // By the keyboard alone.
    let open = "[...document.querySelectorAll('tr.detail')].filter(row => row.checkVisibility()).length";
    assert_eq!(browser.value(open), 0);
    browser.value("[...document.querySelectorAll('.unfold')].find(b => b.checkVisibility()).focus()");
    browser.press("Enter", 13);
    assert_eq!(browser.value(open), 1);

    let width = "document.querySelector('figure img').width";
    let before = browser.value(width);
    browser.value("document.querySelector('button.zoom').click()");
    assert_eq!(browser.value(width), 1600, "was {before}");

    browser.value("document.querySelector('button.copy').click()");
    let copied = "new Promise(done => { const wait = () => { const text = document.querySelector('button.copy').textContent; \
                  text === 'Copy' ? setTimeout(wait, 10) : done(text); }; wait(); })";
    assert_eq!(browser.value(copied), "Copied");
    assert_eq!(browser.errors, Vec::<String>::new());
}
