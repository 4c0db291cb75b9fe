//! `report.html` in a browser. `scripts/proofs/page` measures the page's response times (`times`).

mod browser;
mod reading;
mod times;

use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::harness::Rolldrop;
use crate::synthetic::Synthetic;
use browser::{Browser, Mouse};

/// Makes the report of a recorded rollout, which suggests a sleep.
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
fn first_screen_shows_remedy() {
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

/// Scripts that return the number of visible terminations, and how many of them are unfolded.
const ROWS: &str =
    "[...document.querySelector('table.rows').tBodies].filter(body => body.checkVisibility()).length";
const OPEN: &str = "[...document.querySelectorAll('tr.detail')].filter(row => row.checkVisibility()).length";

#[test]
fn termination_table_sorts_filters_and_unfolds_rows() {
    let dir = tempfile::tempdir().expect("a directory");
    let page = report(&dir);
    let mut browser = Browser::start();
    browser.open(&page, (1280, 800), "light");

    let dropped = "[...document.querySelector('table.rows').tBodies].map(b => Number(b.rows[0].cells[1].dataset.value))";
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
    assert_eq!(browser.value(ROWS), 1);

    // The keyboard alone is enough.
    assert_eq!(browser.value(OPEN), 0);
    browser.value("[...document.querySelectorAll('.unfold')].find(b => b.checkVisibility()).focus()");
    for (key, code, open) in [("Enter", 13, 1), (" ", 32, 0), (" ", 32, 1)] {
        browser.press(key, code);
        assert_eq!(browser.value(OPEN), open, "{key:?}");
    }

    browser.value("document.querySelector('button.copy').click()");
    let copied = "new Promise(done => { const wait = () => { const text = document.querySelector('button.copy').textContent; \
                  text === 'Copy' ? setTimeout(wait, 10) : done(text); }; wait(); })";
    assert_eq!(browser.value(copied), "Copied");
    assert_eq!(browser.errors, Vec::<String>::new());
}

#[test]
fn charts_show_values_and_zoom() {
    const PICTURE: &str = "document.querySelector('.picture')";
    const TIP: &str = "(() => { const tip = document.querySelector('.tip'); return tip.hidden ? null : tip.textContent; })()";
    const WIDTH: &str =
        "(document.querySelector('dialog img') || document.querySelector('.picture img')).clientWidth";
    let dir = tempfile::tempdir().expect("a directory");
    let page = report(&dir);
    let mut browser = Browser::start();
    browser.open(&page, (1280, 800), "light");
    let told = browser.value(&format!(
        "{PICTURE}.dataset.readings.split('\\n').map(line => line.split(' ').slice(4).join(' '))"
    ));
    let told: Vec<String> = serde_json::from_value(told).expect("texts");
    assert!(told.len() > 100 && told[0].contains(": ready, "), "{told:?}");

    // The mouse is moved to the first bar in a row of the picture.
    browser.value(&format!(
        "{{ const picture = {PICTURE}; picture.scrollIntoView(); const by = picture.querySelector('img').clientWidth / 1600; \
         const [x, y, w, h] = picture.dataset.readings.split(' ').map(v => v * by); \
         const mark = document.createElement('div'); mark.id = 'first'; picture.firstChild.append(mark); \
         mark.style = `position: absolute; pointer-events: none; left: ${{x}}px; top: ${{y}}px; width: ${{w}}px; height: ${{h}}px`; }}"
    ));
    browser.mouse("document.getElementById('first')", Mouse::Point);
    assert_eq!(browser.value(TIP), told[0].as_str());
    browser.mouse("document.querySelector('h1')", Mouse::Point);
    assert_eq!(browser.value(TIP), Value::Null);
    let finger = browser.touch("document.getElementById('first')");
    assert_eq!((browser.value(TIP), finger), (json!(told[0]), false));

    browser.value(&format!("{PICTURE}.focus()"));
    for (key, code, index) in
        [("Home", 36, 0), ("ArrowRight", 39, 1), ("ArrowLeft", 37, 0), ("End", 35, told.len() - 1)]
    {
        browser.press(key, code);
        assert_eq!(browser.value(TIP), told[index].as_str(), "{key}");
    }
    browser.press("ArrowUp", 38);
    assert_ne!(browser.value(TIP), told[told.len() - 1].as_str());
    browser.press("Escape", 27);
    assert_eq!(browser.value(TIP), Value::Null);

    let before = browser.value(WIDTH);
    browser.value("document.querySelector('button.zoom').focus()");
    browser.press("Enter", 13);
    assert_eq!(browser.value(WIDTH), 1600, "was {before}");
    for (key, code, width) in [("+", 187, 2240), ("-", 189, 1600)] {
        browser.press(key, code);
        assert_eq!(browser.value(WIDTH), width, "{key}");
    }
    browser.press("Escape", 27);
    assert_eq!(browser.value("document.querySelector('dialog').open"), false);
    assert_eq!(browser.value("document.activeElement.className"), "zoom");
    assert_eq!(browser.value(WIDTH), before);
    browser.mouse(&format!("{PICTURE}.querySelector('img')"), Mouse::Click);
    assert_eq!(browser.value(WIDTH), 1600);
    assert_eq!(browser.errors, Vec::<String>::new());
}

#[test]
fn printing_unfolds_rows_and_hides_controls() {
    let dir = tempfile::tempdir().expect("a directory");
    let page = report(&dir);
    let mut browser = Browser::start();
    browser.open(&page, (1280, 800), "dark");
    browser.value("{ const f = document.getElementById('filter'); f.value = 'nothing'; f.dispatchEvent(new Event('input')); }");
    assert_eq!(browser.value(ROWS), 0);
    browser.call("Emulation.setEmulatedMedia", json!({"media": "print"}));
    assert_eq!((browser.value(ROWS), browser.value(OPEN)), (json!(18), json!(18)));
    let controls = "[...document.querySelectorAll('nav, input, .copy, .zoom, figcaption')].filter(e => e.checkVisibility()).length";
    assert_eq!(browser.value(controls), 0);
    assert_eq!(browser.value("getComputedStyle(document.body).backgroundColor"), "rgb(255, 255, 255)");
    assert_eq!(browser.value("getComputedStyle(document.querySelector('figure img')).filter"), "none");
    let pdf = browser.call("Page.printToPDF", json!({"preferCSSPageSize": true, "printBackground": true}));
    assert!(pdf["data"].as_str().is_some_and(|pdf| pdf.starts_with("JVBERi0")), "{pdf}");
    assert_eq!(browser.errors, Vec::<String>::new());
}
