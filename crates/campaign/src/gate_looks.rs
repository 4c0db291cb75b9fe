//! `--inconclusive extend`: checks that a run can continue while its gate is inconclusive, and plans the looks at it.
//!
//! The run carries out the rounds; a look reads the record so far.

use futures::FutureExt;
use futures::future::LocalBoxFuture;
use tokio::task::spawn_blocking;

use crate::analysis::{self, JudgedRun};
use rolldrop_drive::run::{Gate, Look, PlannedLooks, RunError, SoFar};
use rolldrop_explain::RunResult;
use rolldrop_explain::model::figure_text::{counted, len, percent};
use rolldrop_explain::model::{CheckVerdict, Verdict};
use rolldrop_judge::judgements::gate_check::{Check, CheckName};
use rolldrop_judge::{gate, spending};
use rolldrop_record::load::{Length, Pace};
use rolldrop_record::{ALPHA, Expect, Looks, RunInfo};
use rolldrop_scenario::{Scenario, ScenarioError};

/// Default maximum number of looks.
const MOST: u16 = 4;

/// Plans at most `most` looks for a run that continues while its gate is inconclusive.
///
/// # Errors
/// Fails if the run cannot continue.
pub fn planned(most: Option<u16>, scenario: &Scenario, has_command: bool) -> Result<Looks, RunError> {
    if has_command {
        return Err(RunError::Refused(
            "--inconclusive extend repeats the scenario's disruptions, but a COMMAND may do something else the second \
             time. Terminate the pods with a disruption such as rollingRestart, or use --inconclusive fail or pass"
                .to_owned(),
        ));
    }
    if scenario.expect.is_empty() {
        let why = "--inconclusive extend needs a gate: add `expect` to the scenario, or use --expect FILE";
        return Err(RunError::Refused(why.to_owned()));
    }
    check(scenario)?;
    Ok(spending::looks(usize::from(most.unwrap_or(MOST))))
}

/// Checks that every round can repeat the first.
fn check(scenario: &Scenario) -> Result<(), ScenarioError> {
    let wrong = |key: &str, why: &str| Err(scenario.invalid(key, format!("--inconclusive extend: {why}")));
    for (number, disruption) in scenario.disruptions.iter().enumerate() {
        if let Some(why) = disruption.why_once() {
            return wrong(&format!("spec.disruptions[{number}]"), &why);
        }
    }
    if !scenario.disruptions.iter().any(|disruption| disruption.action.ends_pods()) {
        let why =
            "no repeatable disruption terminates pods: add an action such as deletePod or rollingRestart";
        return wrong("spec.disruptions", why);
    }
    match &scenario.load.settings.pace {
        Pace::Open(stages) if stages.iter().any(|stage| [stage.from, stage.to] != [stages[0].from; 2]) => {
            wrong(
                "spec.load.stages",
                "the load would change from round to round: use a single rate, without a ramp",
            )
        }
        Pace::Closed(Length::Requests(_)) => {
            wrong("spec.load", "the load ends after a fixed number of requests: give it a duration")
        }
        Pace::Open(_) | Pace::Closed(Length::Time(_)) => Ok(()),
    }
}

/// Describes the planned looks.
pub fn in_words(looks: &Looks) -> String {
    let confidences: Vec<String> = looks.alphas.iter().map(|alpha| percent(1.0 - alpha)).collect();
    format!(
        "repeats its disruptions while its gate is inconclusive: up to {} rounds, with a look at the gate after each. \
         All looks together have an error probability of {} (Lan and DeMets 1983, Pocock-type spending), so their \
         bounds have a confidence of {}",
        looks.most(),
        percent(ALPHA),
        confidences.join(", ")
    )
}

/// Returns a run's planned looks at its gate.
pub fn of_gate(looks: Looks) -> PlannedLooks<'static> {
    let title = |looks: &Looks| {
        format!("look {} of {}, at {} confidence", looks.at, looks.most(), percent(1.0 - looks.alpha()))
    };
    let in_words = in_words(&looks);
    PlannedLooks { looks, in_words, title, look: &LookAtGate }
}

struct LookAtGate;

impl Look<Gate> for LookAtGate {
    fn look(&self, so_far: SoFar) -> LocalBoxFuture<'_, Result<Option<Gate>, RunError>> {
        async { Ok(judged(so_far).await?.map(|judged| gate_of(&judged))) }.boxed_local()
    }
}

/// Analyses the record of a run so far. Returns `None` if the record still lacks requests that the analysis needs.
///
/// # Errors
/// Fails if the record cannot be read.
pub async fn result_of(so_far: SoFar) -> Result<Option<RunResult>, RunError> {
    Ok(judged(so_far).await?.map(|judged| judged.analysed.analysis.result))
}

async fn judged(so_far: SoFar) -> Result<Option<JudgedRun>, RunError> {
    spawn_blocking(|| analyse(so_far)).await.map_err(RunError::other)?
}

fn analyse(SoFar { run_dir, info, until, is_last }: SoFar) -> Result<Option<JudgedRun>, RunError> {
    let recorded = run_dir.recorded();
    let (mut log, tables) = recorded.map_err(RunError::failed("failed to read the record so far"))?;
    // A record can be checked for completeness only after the run has finished.
    let expect = Expect { validity: None, ..info.expect.clone() };
    (log.info, log.torn) = (RunInfo { complete: true, ..info }, Vec::new());
    let judged = analysis::analyse_recorded(log, tables, &expect)?;
    let timeline = &judged.analysed.timeline;
    let is_whole = timeline.load_ended >= until && timeline.hole_in(timeline.origin, until).is_none();
    Ok((is_whole || is_last).then_some(judged))
}

fn gate_of(JudgedRun { analysed, checks }: &JudgedRun) -> Gate {
    let result = &analysed.analysis.result;
    let after = counted(len(result.terminations.len()), "termination");
    if let Verdict::Invalid { why } = &result.verdict {
        return Gate::Settled(format!("the measurement is invalid after {after}: {}", why.join("; ")));
    }
    // A run has no baseline, so no round decides a limit against one.
    let (of_baseline, own): (Vec<&Check>, Vec<&Check>) =
        checks.iter().partition(|check| matches!(check.name, CheckName::Worse(_)));
    match gate::verdict(own.iter().map(|check| check.verdict)) {
        CheckVerdict::Pass if of_baseline.is_empty() => {
            Gate::Settled(format!("the gate passed after {after}"))
        }
        CheckVerdict::Pass => {
            Gate::Settled(format!("all limits but those against a baseline are met after {after}"))
        }
        CheckVerdict::Fail => Gate::Settled(format!("the gate failed after {after}")),
        CheckVerdict::Inconclusive => {
            let open = own.iter().filter(|check| check.verdict == CheckVerdict::Inconclusive);
            Gate::Inconclusive(open.map(|check| check.name.to_string()).collect())
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use serde_json::{Value, json};

    use super::*;
    use rolldrop_record::{RunDir, Stamp};
    use rolldrop_scenario as scenario;

    /// Plans the looks for a scenario with these keys.
    fn asked(keys: &str, most: Option<u16>, has_command: bool) -> Result<Looks, String> {
        let text = format!(
            "apiVersion: rolldrop.dev/v1\nkind: Scenario\nmetadata: {{name: x}}\nspec:\n  \
             target: {{service: web}}\n{keys}"
        );
        let loaded = scenario::parse::<Value>(&text, "x.yaml", Path::new("."), &[]).unwrap();
        planned(most, &loaded.scenario, has_command).map_err(|e| e.to_string())
    }

    fn acting(action: &str) -> String {
        format!(
            "  load: {{duration: 30s}}\n  expect: {{dropped: {{max: 1%}}}}\n  \
             disruptions:\n    - {{at: 1s, {action}}}\n"
        )
    }

    #[test]
    fn look_schedule_is_fixed_in_advance() {
        let looks = |most| asked(&acting("action: deletePod, selector: app=web"), most, false).unwrap();
        assert_eq!((looks(None).most(), looks(None).at, looks(Some(7)).most()), (4, 1, 7));
        assert_eq!(
            in_words(&looks(Some(2))),
            "repeats its disruptions while its gate is inconclusive: up to 2 rounds, with a look at the gate after \
             each. All looks together have an error probability of 5 % (Lan and DeMets 1983, Pocock-type spending), \
             so their bounds have a confidence of 96.9 %, 98.1 %"
        );
    }

    #[test]
    fn extend_refuses_unrepeatable_disruptions() {
        let set_image = "action: setImage, workload: deployment/web, container: app, image: x";
        for (keys, why) in [
            (
                acting("action: observe"),
                "x.yaml:9: spec.disruptions[0]: --inconclusive extend: others decide when",
            ),
            (acting("action: exec, command: [x]"), "a program may do something else the second time"),
            (
                acting(set_image),
                "a second setImage would start from the state that the first one left: add for: 10s",
            ),
            (
                acting("action: scale, workload: deployment/web, replicas: 1, keep: true"),
                "a second scale would",
            ),
            (acting("action: drain, node: n1"), "a second drain would start"),
            (acting("action: nodeShutdown, node: n1"), "a second nodeShutdown would start"),
            (acting("action: relabel, selector: app=web"), "a second relabel would start"),
            (acting("action: crash, selector: app=web"), "no repeatable disruption terminates pods"),
            ("  load: {duration: 30s}\n  expect: {dropped: {max: 1}}\n".to_owned(), "spec.disruptions: "),
            (
                acting("action: deletePod, selector: app=web")
                    .replace("duration: 30s", "stages: [{rate: 5, duration: 20s}, {rate: 9, duration: 10s}]"),
                "use a single rate",
            ),
            (
                acting("action: deletePod, selector: app=web")
                    .replace("duration: 30s", "stages: [{from: 5, rate: 9, ramp: linear, duration: 20s}]"),
                "without a ramp",
            ),
        ] {
            let error = asked(&keys, None, false).unwrap_err();
            assert!(error.contains(why) && error.contains("x.yaml:"), "{why}: {error}");
        }
        for fine in [
            acting(&format!("{set_image}, for: 5s")),
            acting("action: drain, node: n1, for: 5s"),
            acting("action: rollingRestart, workload: deployment/web"),
            acting("action: deletePod, selector: app=web, until: {terminations: 5}"),
        ] {
            assert!(asked(&fine, None, false).is_ok(), "{fine}");
        }
    }

    #[test]
    fn extend_needs_gate_and_forbids_command() {
        let fine = acting("action: deletePod, selector: app=web");
        let error = |keys: &str, has_command| asked(keys, None, has_command).unwrap_err();
        assert!(error(&fine, true).contains("a COMMAND may do something else"));
        assert!(
            error(&fine.replace("expect: {dropped: {max: 1%}}", "expect: {}"), false)
                .contains("needs a gate")
        );
    }

    #[test]
    fn limit_against_baseline_asks_for_no_round() {
        let run = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/reference/runs/plain-rollout/run");
        let gate = |expect: Value| {
            let run_dir = RunDir::open(Path::new(run)).unwrap();
            let info = RunInfo { expect: serde_json::from_value(expect).unwrap(), ..run_dir.info().unwrap() };
            let so_far = SoFar { run_dir, info, until: Stamp::default(), is_last: true };
            gate_of(&analyse(so_far).unwrap().unwrap())
        };
        let settled = |expect| match gate(expect) {
            Gate::Settled(why) => why,
            Gate::Inconclusive(open) => panic!("{open:?}"),
        };
        let met = "all limits but those against a baseline are met after 18 terminations";
        assert_eq!(settled(json!({"dropped": {"max": 1000, "worse": "10%"}})), met);
        assert_eq!(settled(json!({"dropped": {"max": 1000}})), "the gate passed after 18 terminations");
        let failed = "the gate failed after 18 terminations";
        assert_eq!(settled(json!({"dropped": {"max": 0, "worse": "10%"}})), failed);
        match gate(json!({"dropped": {"max": 1000, "worse": "10%"}, "windows": {"max": "60s"}})) {
            Gate::Inconclusive(open) => assert_eq!(open, ["windows.max"]),
            Gate::Settled(why) => panic!("{why}"),
        }
    }
}
