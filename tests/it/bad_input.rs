//! Bad input leads to a clear error and exit status 2, and nothing is started.

use crate::harness::Rolldrop;
use crate::runs::turn;

/// Returns a scenario whose app binary does not exist.
fn missing_binary() -> String {
    let text = std::fs::read_to_string("scenarios/naive-exit.yaml").expect("the scenario");
    let app = "image: rolldrop\n                  args: [workload";
    assert!(text.contains(app));
    text.replace(
        app,
        "image: busybox\n                  command: [/no/such/server]\n                  args: [workload",
    )
}

#[test]
fn scenario_error_names_line_and_key() {
    let text = std::fs::read_to_string("scenarios/naive-exit.yaml").expect("the scenario");
    let broken = text.replace("every: 6s", "evry: 6s");
    let line = 1 + broken.lines().position(|line| line.contains("evry")).expect("the line");
    let finished = Rolldrop::new(["run", "broken.yaml", "--out", "run"])
        .file("broken.yaml", &broken)
        .finish()
        .expect_code(2);
    let expected =
        format!("broken.yaml:{line}: spec.disruptions[0].evry: unknown field `evry`, expected one of");
    assert!(finished.stderr().contains(&expected), "{finished}");
    assert!(!finished.dir().join("run").exists(), "{finished}");
    assert!(!finished.stderr().contains("starting the cluster"), "{finished}");
}

#[test]
fn bad_argument_errors_state_their_cause() {
    let unknown = Rolldrop::new(["run", "naive-exti"]).finish().expect_code(2);
    assert!(
        unknown.stderr().contains("or a scenario that `rolldrop scenarios` lists, such as naive-exit"),
        "{unknown}"
    );
    let no_run = Rolldrop::new(["report", "nowhere"]).finish().expect_code(2);
    assert!(no_run.stderr().contains("nowhere is not a run directory"), "{no_run}");
    let torn =
        Rolldrop::new(["report", "."]).file("run.json", "{\"format\": 1,\n oops").finish().expect_code(2);
    assert!(torn.stderr().contains("run.json:2: "), "{torn}");
    let option = Rolldrop::new(["run", "--rate", "fast"]).finish().expect_code(2);
    assert!(option.stderr().contains("--rate"), "{option}");
    let full = Rolldrop::new(["run", "--out", "."]).file("x", "").finish().expect_code(2);
    assert!(full.stderr().contains("not empty"), "{full}");
}

#[test]
fn missing_kubeconfig_error_names_path() {
    let finished =
        Rolldrop::new(["run", "-t", "svc/web"]).env("KUBECONFIG", "/no/kubeconfig").finish().expect_code(2);
    let why = "found no kubeconfig (looked for /no/kubeconfig), and this is not a pod: name one with --kubeconfig or KUBECONFIG";
    assert!(finished.stderr().contains(why), "{finished}");
    let runs = std::fs::read_dir(finished.dir().join("rolldrop-runs")).expect("a directory");
    assert_eq!(runs.count(), 0, "{finished}");
}

#[test]
fn run_reports_missing_app_binary() {
    let _turn = turn();
    let finished = Rolldrop::run(&missing_binary()).finish().expect_code(2);
    let stderr = finished.stderr();
    assert!(stderr.contains("a pod cannot start"), "{finished}");
    assert!(stderr.contains("/no/such/server"), "{finished}");
}

#[test]
fn port_shortage_stops_run_before_load() {
    let _turn = turn();
    let finished =
        Rolldrop::new(["run", "-r", "100", "--set", "load.sourcePorts=40000-40009", "--out", "run"])
            .finish()
            .expect_code(2);
    let stderr = finished.stderr();
    assert!(
        stderr.contains("100 fresh connections/s to ") && stderr.contains("there are only 10 "),
        "{finished}"
    );
    assert!(stderr.contains("(reusePorts)") && !stderr.contains("requests, "), "{finished}");
    assert!(!finished.dir().join("run/requests").exists(), "{finished}");
}
