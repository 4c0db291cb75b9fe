//! Resuming a tuning, and proving its choice again.

use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use clap::{Args, FromArgMatches};

use super::TuneArgs;
use super::state::State;
use super::subject::{Subject, whose, workload};
use crate::cli::progress::Progress;
use crate::cli::run;
use crate::cli::signals::Interrupts;
use crate::cluster::Cluster;
use crate::coordinator::{Caller, LeftOvers, Since, changed_by_others};
use rolldrop_judge::tune::{Choice, Tuning};
use rolldrop_scenario::{Loaded, Scenario};
use rolldrop_sidecar::inject::pod_labels;

/// An earlier tuning, whose choice is to be proven again.
pub(super) struct Verified {
    pub(super) arguments: Vec<String>,
    pub(super) directory: PathBuf,
    pub(super) chosen: Choice,
}

/// Reads what a tuning has chosen.
///
/// # Errors
/// Fails if the tuning has proven nothing.
pub(super) fn verified(tuning: &Path) -> anyhow::Result<Verified> {
    let state = State::read(tuning)?;
    let path = tuning.join("tune.json");
    let text = std::fs::read(&path).with_context(|| format!("failed to read {}", path.display()))?;
    let found: Tuning = serde_json::from_slice(&text)
        .with_context(|| format!("failed to read {}: restore it, or tune anew", path.display()))?;
    match found.chosen.filter(|_| found.outcome.is_shown()) {
        Some(chosen) => Ok(Verified { arguments: state.arguments, directory: state.directory, chosen }),
        None => {
            bail!(
                "the tuning in {} has proven nothing: continue with --resume, or tune anew",
                tuning.display()
            )
        }
    }
}

impl TuneArgs {
    /// Returns the arguments of the tuning to resume, and its state; without `--resume`, these arguments.
    pub(super) fn resumed(self) -> anyhow::Result<(Self, Option<State>)> {
        let Some(dir) = &self.resume else { return Ok((self, None)) };
        let dir = absolute(dir)?;
        let state = State::read(&dir)?;
        std::env::set_current_dir(&state.directory).with_context(|| {
            format!("failed to go to {}, where the tuning began", state.directory.display())
        })?;
        let mut args = parse(&state.arguments)?;
        args.measure.yes |= self.measure.yes;
        args.measure.quiet |= self.measure.quiet;
        args.max_rollouts = self.max_rollouts.or(args.max_rollouts);
        args.out = Some(dir);
        Ok((args, Some(state)))
    }

    /// Returns the arguments of an earlier tuning, for proving its choice again.
    pub(super) fn verifying(self, earlier: &Verified) -> anyhow::Result<Self> {
        let mut args = parse(&earlier.arguments)?;
        args.measure.yes |= self.measure.yes;
        args.measure.quiet |= self.measure.quiet;
        args.max_rollouts = self.max_rollouts;
        // The default action is what users run.
        args.disrupt = None;
        args.out = self.out.map(std::path::absolute).transpose().context("failed to find --out")?;
        (args.apply, args.dry_run, args.verify) = (self.apply, self.dry_run, self.verify);
        // Paths of its arguments are relative to where it began, if that is still there.
        if earlier.directory.is_dir() {
            std::env::set_current_dir(&earlier.directory)
                .context("failed to go to where the tuning began")?;
        }
        Ok(args)
    }
}

fn absolute(dir: &Path) -> anyhow::Result<PathBuf> {
    std::fs::canonicalize(dir).with_context(|| format!("failed to find {}", dir.display()))
}

fn parse(arguments: &[String]) -> anyhow::Result<TuneArgs> {
    let command = TuneArgs::augment_args(clap::Command::new("tune").no_binary_name(true));
    let matches = command.try_get_matches_from(arguments).context("failed to read the tuning's arguments")?;
    TuneArgs::from_arg_matches(&matches).context("failed to read the tuning's arguments")
}

/// Puts back what a killed run of the tuning had changed.
///
/// # Errors
/// Fails if the workload is neither as the tuning found it nor as it set it: then nothing is changed.
pub(super) async fn put_back(
    args: &TuneArgs,
    state: &State,
    out: &Path,
    (interrupts, progress): (&Interrupts, &Progress),
) -> anyhow::Result<()> {
    let left = LeftOvers::in_dir(out)?;
    if left.cluster().is_none() {
        return Ok(());
    }
    let name = args.scenario_name();
    let Loaded { scenario, cluster } = args.loaded(Vec::new())?;
    let cluster = Cluster::connect(args.measure.choice(name, cluster, out)).await;
    let cluster = cluster.context("failed to get a cluster")?;
    let caller = run::caller(&cluster, args.measure.namespace.clone(), interrupts)?;
    let put = put_back_by(&caller, (state, &scenario), left, (out, progress)).await;
    cluster.shut_down().await;
    put
}

async fn put_back_by(
    caller: &Caller,
    (state, scenario): (&State, &Scenario),
    left: LeftOvers,
    (out, progress): (&Path, &Progress),
) -> anyhow::Result<()> {
    let is_own = scenario.manifests.iter().any(|object| pod_labels(object).is_some());
    if !is_own {
        let objects = caller.behind(&whose(scenario)).await?;
        if let Since::Changed { what } = left.since(&state.object, workload(&objects, scenario)?) {
            return Err(differs(state, &what.join("; ")));
        }
    }
    progress.say("putting back what the killed run had changed");
    let all = left.undo(caller).await?;
    all.iter().for_each(|undone| progress.say(&undone.to_string()));
    if let Err(not_yet) = caller.await_effect(&all, |what: &str| progress.say(what)).await {
        bail!("{not_yet}: resume later");
    }
    if let Some(left) = all.iter().find(|undone| undone.is_left()) {
        bail!("not everything could be put back ({left}): use rolldrop cleanup {}", out.display());
    }
    Ok(())
}

fn differs(state: &State, what: &str) -> anyhow::Error {
    anyhow::anyhow!(
        "{} {} is neither as the tuning found it nor as it set it: somebody has changed it since ({what}). Nothing is \
         changed. Begin a new tuning",
        state.object["kind"].as_str().unwrap_or("the workload").to_lowercase(),
        state.object["metadata"]["name"].as_str().unwrap_or_default(),
    )
}

/// Checks that the workload is as the tuning found it.
pub(super) fn check(state: &State, subject: &Subject) -> anyhow::Result<()> {
    let found = subject.elsewhere().map(|elsewhere| elsewhere.title.as_str());
    if found != state.cluster.as_deref() {
        bail!(
            "the tuning was on {}, and this is {}: name its cluster",
            state.cluster.as_deref().unwrap_or("the embedded cluster"),
            found.unwrap_or("the embedded cluster")
        );
    }
    let changed = || changed_by_others(&state.object, subject.object());
    match (!subject.is_own()).then(changed).flatten() {
        Some(what) => Err(differs(state, &what)),
        None => Ok(()),
    }
}
