//! Loads and runs against a baseline, from the command line.

use std::path::Path;

use serde_json::Value;

use crate::harness::{Finished, Rolldrop, again_while_invalid};
use crate::load::Server;
use crate::machine::{Meanwhile, figure, measured};

/// Loads a server, again if the machine makes that invalid: then it is no baseline.
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
fn losses_are_worse_and_what_is_not_comparable_is_refused() {
    measured(|| {
        let dir = tempfile::tempdir().expect("a directory");
        let dir = dir.path();
        let server = Server::start();
        let good = format!("web.example:80:127.0.0.1:{}", server.address.port());
        // The server behind the same name closes on every request.
        let losing = Server::losing();
        let bad = format!("web.example:80:127.0.0.1:{}", losing.address.port());
        load(dir, "before", &good, "200");
        load(dir, "after", &bad, "200");
        load(dir, "slower", &good, "100");

        // The override of the address is a part of what has to be the same.
        let refused = rolldrop(dir, "report after --baseline before").expect_code(2);
        assert!(refused.stderr().contains("not comparable: connect to is "), "{refused}");
        // Nothing was answered: the target does not work.
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
            worse.stdout().contains("FAIL         baseline.dropped: 100.00 % (limit not worse than 0.00 %)"),
            "{worse}"
        );
        let nonsense = rolldrop(dir, "gate after --baseline before/run.json").expect_code(2);
        assert!(nonsense.stderr().contains("is not a baseline: name a run directory"), "{nonsense}");
    });
}

/// Copies a run, as one that began so many nanoseconds later.
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
fn the_last_runs_of_a_folder_give_limits_and_a_small_baseline() {
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

        // What began later is no history.
        let few = rolldrop(dir, "gate runs/4 --baseline runs").expect_code(3);
        let why =
            "inconclusive baseline.history: 3 (limit at least 5 valid runs that passed): so few do not show";
        assert!(few.stdout().contains(why), "{few}");
        let good = rolldrop(dir, "gate last --baseline runs --save-baseline saved.json").expect_code(0);
        assert!(good.stdout().contains("pass         baseline.dropped: 0 (limit at most "), "{good}");
        let saved = std::fs::read(dir.join("saved.json")).expect("a baseline");
        let file: Value = serde_json::from_slice(&saved).expect("JSON");
        assert!(file["runs"].as_array().is_some_and(|runs| runs.len() == 6), "{file}");
        assert!(saved.len() < 20_000, "{}", saved.len());

        // Another address is another fingerprint; that nothing is answered fails with any baseline.
        let other = rolldrop(dir, "gate bad --baseline saved.json").expect_code(1);
        assert!(other.stdout().contains("do not count: 6 with another connect to"), "{other}");
        assert!(!other.stdout().contains("FAIL         baseline."), "{other}");
        let worse = rolldrop(dir, "gate bad --baseline saved.json --anyway").expect_code(1);
        assert!(worse.stdout().contains("FAIL         baseline.dropped: 400 (limit at most "), "{worse}");
    });
}
