//! Resumes a tuning, or proves an earlier choice again.

use std::collections::BTreeSet;
use std::path::Path;

use super::TuningRequest;
use super::state::TuningState;
use super::subject::{Subject, whose, workload};
use rolldrop_drive::Operator;
use rolldrop_drive::api::Caller;
use rolldrop_drive::observe::changed_by_others;
use rolldrop_drive::plan::objects_behind;
use rolldrop_drive::run::RunError;
use rolldrop_drive::undo::{LeftOvers, Since, await_effect};
use rolldrop_drive::viewer::Viewer;
use rolldrop_judge::tuning::{ChosenSettings, Tuning};
use rolldrop_scenario::Scenario;
use rolldrop_sidecar::inject::pod_labels;

/// Reads a tuning and its choice, to prove the choice again.
///
/// # Errors
/// Fails if the tuning proved nothing.
pub fn verified(tuning: &Path) -> Result<(TuningState, ChosenSettings), RunError> {
    let state = TuningState::read(tuning)?;
    let path = tuning.join("tune.json");
    let failed = || format!("failed to read {}", path.display());
    let text = std::fs::read(&path).map_err(RunError::failed(failed()))?;
    let found = serde_json::from_slice(&text);
    let found: Tuning = found.map_err(RunError::failed(failed() + ": restore it, or start a new tuning"))?;
    match found.chosen.filter(|_| found.outcome.is_shown()) {
        Some(chosen) => Ok((state, chosen)),
        None => Err(RunError::Refused(format!(
            "the tuning in {} has not proven a sleep: continue it with --resume, or start a new one",
            tuning.display()
        ))),
    }
}

/// Reverts the changes made by a killed run of the tuning.
///
/// # Errors
/// Fails, without changing anything, if the workload is neither as the tuning found it nor as the tuning set it.
pub(super) async fn put_back(
    request: &TuningRequest,
    state: &TuningState,
    out: &Path,
    operator: &Operator,
) -> Result<(), RunError> {
    let left = LeftOvers::in_dir(out).map_err(RunError::other)?;
    if left.cluster().is_none() {
        return Ok(());
    }
    let loaded = request.source.load(Vec::new())?;
    let (scenario, cluster, caller) = request.connect(loaded, out, &operator.interrupts).await?;
    let put =
        put_back_by((&caller, cluster.server()), (state, &scenario), left, (out, &*operator.viewer)).await;
    cluster.shut_down().await;
    put
}

async fn put_back_by(
    (caller, server): (&Caller, &str),
    (state, scenario): (&TuningState, &Scenario),
    left: LeftOvers,
    (out, viewer): (&Path, &dyn Viewer),
) -> Result<(), RunError> {
    let is_own = scenario.manifests.iter().any(|object| pod_labels(object).is_some());
    if !is_own {
        let objects = objects_behind(caller, &whose(scenario)).await?;
        if let Since::Changed { what } = left.since(&state.object, workload(&objects, scenario)?) {
            return Err(differs(state, &what.join("; ")));
        }
    }
    viewer.say("undoing the changes of the killed run");
    let all = left.undo(caller, server).await.map_err(RunError::other)?;
    all.iter().for_each(|undone| viewer.say(&undone.to_string()));
    if let Err(not_yet) = await_effect(caller, &all, &BTreeSet::new(), |what: &str| viewer.say(what)).await {
        return Err(RunError::Refused(format!("{not_yet}: resume again later")));
    }
    if let Some(left) = all.iter().find(|undone| undone.is_left()) {
        let out = out.display();
        let why = format!("some changes could not be undone ({left}): use rolldrop cleanup {out}");
        return Err(RunError::Refused(why));
    }
    Ok(())
}

fn differs(state: &TuningState, what: &str) -> RunError {
    RunError::Refused(format!(
        "{} {} matches neither its original settings nor the tuning's: someone has changed it since ({what}). \
         Nothing was changed. Start a new tuning",
        state.object["kind"].as_str().unwrap_or("the workload").to_lowercase(),
        state.object["metadata"]["name"].as_str().unwrap_or_default(),
    ))
}

/// Checks that the workload is still as the tuning found it.
pub(super) fn check(state: &TuningState, subject: &Subject) -> Result<(), RunError> {
    let found = subject.elsewhere.as_ref().map(|elsewhere| elsewhere.title.as_str());
    if found != state.cluster.as_deref() {
        return Err(RunError::Refused(format!(
            "the tuning ran on {}, but this is {}: select the cluster and namespace of the tuning",
            state.cluster.as_deref().unwrap_or("the embedded cluster"),
            found.unwrap_or("the embedded cluster")
        )));
    }
    let changed = || changed_by_others(&state.object, &subject.object);
    match (!subject.is_own).then(changed).flatten() {
        Some(what) => Err(differs(state, &what)),
        None => Ok(()),
    }
}
