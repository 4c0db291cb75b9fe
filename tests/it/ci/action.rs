//! The GitHub Action, executed step by step as on a runner: scripts, inputs and outputs, with a stand-in for GitHub.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output};

use serde_json::{Value, json};
use tempfile::TempDir;

use super::root;
use super::stand_in::{Answer, Asked, StandIn};
use crate::harness::{Rolldrop, again_while_invalid};
use crate::machine::{Meanwhile, figure, measured};
use crate::runs::turn;
use crate::web::Web;

const ACTION: &str = ".github/actions/rolldrop";

/// A job that uses the action: a folder with everything that a runner provides to the steps.
struct Job {
    dir: TempDir,
    action: Value,
    inputs: BTreeMap<String, String>,
    /// Values of expressions other than inputs.
    context: BTreeMap<String, String>,
    env: BTreeMap<String, String>,
}

impl Job {
    fn new(inputs: &[(&str, &str)]) -> Self {
        let text = fs::read_to_string(root().join(ACTION).join("action.yml")).expect("action.yml");
        let action: Value = serde_saphyr::from_str(&text).expect("YAML");
        let known = action["inputs"].as_object().expect("inputs");
        let default = |input: &Value| input["default"].as_str().unwrap_or_default().to_owned();
        let mut all: BTreeMap<String, String> =
            known.iter().map(|(name, input)| (name.clone(), default(input))).collect();
        for (name, value) in inputs {
            assert!(all.insert((*name).to_owned(), (*value).to_owned()).is_some(), "no input {name}");
        }
        let dir = tempfile::tempdir().expect("a directory");
        for name in ["output", "summary", "path"] {
            fs::write(dir.path().join(name), "").expect("a file");
        }
        let env = BTreeMap::from([("GITHUB_SERVER_URL".to_owned(), "http://127.0.0.1:1".to_owned())]);
        Self { dir, action, inputs: all, context: BTreeMap::new(), env }
    }

    fn file(&self, name: &str) -> String {
        fs::read_to_string(self.dir.path().join(name)).unwrap_or_else(|e| panic!("{name}: {e}"))
    }

    /// Returns a step's output as later steps see it: the value written last.
    fn output(&self, name: &str) -> String {
        let outputs = self.file("output");
        let of = |line: &str| line.strip_prefix(name)?.strip_prefix('=').map(str::to_owned);
        outputs.lines().filter_map(of).next_back().unwrap_or_default()
    }

    /// Returns the text with its expressions replaced by their values.
    fn filled(&self, text: &str) -> String {
        let mut out = String::new();
        let mut rest = text;
        while let Some((before, after)) = rest.split_once("${{") {
            let (expression, after) = after.split_once("}}").expect("a closing }}");
            let expression = expression.trim();
            out.push_str(before);
            if let Some(name) = expression.strip_prefix("inputs.") {
                out.push_str(self.inputs.get(name).unwrap_or_else(|| panic!("no input {name}")));
            } else if let Some(name) = expression.strip_prefix("steps.measure.outputs.") {
                out.push_str(&self.output(name));
            } else {
                out.push_str(self.context.get(expression).map(String::as_str).unwrap_or_default());
            }
            rest = after;
        }
        out + rest
    }

    /// Runs a step until it exits.
    fn step(&self, name: &str) -> Output {
        let steps = self.action["runs"]["steps"].as_array().expect("steps");
        let step = steps.iter().find(|step| step["name"] == name).unwrap_or_else(|| panic!("no step {name}"));
        assert_eq!(step["shell"], "bash");
        let at = |name: &str| self.dir.path().join(name);
        let mut paths: Vec<PathBuf> = self.file("path").lines().map(PathBuf::from).collect();
        paths.extend(std::env::split_paths(&std::env::var_os("PATH").expect("a PATH")));
        let mut command = Command::new("bash");
        command
            .args(["--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"].as_str().expect("a script")])
            .current_dir(self.dir.path())
            .env("PATH", std::env::join_paths(paths).expect("a PATH"))
            .env("GITHUB_ACTION_PATH", root().join(ACTION))
            .env("GITHUB_OUTPUT", at("output"))
            .env("GITHUB_STEP_SUMMARY", at("summary"))
            .env("GITHUB_PATH", at("path"))
            .env("RUNNER_TEMP", at("temp"))
            .env("ROLLDROP_MAX_BUSY", "100%")
            .envs(&self.env);
        for (name, value) in step["env"].as_object().expect("variables") {
            command.env(name, self.filled(value.as_str().expect("a string")));
        }
        command.output().expect("bash starts")
    }

    /// Runs the measuring step, and repeats it while the machine is starved.
    fn measure(&self) -> Output {
        let meanwhile = Meanwhile::begins();
        let measure = || {
            let out = self.dir.path().join(&self.inputs["out"]);
            if out.exists() {
                fs::remove_dir_all(out).expect("a run");
            }
            self.step("Measure")
        };
        let is_invalid = |_: &Output| self.output("verdict") == "invalid";
        let ended = again_while_invalid(measure, is_invalid);
        figure(meanwhile.taken(), !is_invalid(&ended), || format!("{ended:?}"));
        ended
    }
}

#[track_caller]
fn ended(output: &Output, code: i32) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let said = format!("{}\n{}", text(&output.stdout), text(&output.stderr));
    assert_eq!(output.status.code(), Some(code), "{said}");
    said
}

/// Returns the scenario of a short run in which one pod is terminated.
fn scenario() -> String {
    let spec = "  target: {service: web}
  load: {rate: 50, duration: 5s}
  disruptions: [{at: 1s, action: deletePod, selector: app=web}]
";
    Web::new(2).pod(json!({"terminationGracePeriodSeconds": 1})).scenario("small", spec)
}

/// A stand-in for the GitHub comments API. The first hundred comments on the pull request are from others.
fn comments_api() -> StandIn {
    let ours = std::sync::Mutex::new(None::<String>);
    StandIn::start(move |asked: &Asked| {
        let mut ours = ours.lock().expect("a lock");
        let json = |value: Value| value.to_string().into_bytes();
        let sent =
            || serde_json::from_str::<Value>(&asked.body).expect("JSON")["body"].as_str().map(str::to_owned);
        let all = "/repos/octo/shop/issues/7/comments";
        match (asked.method.as_str(), asked.path.as_str()) {
            ("GET", path) if path == format!("{all}?per_page=100") => {
                let others = vec![json!({"id": 1, "body": "nice"}); 100];
                let next = format!("Link: <http://{}{all}?page=2>; rel=\"next\"\r\n", asked.host);
                Answer(200, next, json(others.into()))
            }
            ("GET", path) if path == format!("{all}?page=2") => {
                let found = ours.iter().map(|body| json!({"id": 42, "body": body})).collect();
                Answer(200, String::new(), json(found))
            }
            ("POST", path) if path == all => {
                *ours = sent();
                Answer(201, String::new(), json(json!({"id": 42})))
            }
            ("PATCH", "/repos/octo/shop/issues/comments/42") => {
                *ours = sent();
                Answer(200, String::new(), json(json!({"id": 42})))
            }
            _ => Answer(404, String::new(), json(json!({"message": "Not Found"}))),
        }
    })
}

#[test]
fn action_judges_baseline_and_replaces_comment() {
    measured(|| {
        let _turn = turn();
        let mut job = Job::new(&[
            ("binary", env!("CARGO_BIN_EXE_rolldrop")),
            ("scenario", "scenario.yaml"),
            ("expect", "limits.yaml"),
            ("args", "--dataplane=userspace\n\n--quiet\n"),
            ("out", "before"),
        ]);
        fs::write(job.dir.path().join("scenario.yaml"), scenario()).expect("a file");
        let limits = "terminations: {min: 1}\ndropped:\n  max: 250\n";
        fs::write(job.dir.path().join("limits.yaml"), limits).expect("a file");
        let installed = ended(&job.step("Install rolldrop"), 0);
        assert!(installed.contains(concat!("rolldrop ", env!("CARGO_PKG_VERSION"))), "{installed}");
        let said = ended(&job.measure(), 0);
        assert_eq!(
            (job.output("verdict"), job.output("exit-status")),
            ("passed".into(), "0".into()),
            "{said}"
        );
        assert_eq!(
            (job.output("requests"), job.output("terminations")),
            ("250".into(), "1".into()),
            "{said}"
        );
        assert_eq!(job.output("run"), "before");
        assert!(job.file("summary").starts_with("# rolldrop: small"));
        assert!(
            job.file("before/metrics.prom")
                .contains("rolldrop_gate_verdict{scenario=\"small\",verdict=\"passed\"} 1")
        );
        assert!(job.file("before/metrics.prom").contains("check=\"dropped.max\""), "{said}");

        job.inputs.insert("out".into(), "after".into());
        job.inputs.insert("expect".into(), String::new());
        job.inputs.insert("expectations".into(), "terminations:\n  min: 5\n".into());
        job.inputs.insert("baseline".into(), "before\n".into());
        let said = ended(&job.measure(), 1);
        assert!(
            said.contains("::error title=rolldrop%3A terminations.min failed::1 (limit at least 5)"),
            "{said}"
        );
        assert_eq!(
            (job.output("verdict"), job.output("exit-status")),
            ("failed".into(), "1".into()),
            "{said}"
        );
        assert!(job.output("failed-checks").starts_with("terminations.min"), "{said}");
        assert!(
            job.file("after/junit.xml").contains("<testcase name=\"baseline."),
            "{}",
            job.file("after/junit.xml")
        );

        let api = comments_api();
        job.env.insert("GITHUB_API_URL".into(), api.url.clone());
        job.env.insert("GITHUB_REPOSITORY".into(), "octo/shop".into());
        job.context.insert("github.event.pull_request.number".into(), "7".into());
        job.inputs.insert("token".into(), "secret".into());
        for method in ["POST", "PATCH"] {
            let said = ended(&job.step("Comment on the pull request"), 0);
            let asked = api.asked();
            let last = asked.last().expect("a call");
            assert_eq!(
                (last.method.as_str(), last.authorization.as_str()),
                (method, "Bearer secret"),
                "{said}"
            );
            let sent: Value = serde_json::from_str(&last.body).expect("JSON");
            assert_eq!(sent["body"].as_str(), Some(job.file("after/comment.md").as_str()));
        }
        // A token without permission to comment does not fail the gate.
        job.env.insert("GITHUB_REPOSITORY".into(), "octo/other".into());
        let said = ended(&job.step("Comment on the pull request"), 0);
        assert!(said.contains("::warning title=rolldrop::the token may not comment (404"), "{said}");
    });
}

#[test]
fn invalid_input_fails_action_with_status_2() {
    let cases: [(&[(&str, &str)], &str); 9] = [
        (&[], "::error title=rolldrop::give a scenario, or a target and a command"),
        (&[("scenario", "a.yaml"), ("target", "svc/web")], "give scenario or target, not both"),
        (&[("scenario", "a.yaml"), ("command", "true")], "command needs target"),
        (&[("scenario", "naive-exit"), ("inconclusive", "maybe")], "use fail, pass or extend"),
        // `extend` is passed on, and then requires a gate.
        (
            &[("scenario", "naive-exit"), ("inconclusive", "extend"), ("expectations", "{}")],
            "nothing was measured (exit status 2)",
        ),
        (
            &[("scenario", "naive-exit"), ("expect", "a.yaml"), ("expectations", "{}")],
            "give expect (a file) or expectations, not both",
        ),
        (&[("scenario", "naive-exit"), ("expect", "no.yaml")], "nothing was measured (exit status 2)"),
        (&[("scenario", "no.yaml")], "nothing was measured (exit status 2): the log says why"),
        (
            &[("scenario", "naive-exit"), ("expectations", "{drops: 0}")],
            "nothing was measured (exit status 2)",
        ),
    ];
    for (inputs, why) in cases {
        let mut job = Job::new(inputs);
        job.inputs.insert("binary".into(), env!("CARGO_BIN_EXE_rolldrop").into());
        ended(&job.step("Install rolldrop"), 0);
        let said = ended(&job.step("Measure"), 2);
        assert!(said.contains(why), "{why}: {said}");
        assert_eq!(
            (job.output("verdict"), job.output("exit-status")),
            ("error".into(), "2".into()),
            "{said}"
        );
        assert_eq!(job.output("run"), "");
    }
}

#[test]
fn action_never_judges_stale_run() {
    let _turn = turn();
    let recorded = root().join("tests/reference/runs/plain-one/run");
    for (scenario, out) in
        [("naive-exit", "rolldrop-run"), ("no.yaml", "rolldrop-run"), ("no.yaml", "runs/one")]
    {
        let mut job = Job::new(&[("scenario", scenario), ("out", out), ("baseline", "rolldrop-run")]);
        job.inputs.insert("binary".into(), env!("CARGO_BIN_EXE_rolldrop").into());
        ended(&job.step("Install rolldrop"), 0);
        let stale = job.dir.path().join(out);
        fs::create_dir_all(&stale).expect("a folder");
        let copied =
            Command::new("cp").arg("-r").arg(recorded.join(".")).arg(&stale).status().expect("cp starts");
        assert!(copied.success());
        let judged = Rolldrop::new(["report"]).args([&stale]).finish();
        judged.expect_code(0);
        assert!(stale.join("result.json").exists());
        let said = ended(&job.step("Measure"), 2);
        assert!(said.contains(&format!("::error title=rolldrop::{out} exists and is not empty")), "{said}");
        let told = ["verdict", "exit-status", "run", "comment", "requests"].map(|name| job.output(name));
        assert_eq!(told, ["error", "2", "", "", ""], "{said}");
        assert!(!stale.join("comment.md").exists(), "{said}");
    }
}

#[test]
fn steps_write_every_action_output() {
    let job = Job::new(&[]);
    let run = root().join("tests/reference/runs/plain-one/run");
    let gate = Rolldrop::new(["gate", "--max-dropped", "0", "--format", "github"]).args([run]);
    let finished = gate.file("output", "").env("GITHUB_OUTPUT", "output").finish().expect_code(1);
    let written = fs::read_to_string(finished.dir().join("output")).expect("outputs");
    let script = fs::read_to_string(root().join(ACTION).join("measure")).expect("a script");
    for (name, output) in job.action["outputs"].as_object().expect("outputs") {
        assert_eq!(output["value"], format!("${{{{ steps.measure.outputs.{name} }}}}"));
        let by_rolldrop = written.lines().any(|line| line.starts_with(&format!("{name}=")));
        assert!(by_rolldrop || script.contains(&format!("output {name} ")), "nothing writes {name}");
    }
}

/// Returns a release archive, whose program prints its version, and the archive's checksum.
fn release(folder: &str) -> (Vec<u8>, String) {
    let dir = tempfile::tempdir().expect("a directory");
    fs::create_dir(dir.path().join(folder)).expect("a folder");
    let script = "cd \"$0\" && printf '#!/bin/sh\\necho a release' > \"$1/rolldrop\" && chmod +x \"$1/rolldrop\" \
                  && tar -czf archive.tar.gz \"$1\" && sha256sum < archive.tar.gz";
    let packed = Command::new("sh").args(["-c", script]).arg(dir.path()).arg(folder).output();
    let packed = packed.expect("sh starts");
    assert!(packed.status.success(), "{}", String::from_utf8_lossy(&packed.stderr));
    let sum = String::from_utf8_lossy(&packed.stdout).split(' ').next().unwrap_or_default().to_owned();
    (fs::read(dir.path().join("archive.tar.gz")).expect("an archive"), sum)
}

#[test]
fn action_installs_only_matching_checksum() {
    let target = format!("{}-unknown-linux-musl", std::env::consts::ARCH);
    let folder = format!("rolldrop-v0.1.0-{target}");
    let (archive, sum) = release(&folder);
    for (sum, code) in [(sum, 0), ("0".repeat(64), 2)] {
        let (archive, sums) = (archive.clone(), format!("{sum}  {folder}.tar.gz\n"));
        let name = folder.clone();
        let releases = StandIn::start(move |asked: &Asked| {
            let base = "/octo/rolldrop/releases/download/v0.1.0";
            match asked.path.strip_prefix(base).unwrap_or_default() {
                "/SHA256SUMS" => Answer(200, String::new(), sums.clone().into_bytes()),
                path if path == format!("/{name}.tar.gz") => Answer(200, String::new(), archive.clone()),
                _ => Answer(404, String::new(), Vec::new()),
            }
        });
        let mut job = Job::new(&[]);
        job.env.insert("GITHUB_SERVER_URL".into(), releases.url.clone());
        job.context.insert("github.action_repository".into(), "octo/rolldrop".into());
        job.context.insert("github.action_ref".into(), "v0.1.0".into());
        let said = ended(&job.step("Install rolldrop"), code);
        let expected =
            if code == 0 { "a release" } else { "does not match its checksum in the release's SHA256SUMS" };
        assert!(said.contains(expected), "{said}");
        assert_eq!(job.file("path").is_empty(), code != 0);
    }
}
