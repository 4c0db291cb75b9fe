//! `load.abort`: a run that loses too many requests stops everything that it started.

use rolldrop_explain::model::Verdict;
use rolldrop_record::RunDir;
use serde_json::json;

use crate::harness::Rolldrop;
use crate::machine::measured;
use crate::runs::{Dataplane, actions, result, turn};
use crate::web::Web;

/// Returns a scenario in which all pods are deleted together, and new ones take a long time to become ready.
fn scenario() -> String {
    let slow =
        json!({"httpGet": {"path": "/readyz", "port": 8080}, "initialDelaySeconds": 4, "periodSeconds": 1});
    let web =
        Web::new(2).pod(json!({"terminationGracePeriodSeconds": 1})).app(json!({"readinessProbe": slow}));
    web.scenario(
        "outage",
        "
  cluster: {embedded: {nodes: 1}}
  target: {service: web}
  load: {rate: 50, duration: 60s, abort: {dropped: 20%, over: 2s, requests: 20}}
  disruptions:
  - {at: 2s, action: deletePod, selector: app=web, count: 2, allowOutage: true}
  - {at: 40s, action: deletePod, selector: app=web}
",
    )
}

#[test]
fn excessive_loss_aborts_and_undoes_run() {
    measured(|| {
        let _turn = turn();
        let ended = Rolldrop::run(&scenario()).on(Dataplane::Userspace).measured().expect_code(3);
        let path = ended.dir().join("run");
        let result = result(&path);
        // An invalid verdict would hide the partial one.
        ended.figure(!ended.is_invalid());
        let Verdict::Partial { why } = &result.verdict else { panic!("{:?}\n{ended}", result.verdict) };
        assert!(why.iter().any(|why| why.starts_with("the run was aborted: ")), "{why:?}\n{ended}");
        assert!(why.iter().any(|why| why.contains("limit 20.0 % over 2 s")), "{why:?}\n{ended}");
        assert!(ended.stdout().contains("aborted"), "{ended}");
        assert!(
            !result.complete && result.load.duration_s < 40.0 && result.requests.dropped >= 20,
            "{ended}"
        );

        let records = RunDir::open(&path).and_then(|run| run.read()).expect("the run reads");
        assert!(records.info.aborted.is_some() && !records.info.interrupted);
        let actions = actions(&records).into_iter().map(|action| (action.disruption, action.status));
        assert_eq!(
            actions.collect::<Vec<_>>(),
            [(0, Some(200)); 2],
            "the second disruption never began\n{ended}"
        );
        // Every request has a row, because the load was stopped, not cut off.
        assert!(
            records.requests.iter().all(|row| row.outcome != rolldrop_record::Outcome::Cancelled),
            "{ended}"
        );
        let changes = std::fs::read_to_string(path.join("changes.jsonl")).expect("changes.jsonl");
        let count = |what: &str| changes.matches(what).count();
        assert_eq!(count("\"entry\":\"change\""), count("\"entry\":\"undone\""), "{changes}");
    });
}
