//! `rolldrop load`.

mod load_args;
mod stream_args;
mod tls_args;

use std::cell::{Cell, RefCell};
use std::convert::Infallible;
use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

use anyhow::Context;
use clap::error::{ContextKind, ContextValue};

use super::exit::Exit;
use super::formats::LoadFormat;
use super::progress::ProgressDisplay;
use super::say::{print, say, text_options};
use super::signals::SignalListener;
pub(super) use load_args::LoadArgs;
use rolldrop_campaign::hgrm;
use rolldrop_campaign::load_result::{self, LoadReport};
use rolldrop_drive::follow;
use rolldrop_drive::run::announce_stages;
use rolldrop_drive::viewer::Planned;
use rolldrop_explain::model::{CheckVerdict, Verdict};
use rolldrop_judge::gate;
use rolldrop_load::{LoadSummary, Plan, PlanError, Prepared, check_conntrack};
use rolldrop_record::run_dir::EventLog;
use rolldrop_record::run_info::{ClusterInfo, FORMAT_VERSION, LoadPlan, Target, Tool};
use rolldrop_record::{Clock, Event, EventKind, Expect, Policy, RunDir, RunInfo, Stamp};

/// Adds a hint to a command-line error if the option belongs to another tool: `-z` is `-d` here.
pub(super) fn with_hint(mut error: clap::Error) -> clap::Error {
    let is_length =
        matches!(error.get(ContextKind::InvalidArg), Some(ContextValue::String(of)) if of == "-z");
    if is_length {
        let hint = "set the length of a load with -d, such as -d 30s".into();
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![hint]));
    }
    error
}

impl LoadArgs {
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        let plan = Plan::new(self.settings()?).map_err(|error| self.with_hint(error))?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let exit = runtime.block_on(self.measure(plan));
        // After an interruption, this does not wait for pending DNS lookups.
        runtime.shutdown_background();
        exit
    }

    /// Adds a hint for users of other tools, where `-q` sets the rate. Here, its value would be taken for a URL.
    fn with_hint(&self, error: PlanError) -> anyhow::Error {
        let rate = self.rate_after_quiet();
        let hint = rate.map(|rate| format!("-q means --quiet here: for {rate} requests/s, use -r {rate}"));
        match hint {
            Some(hint) => anyhow::Error::new(error).context(hint),
            None => error.into(),
        }
    }

    async fn measure(self, plan: Plan) -> anyhow::Result<ExitCode> {
        let clock = Clock::start();
        let (load_plan, targets) = (plan.load_plan(), plan.targets());
        let title = title(&targets);
        let (signals, progress) = (SignalListener::begin()?, ProgressDisplay::new(self.quiet, clock));
        let operator = signals.operator(&progress);
        let (interrupts, viewer) = (&operator.interrupts, &operator.viewer);
        let (planned, stages, warmup) = (Planned::of(&plan), plan.stages(), plan.warmup());
        if self.evidence.is_some() {
            check_conntrack()?;
        }
        let Some(prepared) = interrupts.stop.run_until_cancelled(Prepared::new(plan.clone())).await else {
            return Ok(Exit::Interrupted.into());
        };
        let mut prepared = prepared?.with_evidence(clock)?.with_records(&self.record)?;
        // Opens the output now so that an unwritable path fails before the first request, not after the last.
        let mut run = match &self.out {
            Some(path) => Some(Recording::begin(RunDir::create(path)?, &plan, clock)?),
            None => None,
        };
        let table = match &self.hgrm {
            Some(path) => Some((path.as_path(), File::create(path).with_context(|| unwritten(path))?)),
            None => None,
        };
        prepared.choose_families(clock).await.iter().for_each(|warning| viewer.warn(warning));
        prepared.warnings().iter().for_each(|warning| viewer.warn(warning));
        let mut running = prepared.start(clock, run.as_ref().map(|run| &run.dir))?;
        if let Some(run) = &mut run {
            run.started(running.started())?;
        }
        viewer.say("Ctrl-C ends the load and keeps the results");
        let control = running.control().clone();
        let zero = running.started() + warmup;
        let mut events = running.take_events();
        let run = RefCell::new(run);
        let note = |at, kind| {
            if let Some(run) = &mut *run.borrow_mut()
                && let Err(error) = run.event(at, kind)
            {
                viewer.warn(&format!("{error:#}"));
            }
        };
        let announced = announce_stages(clock, zero, &stages, note);
        let noted = async {
            while let Some(event) = events.recv().await {
                note(event.at, event.kind);
            }
            std::future::pending::<Infallible>().await
        };
        let stopped = Cell::new(None);
        let stopping = async {
            interrupts.stop.cancelled().await;
            stopped.set(Some(clock.now()));
            std::future::pending::<Infallible>().await
        };
        viewer.begins();
        let following = follow(running.join(), &control, &planned, None, &operator);
        let summary = tokio::select! {
            biased;
            never = stopping => match never {},
            summary = progress.show(following) => summary,
            never = announced => match never {},
            never = noted => match never {},
        };
        viewer.ends();
        let summary = summary.with_context(|| self.cut_off())?;
        while let Ok(event) = events.try_recv() {
            note(event.at, event.kind);
        }
        let run = run.into_inner();
        let interrupted = interrupts.stop.is_cancelled();
        drop(progress);
        if let Some(run) = run {
            run.end(&summary, interrupted)?;
        }
        let report = self.show(&title, &load_plan, (&summary, stopped.get()), table)?;
        Ok(self.exit(&report, interrupted).into())
    }

    /// Returns the message for a load that was cut off.
    fn cut_off(&self) -> String {
        match &self.out {
            Some(dir) => {
                let dir = dir.display().to_string();
                let quoted = if dir.contains(char::is_whitespace) { format!("'{dir}'") } else { dir };
                format!("the load was cut short (rolldrop report {quoted} shows the recorded part)")
            }
            None => "the load was cut short".to_owned(),
        }
    }

    /// Prints the result, and writes the percentile table. `stopped` is the time the schedule was stopped early, if it was.
    fn show(
        &self,
        title: &str,
        plan: &LoadPlan,
        (summary, stopped): (&LoadSummary, Option<Stamp>),
        table: Option<(&Path, File)>,
    ) -> anyhow::Result<LoadReport> {
        let report = LoadReport::new(plan, summary, stopped);
        let text = match self.format {
            LoadFormat::Text => load_result::text(title, plan, &report, summary, text_options(None).color),
            LoadFormat::Json => serde_json::to_string_pretty(&report)? + "\n",
        };
        print(&text)?;
        if let Some((path, mut file)) = table {
            let table = hgrm::table(load_result::latency(plan, summary));
            file.write_all(table.as_bytes()).with_context(|| unwritten(path))?;
        }
        Ok(report)
    }

    /// Checks the `--fail-on` limits, and returns the exit status.
    fn exit(&self, report: &LoadReport, interrupted: bool) -> Exit {
        let checked: Vec<_> = self.fail_on.iter().map(|limit| limit.check(report)).collect();
        let missed = checked.iter().filter(|(verdict, _)| *verdict != CheckVerdict::Pass);
        missed.for_each(|(_, why)| say(why));
        let is_invalid = matches!(report.verdict, Verdict::Invalid { .. });
        match (interrupted, self.fail_on.is_empty(), is_invalid) {
            (true, ..) => Exit::Interrupted,
            (_, false, true) => Exit::Invalid,
            _ => Exit::of_verdict(gate::verdict(checked.iter().map(|(verdict, _)| *verdict))),
        }
    }
}

fn unwritten(path: &Path) -> String {
    format!("failed to write {}", path.display())
}

/// Run directory of a load that `rolldrop load` sends.
struct Recording {
    dir: RunDir,
    info: RunInfo,
    events: EventLog,
    clock: Clock,
}

impl Recording {
    fn begin(dir: RunDir, plan: &Plan, clock: Clock) -> anyhow::Result<Self> {
        let load = plan.load_plan();
        let info = RunInfo {
            format: FORMAT_VERSION,
            tool: Tool::this(),
            run: plan.run().clone(),
            name: "load".to_owned(),
            scenario: serde_json::json!({ "load": load }),
            expect: Expect::default(),
            cluster: ClusterInfo::default(),
            targets: plan.targets(),
            load,
            sources: plan.recorders(),
            started: clock.now(),
            ended: None,
            complete: false,
            interrupted: false,
            max_busy: None,
            aborted: None,
            looks: None,
            rounds: None,
            policy: Policy::default(),
            events: None,
        };
        dir.write_info(&info)?;
        let events = dir.event_log()?;
        Ok(Self { dir, info, events, clock })
    }

    fn started(&mut self, zero: Stamp) -> anyhow::Result<()> {
        let LoadPlan { rate, duration_s, warmup_s, .. } = self.info.load;
        self.event(zero, EventKind::LoadStarted { rate, duration_s, warmup_s })
    }

    fn end(mut self, summary: &LoadSummary, interrupted: bool) -> anyhow::Result<()> {
        self.event(summary.ended, EventKind::LoadEnded { scheduled: summary.scheduled })?;
        self.info.ended = Some(self.clock.now());
        self.info.complete = !summary.stopped_early;
        self.info.interrupted = interrupted;
        self.info.events = Some(self.events.close());
        Ok(self.dir.write_info(&self.info)?)
    }

    /// Appends an event. Without a coordinator, events are attributed to the load's first source; all sources share one
    /// clock.
    fn event(&mut self, at: Stamp, kind: EventKind) -> anyhow::Result<()> {
        let source = self.info.sources.first().map(|source| source.name.as_str()).unwrap_or_default();
        Ok(self.events.append(&Event::new(at, source, kind))?)
    }
}

/// Describes the targets in a few words.
fn title(targets: &[Target]) -> String {
    match targets {
        [target] => target.url.clone(),
        [first, others @ ..] => format!("{} and {} more", first.url, others.len()),
        [] => String::new(),
    }
}

#[cfg(test)]
mod tests;
