//! Loads and runs compared with a baseline, from the command line.

use std::path::Path;

use serde_json::Value;

use crate::harness::{Finished, Rolldrop, again_while_invalid};
use crate::load::Server;
use crate::machine::{Meanwhile, figure, measured};

/// Sends a load to a server. Repeats the load if the machine made it invalid, because it could not be a baseline.
fn load(dir: &Path, name: &str, url: &str, rate: &str) {
    let (out, meanwhile) = (dir.join(name), Meanwhile::begins());
    let run = || {
        let _ = std::fs::remove_dir_all(&out);
        Rolldrop::new(["load", "http://web.example/", "-r", rate, "-d", "4s", "--quiet"])
            .args(["--connect-to", url, "--connect-timeout", "60s", "--response-timeout", "60s"])
            .args(["--out".as_ref(), out.as_os_str()])
            .finish()
            .expect_code(0);
        Rolldrop::new(["report".as_ref(), out.as_os_str()]).finish()
    };
    let report = again_while_invalid(run, Finished::is_invalid);
    figure(meanwhile.taken(), !report.is_invalid(), || report.to_string());
}

fn rolldrop(dir: &Path, words: &str) -> Finished {
    let path = |word: &str| match dir.join(word) {
        path if path.exists() || word.ends_with(".json") => path.display().to_string(),
        _ => word.to_owned(),
    };
    Rolldrop::new(words.split(' ').map(path)).finish()
}

#[test]
fn comparison_flags_losses_and_refuses_mismatches() {
    measured(|| {
        let dir = tempfile::tempdir().expect("a directory");
        let dir = dir.path();
        let server = Server::start();
        let good = format!("web.example:80:127.0.0.1:{}", server.address.port());
        // This server, behind the same name, closes the connection on every request.
        let losing = Server::losing();
        let bad = format!("web.example:80:127.0.0.1:{}", losing.address.port());
        load(dir, "before", &good, "200");
        load(dir, "after", &bad, "200");
        load(dir, "slower", &good, "100");

        // The address override is among the settings that must match.
        let refused = rolldrop(dir, "report after --baseline before").expect_code(2);
        assert!(refused.stderr().contains("not comparable: connect to is "), "{refused}");
        // No request was answered, so the target does not work.
        let compared = rolldrop(dir, "report after --baseline before --anyway --format json").expect_code(3);
        let comparison: Value = serde_json::from_str(&compared.stdout()).expect("JSON");
        assert_eq!(comparison["verdict"], "worse", "{compared}");
        let rows = comparison["rows"].as_array().expect("rows");
        let dropped = rows.iter().find(|row| row["metric"] == "dropped").expect("a row");
        assert_eq!(
            (&dropped["verdict"], &dropped["candidate"]),
            (&"worse".into(), &1.0.into()),
            "{compared}"
        );
        for file in
            ["comparison.json", "comparison.md", "comparison.html", "charts/comparison.png", "report.html"]
        {
            assert!(dir.join("after").join(file).is_file(), "{file}");
        }

        let refused = rolldrop(dir, "gate slower --baseline before").expect_code(2);
        let why = "rate is 100 requests/s here and 200 requests/s in the baseline";
        assert!(refused.stderr().contains(why) && refused.stderr().contains("--anyway"), "{refused}");

        let saved = rolldrop(dir, "gate before --save-baseline saved.json").expect_code(0);
        assert!(dir.join("saved.json").is_file(), "{saved}");
        let same = rolldrop(dir, "gate before --baseline saved.json").expect_code(0);
        assert!(same.stdout().contains("pass") && !same.stdout().contains("FAIL"), "{same}");
        let worse = rolldrop(dir, "gate after --baseline saved.json --anyway").expect_code(1);
        assert!(
            worse.stdout().contains("FAIL         baseline.dropped: 100 % (limit not worse than 0 %)"),
            "{worse}"
        );

        copy(&dir.join("before"), &dir.join("invalid"), 0);
        let events = dir.join("invalid/events.jsonl");
        let text = std::fs::read_to_string(&events).expect("events");
        // The run now has more requests than were due.
        std::fs::write(&events, text.replace(r#""main":800"#, r#""main":1"#)).expect("events");
        let invalid = rolldrop(dir, "gate invalid --baseline saved.json").expect_code(3);
        let why = "the run is not compared with the baseline, because it is invalid (";
        assert!(invalid.stderr().contains(why), "{invalid}");
        let anyway = rolldrop(dir, "gate invalid --baseline saved.json --anyway").expect_code(3);
        assert!(anyway.stdout().contains("baseline.dropped"), "{anyway}");

        let nonsense = rolldrop(dir, "gate after --baseline before/run.json").expect_code(2);
        assert!(nonsense.stderr().contains("is not a baseline: give a run directory"), "{nonsense}");
    });
}

/// Copies a run, shifted to begin `later` nanoseconds later.
fn copy(from: &Path, to: &Path, later: i64) {
    let mut pending = vec![(from.to_owned(), to.to_owned())];
    while let Some((from, to)) = pending.pop() {
        std::fs::create_dir_all(&to).expect("a directory");
        for entry in from.read_dir().expect("a directory") {
            let entry = entry.expect("an entry");
            let to = to.join(entry.file_name());
            match entry.path() {
                path if path.is_dir() => pending.push((path, to)),
                path => drop(std::fs::copy(path, to).expect("a copy")),
            }
        }
    }
    let file = to.join("run.json");
    let mut info: Value = serde_json::from_slice(&std::fs::read(&file).expect("run.json")).expect("JSON");
    info["started"] = (info["started"].as_i64().expect("a time") + later).into();
    std::fs::write(file, info.to_string()).expect("run.json");
}

#[test]
fn run_history_yields_limits_and_baseline() {
    measured(|| {
        let dir = tempfile::tempdir().expect("a directory");
        let dir = dir.path();
        let server = Server::start();
        let losing = Server::losing();
        let at = |server: &Server| format!("web.example:80:127.0.0.1:{}", server.address.port());
        load(dir, "first", &at(&server), "100");
        load(dir, "bad", &at(&losing), "100");
        for later in 1..=5 {
            copy(&dir.join("first"), &dir.join(format!("runs/{later}")), later);
        }
        copy(&dir.join("first"), &dir.join("last"), 6);

        // Runs that began later are not history.
        let few = rolldrop(dir, "gate runs/4 --baseline runs").expect_code(3);
        let why =
            "inconclusive baseline.history: 3 (limit at least 5 valid runs that passed): too few to show";
        assert!(few.stdout().contains(why), "{few}");
        let good = rolldrop(dir, "gate last --baseline runs --save-baseline saved.json").expect_code(0);
        assert!(good.stdout().contains("pass         baseline.dropped: 0 (limit at most "), "{good}");
        let saved = std::fs::read(dir.join("saved.json")).expect("a baseline");
        let file: Value = serde_json::from_slice(&saved).expect("JSON");
        assert!(file["runs"].as_array().is_some_and(|runs| runs.len() == 6), "{file}");
        assert!(saved.len() < 20_000, "{}", saved.len());

        // A different address means a different fingerprint. Without any response, the gate fails whatever the
        // baseline.
        let other = rolldrop(dir, "gate bad --baseline saved.json").expect_code(1);
        assert!(other.stdout().contains("not counted: 6 with a different connect to"), "{other}");
        assert!(!other.stdout().contains("FAIL         baseline."), "{other}");
        let worse = rolldrop(dir, "gate bad --baseline saved.json --anyway").expect_code(1);
        assert!(worse.stdout().contains("FAIL         baseline.dropped: 400 (limit at most "), "{worse}");
    });
}

const LIMITS: &str = "\
dropped: {worse: 10%}
outage: {worse: 1s}
rollout: {worse: 10%}
starts: {firstRequest: {worse: 1s}}
targets: {echo: {appErrors: {worse: 5}}}
";

fn says(finished: &Finished, line: &str) {
    assert!(finished.stdout().contains(line), "{line}: {finished}");
}

/// Returns a copy of a saved run that began `seconds` earlier and had these figures.
fn earlier(saved: &Value, seconds: i64, figures: &[(&str, f64)]) -> Value {
    let mut run = saved.clone();
    run["started"] = (run["started"].as_i64().expect("a time") - seconds * 1_000_000_000).into();
    for (key, value) in figures {
        run["by_key"]["all"][key] = (*value).into();
    }
    run
}

#[test]
fn gate_judges_limits_against_baseline() {
    let dir = tempfile::tempdir().expect("a directory");
    let dir = dir.path();
    let run =
        std::path::PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/reference/runs/plain-rollout/run");
    std::fs::write(dir.join("limits.yaml"), LIMITS).expect("a file");
    let gate = |words: &str| {
        let gate = format!("gate {} --expect limits.yaml {words}", run.display());
        rolldrop(dir, gate.trim())
    };
    let none = gate("--save-baseline one.json").expect_code(3);
    says(
        &none,
        "inconclusive dropped.worse: 488 (limit at most 10% worse than the baseline): there is no baseline to",
    );
    let saved: Value =
        serde_json::from_slice(&std::fs::read(dir.join("one.json")).expect("a baseline")).expect("JSON");
    let save = |name: &str, format: u32, runs: Vec<Value>| {
        let file = serde_json::json!({"format": format, "runs": runs});
        std::fs::write(dir.join(name), file.to_string()).expect("a baseline");
    };
    let other = |earlier_s: i64, figures: &[(&str, f64)]| earlier(&saved["runs"][0], earlier_s, figures);

    let same = gate("--baseline one.json --inconclusive pass").expect_code(0);
    says(&same, "pass         dropped.worse: 488 (limit 537: 10% worse than 488): 1 run: 488 to 488\n");
    says(&same, "pass         outage.worse: 0.020 s (limit 1.020 s: 1s worse than 0.020 s)");
    says(&same, "pass         targets.echo.appErrors.worse: 0 (limit 5: 5 worse than 0)");
    says(
        &same,
        "inconclusive starts.firstRequest.worse: unknown (limit at most 1s worse than the baseline): the new pod",
    );
    assert!(!same.stdout().contains("baseline.dropped"), "{same}");

    // No request was lost before. A rollout's losses count, whichever pod lost them.
    let mut none = other(1, &[("dropped", 0.0), ("rollout", 2.0)]);
    none["dropped"] = 0.into();
    for episode in none["episodes"].as_array_mut().expect("episodes") {
        episode["dropped"] = 0.into();
    }
    save("none.json", 4, vec![none]);
    let lost = gate("--baseline none.json").expect_code(1);
    says(
        &lost,
        "FAIL         dropped.worse: 488 (limit 0: 10% worse than 0): 10% of 0 is not a limit; 0 in 1 run, then 488; test",
    );
    says(
        &lost,
        "inconclusive rollout.worse: 5.055 s (limit 2.200 s: 10% worse than 2.000 s): a baseline of 1 run cannot",
    );
    let without_limits =
        rolldrop(dir, &format!("gate {} --baseline none.json", run.display())).expect_code(1);
    says(
        &without_limits,
        "FAIL         baseline.dropped: 27.11 per termination (limit not worse than 0.00 per termination): 0 of 27,000 (",
    );

    let quick = |i: i64| other(i, &[("rollout", 2.0 + 0.1 * i as f64)]);
    save("five.json", 4, (1..=5).map(quick).collect());
    let slow = gate("--baseline five.json").expect_code(1);
    says(
        &slow,
        "FAIL         rollout.worse: 5.055 s (limit 2.530 s: 10% worse than 2.300 s): runs vary, so even a run",
    );
    says(&slow, "pass         dropped.worse: 488 (limit 537: 10% worse than 488): 5 runs: 488 to 488\n");

    save("older.json", 3, Vec::new());
    let older = gate("--baseline older.json").expect_code(2);
    assert!(older.stderr().contains("is a baseline of format 3, not 4: save it again"), "{older}");
}

#[test]
fn odd_and_invalid_runs_leave_baseline_unchanged() {
    let dir = tempfile::tempdir().expect("a directory");
    let dir = dir.path();
    let recorded = |name: &str| {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/reference/runs").join(name).join("run")
    };
    let gate = |run: &Path, words: &str| rolldrop(dir, &format!("gate {} {words}", run.display()));
    let usual = recorded("plain-rollout");
    gate(&usual, "--save-baseline five.json").expect_code(0);
    let path = dir.join("five.json");
    let saved: Value = serde_json::from_slice(&std::fs::read(&path).expect("a baseline")).expect("JSON");
    let runs: Vec<Value> = (1..=5).map(|i| earlier(&saved["runs"][0], i, &[])).collect();
    let five = serde_json::json!({"format": 4, "runs": runs}).to_string();
    std::fs::write(&path, &five).expect("a baseline");
    let update = "--baseline five.json --save-baseline five.json";
    let is_kept = |finished: &Finished, why: &str| {
        let said = finished.stderr();
        assert!(said.contains(why) && said.contains("five.json was not written"), "{finished}");
        assert_eq!(std::fs::read_to_string(&path).expect("a baseline"), five, "{finished}");
    };

    is_kept(&gate(&recorded("plain-one"), update).expect_code(3), "the run differs from the baseline (");
    let invalid = dir.join("invalid");
    copy(&usual, &invalid, 1);
    let events = invalid.join("events.jsonl");
    let text = std::fs::read_to_string(&events).expect("events");
    // The run now has more requests than were due.
    std::fs::write(&events, text.replace(r#""main":27000"#, r#""main":1"#)).expect("events");
    let junit = dir.join("junit.xml");
    for words in [update, "--save-baseline new.json"] {
        let words = format!("{words} --max-dropped 0 --junit {}", junit.display());
        let judged = gate(&invalid, &words).expect_code(3);
        assert!(judged.stderr().contains("the run is invalid ("), "{judged}");
        says(&judged, "inconclusive dropped.max");
        let written = std::fs::read_to_string(&junit).expect("JUnit");
        assert!(written.contains("dropped.max"), "{written}");
        std::fs::remove_file(&junit).expect("JUnit");
        is_kept(&gate(&invalid, update).expect_code(3), "the run is invalid (");
    }
    assert!(!dir.join("new.json").exists());

    // Nor does an empty baseline replace the file.
    gate(&usual, &format!("{update} --last 0")).expect_code(2);
    gate(&usual, update).expect_code(0);
    let saved: Value = serde_json::from_slice(&std::fs::read(&path).expect("a baseline")).expect("JSON");
    assert_eq!(saved["runs"].as_array().map(Vec::len), Some(6));
}
