//! `rolldrop load`.

mod output;

use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use clap::ValueEnum;
use indicatif::{ProgressBar, ProgressStyle};
use tokio::time::Instant;

use crate::load::{self, Connections, Plan, Progress, Running, Settings, Summary};
use crate::record::run_dir::EventLog;
use crate::record::run_info::{Balances, ClusterInfo, FORMAT_VERSION, LoadPlan, Target, Tool};
use crate::record::{Clock, Event, EventKind, Expect, RunDir, RunInfo, Stamp};

const EXAMPLES: &str = "\
Examples:
  rolldrop load http://127.0.0.1:8080/ -r 500 -d 10s
  rolldrop load http://web.shop.svc/ --connections mixed:0.2 --out run1 --format json";

/// The exit status of a run that was interrupted.
const INTERRUPTED: u8 = 130;

/// Arguments of `rolldrop load`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct LoadArgs {
    /// Where requests go, such as http://HOST:PORT/PATH
    url: String,
    /// Requests per second
    #[arg(short, long, default_value_t = 200.0)]
    rate: f64,
    /// Length of the counted part, such as 30s or 1m30s
    #[arg(short, long, default_value = "30s", value_parser = parse_duration)]
    duration: Duration,
    /// Length of a warm-up before it, which is recorded but not counted
    #[arg(long, default_value = "0s", value_parser = parse_duration)]
    warmup: Duration,
    /// The most connections open at a time [default: what the rate can hold open until its timeouts]
    #[arg(short = 'c', long, value_name = "N")]
    max_connections: Option<usize>,
    /// fresh (a new one for each request), keepalive, or mixed:SHARE (that share of requests on fresh ones)
    #[arg(long, default_value_t = Connections::Fresh, value_name = "MODE")]
    connections: Connections,
    /// How long connecting may take
    #[arg(long, default_value = "1s", value_parser = parse_duration, value_name = "D")]
    connect_timeout: Duration,
    /// How long the whole answer may take, from the moment of sending
    #[arg(long, default_value = "5s", value_parser = parse_duration, value_name = "D")]
    response_timeout: Duration,
    /// A request header; may be given several times
    #[arg(short = 'H', long = "header", value_name = "NAME: VALUE", value_parser = parse_header)]
    headers: Vec<(String, String)>,
    /// The request's method
    #[arg(short, long, default_value = "GET")]
    method: String,
    /// The request's body
    #[arg(long, default_value = "", hide_default_value = true, value_name = "TEXT")]
    body: String,
    /// Worker threads
    #[arg(long, default_value_t = 1, value_name = "N")]
    workers: usize,
    /// Write a run directory, which must not exist yet or be empty
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// The form of the result on stdout
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
    /// No progress on stderr
    #[arg(short, long)]
    quiet: bool,
}

/// The form of the result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Format {
    /// A table for people
    Text,
    /// One JSON object
    Json,
}

impl LoadArgs {
    /// Runs the command.
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        let plan = Plan::new(self.settings())?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(self.measure(plan))
    }

    fn settings(&self) -> Settings {
        Settings {
            rate: self.rate,
            duration: self.duration,
            warmup: self.warmup,
            connections: self.connections,
            max_connections: self.max_connections,
            connect_timeout: self.connect_timeout,
            response_timeout: self.response_timeout,
            method: self.method.clone(),
            headers: self.headers.clone(),
            body: self.body.clone().into_bytes(),
            workers: self.workers,
            ..Settings::new(&self.url)
        }
    }

    async fn measure(self, plan: Plan) -> anyhow::Result<ExitCode> {
        let clock = Clock::start();
        let mut run = match &self.out {
            Some(path) => Some(Recording::begin(RunDir::create(path)?, &self.url, &plan, clock)?),
            None => None,
        };
        let load_plan = plan.load_plan();
        let view = View::new(self.quiet, plan.requests());
        let mut running = load::start(plan, clock, run.as_ref().map(|run| &run.dir)).await?;
        if let Some(run) = &mut run {
            run.started(running.started())?;
        }
        let (summary, interrupted) = watch(&mut running, &view).await?;
        view.clear();
        if let Some(run) = run {
            run.end(&summary, interrupted)?;
        }
        let report = output::Report::new(&load_plan, &summary);
        let text = match self.format {
            Format::Text => output::text(&self.url, &load_plan, &report, &summary),
            Format::Json => serde_json::to_string_pretty(&report)? + "\n",
        };
        std::io::stdout().write_all(text.as_bytes()).context("failed to write the result")?;
        Ok(if interrupted { ExitCode::from(INTERRUPTED) } else { ExitCode::SUCCESS })
    }
}

/// Waits for the load's end, which Ctrl-C brings nearer: once ends the schedule,
/// twice cuts off what is in flight. Answers whether it was interrupted.
async fn watch(running: &mut Running, view: &View) -> anyhow::Result<(Summary, bool)> {
    let mut ticks = tokio::time::interval_at(Instant::now() + view.period(), view.period());
    let mut interrupted = false;
    loop {
        tokio::select! {
            summary = running.join() => return Ok((summary?, interrupted)),
            _ = ticks.tick() => view.show(&running.progress()),
            pressed = tokio::signal::ctrl_c() => {
                pressed.context("failed to listen for Ctrl-C")?;
                if interrupted {
                    running.abort();
                } else {
                    interrupted = true;
                    running.stop();
                    view.say("stopping: waiting for requests in flight; Ctrl-C again cuts them off");
                }
            }
        }
    }
}

/// The run directory of a load on its own.
struct Recording {
    dir: RunDir,
    info: RunInfo,
    events: EventLog,
    clock: Clock,
}

impl Recording {
    fn begin(dir: RunDir, url: &str, plan: &Plan, clock: Clock) -> anyhow::Result<Self> {
        let load = plan.load_plan();
        let info = RunInfo {
            format: FORMAT_VERSION,
            tool: Tool::this(),
            name: "load".to_owned(),
            scenario: serde_json::json!({ "target": { "url": url }, "load": load }),
            expect: Expect::default(),
            cluster: ClusterInfo { dataplane: "unknown".to_owned(), ..ClusterInfo::default() },
            targets: vec![Target {
                name: url.to_owned(),
                url: url.to_owned(),
                consumer: url.to_owned(),
                balances: Balances::Connections,
            }],
            load,
            sources: plan.recorders(),
            started: clock.now(),
            ended: None,
            complete: false,
            interrupted: false,
        };
        dir.write_info(&info)?;
        let events = dir.event_log()?;
        Ok(Self { dir, info, events, clock })
    }

    fn started(&mut self, zero: Stamp) -> anyhow::Result<()> {
        let LoadPlan { rate, duration_s, warmup_s, .. } = self.info.load;
        self.event(zero, EventKind::LoadStarted { rate, duration_s, warmup_s })
    }

    fn end(mut self, summary: &Summary, interrupted: bool) -> anyhow::Result<()> {
        self.event(summary.ended, EventKind::LoadEnded { scheduled: summary.scheduled })?;
        self.info.ended = Some(self.clock.now());
        self.info.complete = !summary.stopped_early;
        self.info.interrupted = interrupted;
        Ok(self.dir.write_info(&self.info)?)
    }

    /// Without a coordinator the load's first source speaks for all: they share one clock.
    fn event(&mut self, at: Stamp, kind: EventKind) -> anyhow::Result<()> {
        let source = self.info.sources.first().map(|source| source.name.as_str()).unwrap_or_default();
        Ok(self.events.append(&Event::new(at, source, kind))?)
    }
}

/// Progress on stderr.
enum View {
    /// A bar, on a terminal.
    Bar(ProgressBar),
    /// A line a second.
    Lines,
    /// Nothing.
    Quiet,
}

impl View {
    fn new(quiet: bool, requests: u64) -> Self {
        if quiet {
            return View::Quiet;
        }
        if !std::io::stderr().is_terminal() {
            return View::Lines;
        }
        let style = ProgressStyle::with_template("{bar:30} {percent:>3} %  {eta}  {wide_msg}");
        let bar = ProgressBar::new(requests);
        View::Bar(match style {
            Ok(style) => bar.with_style(style),
            Err(_) => bar,
        })
    }

    fn period(&self) -> Duration {
        match self {
            View::Bar(_) => Duration::from_millis(200),
            View::Lines | View::Quiet => Duration::from_secs(1),
        }
    }

    fn show(&self, progress: &Progress) {
        match self {
            View::Bar(bar) => {
                bar.set_position(progress.scheduled);
                bar.set_message(describe(progress));
            }
            View::Lines => eprintln!("{} scheduled, {}", progress.scheduled, describe(progress)),
            View::Quiet => {}
        }
    }

    fn say(&self, message: &str) {
        match self {
            View::Bar(bar) => bar.println(message),
            View::Lines => eprintln!("{message}"),
            View::Quiet => {}
        }
    }

    fn clear(&self) {
        if let View::Bar(bar) = self {
            bar.finish_and_clear();
        }
    }
}

fn describe(progress: &Progress) -> String {
    let mut parts = vec![format!("{} in flight", progress.in_flight)];
    parts.extend(progress.outcomes.iter().map(|(outcome, count)| format!("{count} {outcome}")));
    if let Some(recent) = progress.recent {
        let ms = |d: Duration| d.as_secs_f64() * 1e3;
        parts.push(format!("p50 {:.1} ms, p99 {:.1} ms", ms(recent.p50), ms(recent.p99)));
    }
    parts.join(", ")
}

fn parse_duration(text: &str) -> Result<Duration, String> {
    let wrong = || format!("{text:?} is no duration: write it as 500ms, 30s or 1m30s");
    let duration = text.parse::<jiff::SignedDuration>().map_err(|_| wrong())?;
    Duration::try_from(duration).map_err(|_| wrong())
}

fn parse_header(text: &str) -> Result<(String, String), String> {
    let (name, value) =
        text.split_once(':').ok_or_else(|| "a header is written as 'Name: value'".to_owned())?;
    Ok((name.trim().to_owned(), value.trim().to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_and_headers_are_read_or_explained() {
        assert_eq!(parse_duration("1m30s"), Ok(Duration::from_secs(90)));
        assert_eq!(parse_duration("500ms"), Ok(Duration::from_millis(500)));
        for wrong in ["30", "-1s", "soon", ""] {
            assert!(parse_duration(wrong).unwrap_err().contains("write it as"), "{wrong}");
        }
        assert_eq!(parse_header("A: b: c "), Ok(("A".into(), "b: c".into())));
        assert!(parse_header("A").is_err());
    }
}
