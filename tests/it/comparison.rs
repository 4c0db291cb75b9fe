//! Loads and runs against a baseline, from the command line.

use std::path::Path;

use serde_json::Value;

use crate::harness::{Finished, Rolldrop};
use crate::load::Server;

fn load(dir: &Path, name: &str, url: &str, rate: &str) {
    let out = dir.join(name);
    Rolldrop::new(["load", "http://web.example/", "-r", rate, "-d", "4s", "--quiet"])
        .args(["--connect-to", url, "--connect-timeout", "60s", "--response-timeout", "60s"])
        .args(["--out".as_ref(), out.as_os_str()])
        .finish()
        .expect_code(0);
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
    assert_eq!((&dropped["verdict"], &dropped["candidate"]), (&"worse".into(), &1.0.into()), "{compared}");
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
}
