//! The page's behaviour with 300 terminations, and its response times, from an input to the frame that shows the
//! result, according to the browser's own trace. `scripts/proofs/page` prints the times.

use super::*;

/// An action on the page, and the condition that is true after it.
struct Step {
    name: &'static str,
    /// Script that runs in the page before the action.
    before: &'static str,
    input: Input,
    then: &'static str,
}

enum Input {
    Click(&'static str),
    Key(&'static str, u32),
}

const STEPS: [Step; 10] = [
    Step {
        name: "sort by a number",
        before: "",
        input: Input::Click("document.querySelectorAll('table.rows thead button')[1]"),
        then: "document.querySelector('th[aria-sort]').textContent === 'dropped'",
    },
    Step {
        name: "sort by text",
        before: "",
        input: Input::Click("document.querySelectorAll('table.rows thead button')[0]"),
        then: "document.querySelector('th[aria-sort]').textContent === 'pod'",
    },
    Step {
        name: "filter",
        before: "document.getElementById('filter').focus()",
        input: Input::Key("7", 55),
        then: "document.getElementById('shown').textContent === '300 of 300'",
    },
    Step {
        name: "filter more",
        before: "document.getElementById('filter').value = '0029'",
        input: Input::Key("9", 57),
        then: "document.getElementById('shown').textContent === '1 of 300'",
    },
    Step {
        name: "filter no more",
        before: "document.getElementById('filter').select()",
        input: Input::Key("Delete", 46),
        then: "document.getElementById('shown').textContent === '300 of 300'",
    },
    Step {
        name: "unfold",
        before: "",
        input: Input::Click("document.querySelectorAll('.unfold')[150]"),
        then: "document.querySelectorAll('.detail:not([hidden])').length === 1",
    },
    Step {
        name: "fold",
        before: "",
        input: Input::Click("document.querySelectorAll('.unfold')[150]"),
        then: "document.querySelectorAll('.detail:not([hidden])').length === 0",
    },
    Step {
        name: "tell a value",
        before: "document.querySelector('.picture').focus()",
        input: Input::Key("ArrowRight", 39),
        then: "document.querySelector('.tip').textContent !== ''",
    },
    Step {
        name: "zoom",
        before: "",
        input: Input::Click("document.querySelector('button.zoom')"),
        then: "document.querySelector('dialog').open",
    },
    Step {
        name: "leave the zoom",
        before: "",
        input: Input::Key("Escape", 27),
        then: "!document.querySelector('dialog').open",
    },
];

#[test]
fn large_page_stays_usable() {
    let dir = tempfile::tempdir().expect("a directory");
    let given = std::env::var_os("PAGE_REPORT");
    let page = given.as_ref().map_or_else(|| report_of_many(&dir), PathBuf::from);
    assert!(page.metadata().expect("a page").len() < 5 << 20, "5 MiB");
    let rounds = if given.is_some() { 10 } else { 1 };
    let mut browser = Browser::start();
    for size in [(1280, 800), (390, 844)] {
        browser.open(&page, size, "light");
        let mut times = vec![Vec::new(); STEPS.len()];
        for _ in 0..rounds {
            for (step, times) in STEPS.iter().zip(&mut times) {
                times.push(take(&mut browser, step));
                assert_eq!(browser.value(step.then), true, "{} at {size:?}", step.name);
            }
        }
        println!();
        for (step, times) in STEPS.iter().zip(&mut times) {
            times.sort_by(f64::total_cmp);
            println!("| {} | {} | {:.0} | {:.0} |", step.name, size.0, times[rounds / 2], times[rounds - 1]);
        }
    }
    assert_eq!(browser.errors, Vec::<String>::new());
}

/// Makes the report of a run with 300 terminations.
fn report_of_many(dir: &TempDir) -> PathBuf {
    let run = dir.path().join("run");
    Synthetic { workers: 1, seconds: 6, deletions: 300, one_lost_of: 1000 }.write(&run);
    let report = Rolldrop::new(["report".as_ref(), run.as_os_str()]).finish();
    let page = run.join("report.html");
    assert!(page.is_file(), "{report}");
    page
}

/// Performs a step. Returns the time until a frame showed the result, in milliseconds.
fn take(browser: &mut Browser, step: &Step) -> f64 {
    browser.value(step.before);
    match step.input {
        Input::Click(element) => browser.mouse(element, Mouse::Point),
        Input::Key(..) => browser.rest(),
    }
    browser.start_trace();
    match step.input {
        Input::Click(element) => browser.mouse(element, Mouse::Click),
        Input::Key(key, code) => browser.press(key, code),
    }
    let durations = browser.end_trace().into_iter().filter(|event| event["name"] == "EventTiming");
    let durations = durations.filter_map(|event| event["args"]["data"]["duration"].as_f64());
    durations.reduce(f64::max).expect("the browser saw an input")
}
