//! `rolldrop load`.

mod output;

use std::net::IpAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::str::FromStr;
use std::time::Duration;

use super::exit::Exit;
use super::progress::Progress;
use super::report::{Format, print};
use super::signals::Interrupts;
use crate::load::{Arrivals, Connections, Length, Pace, Plan, PortRange, Prepared, Settings, Stage, Summary};
use crate::record::run_dir::EventLog;
use crate::record::run_info::{Balances, ClusterInfo, FORMAT_VERSION, LoadPlan, Target, Tool};
use crate::record::{Clock, Event, EventKind, Expect, RunDir, RunInfo, Stamp};

const EXAMPLES: &str = "\
Examples:
  rolldrop load http://127.0.0.1:8080/ -r 500 -d 10s
  rolldrop load http://web.shop.svc/ --connections mixed:0.2 --out run1 --format json";

/// Arguments of `rolldrop load`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct LoadArgs {
    /// Where requests go, such as http://HOST:PORT/PATH
    url: String,
    /// Requests per second, or max: a closed loop, in which each connection sends its next request
    /// when it has the answer to the last
    #[arg(short, long, default_value = "200", value_name = "RATE|max", conflicts_with = "stages")]
    rate: Rate,
    /// Length of the counted part, such as 30s or 1m30s
    #[arg(short, long, default_value = "30s", value_parser = super::parse_duration, value_name = "D",
        conflicts_with = "stages")]
    duration: Duration,
    /// Send this many requests, instead of for a duration
    #[arg(short = 'n', long, value_name = "N", conflicts_with_all = ["duration", "stages"])]
    requests: Option<u64>,
    /// A rate over some time, such as 100:10s, or a linear ramp, such as 100-500:30s; given several times,
    /// one after the other
    #[arg(long = "stage", value_name = "RATE:D|FROM-TO:D")]
    stages: Vec<Stage>,
    /// Send as independent users come (a Poisson process with the rate as its mean), not evenly
    #[arg(long)]
    poisson: bool,
    /// Draw at random from this number on, so that a run can be repeated [default: another each time]
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Length of a warm-up before it, which is recorded but not counted
    #[arg(long, default_value = "0s", value_parser = super::parse_duration, value_name = "D")]
    warmup: Duration,
    /// The most connections open at a time [default: what the rate can hold open until its timeouts]
    #[arg(short = 'c', long, value_name = "N")]
    max_connections: Option<usize>,
    /// fresh (a new one for each request), keepalive, or mixed:SHARE (that share of requests on fresh ones)
    #[arg(long, default_value_t = Connections::Fresh, value_name = "MODE")]
    connections: Connections,
    /// How long connecting may take
    #[arg(long, default_value = "1s", value_parser = super::parse_duration, value_name = "D")]
    connect_timeout: Duration,
    /// How long the whole answer may take, from the moment of sending
    #[arg(long, default_value = "5s", value_parser = super::parse_duration, value_name = "D")]
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
    /// The ports that connections come from, used in turn [default: the system's ephemeral ports]
    #[arg(long, value_name = "FIRST-LAST")]
    source_ports: Option<PortRange>,
    /// An address that connections come from; may be given as often as there are workers
    #[arg(long = "source-address", value_name = "ADDRESS")]
    source_addresses: Vec<IpAddr>,
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

/// What `--rate` takes.
#[derive(Clone, Copy, Debug)]
enum Rate {
    PerSecond(f64),
    Max,
}

impl FromStr for Rate {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "max" => Ok(Rate::Max),
            number => number
                .parse()
                .map(Rate::PerSecond)
                .map_err(|_| "needs a number of requests per second, or max".to_owned()),
        }
    }
}

impl LoadArgs {
    /// Runs the command.
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        let plan = Plan::new(self.settings())?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let exit = runtime.block_on(self.measure(plan));
        // After an interruption, a name that is still being looked up is not waited for.
        runtime.shutdown_background();
        exit
    }

    fn settings(&self) -> Settings {
        Settings {
            pace: self.pace(),
            arrivals: if self.poisson { Arrivals::Poisson } else { Arrivals::Even },
            seed: self.seed.unwrap_or_else(rand::random),
            warmup: self.warmup,
            connections: self.connections,
            max_connections: self.max_connections,
            connect_timeout: self.connect_timeout,
            response_timeout: self.response_timeout,
            method: self.method.clone(),
            headers: self.headers.clone(),
            body: self.body.clone().into_bytes(),
            workers: self.workers,
            source_ports: self.source_ports,
            source_addresses: self.source_addresses.clone(),
            ..Settings::new(&self.url)
        }
    }

    fn pace(&self) -> Pace {
        match (self.rate, self.requests) {
            _ if !self.stages.is_empty() => Pace::Open(self.stages.clone()),
            (Rate::Max, Some(requests)) => Pace::Closed(Length::Requests(requests)),
            (Rate::Max, None) => Pace::Closed(Length::Time(self.duration)),
            (Rate::PerSecond(rate), Some(requests)) => Pace::constant_count(rate, requests),
            (Rate::PerSecond(rate), None) => Pace::constant(rate, self.duration),
        }
    }

    async fn measure(self, plan: Plan) -> anyhow::Result<ExitCode> {
        let clock = Clock::start();
        let mut run = match &self.out {
            Some(path) => Some(Recording::begin(RunDir::create(path)?, &self.url, &plan, clock)?),
            None => None,
        };
        let load_plan = plan.load_plan();
        let (interrupts, progress) = (Interrupts::listen()?, Progress::new(self.quiet));
        let planned = plan.requests();
        let Some(prepared) = interrupts.stop.run_until_cancelled(Prepared::new(plan)).await else {
            return Ok(Exit::Interrupted.into());
        };
        let prepared = prepared?;
        prepared.warnings().iter().for_each(|warning| progress.warn(warning));
        let mut running = prepared.start(clock, run.as_ref().map(|run| &run.dir))?;
        if let Some(run) = &mut run {
            run.started(running.started())?;
        }
        let control = running.control().clone();
        let summary = progress.follow(running.join(), &control, planned, &interrupts).await?;
        let interrupted = interrupts.stop.is_cancelled();
        drop(progress);
        if let Some(run) = run {
            run.end(&summary, interrupted)?;
        }
        let report = output::Report::new(&load_plan, &summary);
        let text = match self.format {
            Format::Text => output::text(&self.url, &load_plan, &report, &summary),
            Format::Json => serde_json::to_string_pretty(&report)? + "\n",
        };
        print(&text)?;
        Ok(if interrupted { Exit::Interrupted } else { Exit::Ok }.into())
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

fn parse_header(text: &str) -> Result<(String, String), String> {
    let (name, value) =
        text.split_once(':').ok_or_else(|| "a header is written as 'Name: value'".to_owned())?;
    Ok((name.trim().to_owned(), value.trim().to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_is_split_at_its_first_colon() {
        assert_eq!(parse_header("A: b: c "), Ok(("A".into(), "b: c".into())));
        assert!(parse_header("A").is_err());
    }
}
