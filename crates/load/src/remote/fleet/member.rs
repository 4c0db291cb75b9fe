//! One worker of a fleet: its orders, its reports and its clock.

use std::convert::Infallible;
use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use futures::stream::BoxStream;
use futures::{AsyncBufReadExt, StreamExt};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::{FleetMember, FollowerState};
use crate::control::Progress;
use crate::load_process::worker_clock::{self, WorkerClock};
use crate::load_process::worker_protocol::{Prepare, WorkerOrder, WorkerReport};
use crate::load_process::{LoadEnd, Note};
use crate::remote::worker_link::{SILENCE_LIMIT, WorkerLink, WorkerLinkError};
use crate::remote::{ACKNOWLEDGED_PATH, Numbered, ORDERS_PATH, REPORTS_PATH, VERSION_PATH};
use rolldrop_record::run_info::Tool;
use rolldrop_record::wire::{CLOCK_PATH, ClockAnswer};
use rolldrop_record::{Clock, ClockOffset, EventKind, Stamp};

/// Delay between attempts to reach a worker.
const RETRY: Duration = Duration::from_millis(200);
/// Time after which an unreachable worker counts as lost.
const UNREACHABLE: Duration = Duration::from_secs(30);

/// Number of consecutive streams without a report after which no more reports are expected. Until then, a stream that
/// was cut off is reopened to get the rest.
const EMPTY: u32 = 3;

/// A worker that was lost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LostWorker {
    /// Name of the worker's pod.
    pub name: String,
    /// Name of the worker's node.
    pub node: String,
    /// Names of its sources, if the worker had been prepared.
    pub sources: Vec<String>,
    /// Reason for the loss.
    pub why: String,
}

impl LostWorker {
    fn new(FleetMember { name, node, .. }: &FleetMember, sources: &[String], why: &str) -> Self {
        Self { name: name.clone(), node: node.clone(), sources: sources.to_vec(), why: why.to_owned() }
    }
}

impl fmt::Display for LostWorker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, node, sources, why } = self;
        let sources = if sources.is_empty() { String::new() } else { format!(" ({})", sources.join(", ")) };
        write!(f, "lost load worker {name} on node {node}{sources}: {why}")
    }
}

/// Reason why a worker sends no load.
pub(super) enum WorkerFailure {
    /// The worker is gone or unreachable.
    Lost(String),
    /// The worker reported a failure, with this reason.
    Failed(String),
}

pub(super) struct FleetWorker {
    pub(super) member: FleetMember,
    /// End of the worker's load, or the reason why the worker was lost; `None` before that.
    pub(super) end: Option<Result<LoadEnd, String>>,
    pub(super) sources: Vec<String>,
    link: WorkerLink,
    /// Order to start the load that the worker has not accepted yet.
    unstarted: Option<WorkerOrder>,
    /// Number of the next order to send.
    next_order: u64,
    reports: Reports,
    pub(super) its_clock: WorkerClock,
    progress: Progress,
    /// Time the last progress report arrived, on this process's clock.
    heard: Option<Stamp>,
}

impl FleetWorker {
    pub(super) fn new(member: FleetMember) -> Self {
        let link = WorkerLink::new(member.way.clone());
        Self {
            reports: Reports { link: link.clone(), next: 0, lines: None, heard: Instant::now(), empty: 0 },
            link,
            member,
            end: None,
            sources: Vec::new(),
            unstarted: None,
            next_order: 0,
            its_clock: WorkerClock::default(),
            progress: Progress::default(),
            heard: None,
        }
    }

    pub(super) fn lost(&self, why: &str) -> LostWorker {
        LostWorker::new(&self.member, &self.sources, why)
    }

    /// Prepares the worker for its part of the load, and compares clocks. Returns the worker's warnings.
    pub(super) async fn prepare(
        &mut self,
        order: Prepare,
        own_clock: Clock,
        note: &impl Note,
    ) -> Result<Vec<String>, WorkerFailure> {
        let gone = self.member.gone.clone();
        let preparing = async {
            self.check_version().await?;
            self.order(&WorkerOrder::Prepare(Box::new(order))).await.map_err(WorkerFailure::Lost)?;
            let warnings = loop {
                match self.reports.next().await.map_err(WorkerFailure::Lost)? {
                    WorkerReport::Ready { sources, warnings } => {
                        self.sources = sources;
                        break warnings;
                    }
                    WorkerReport::Failed { why } => return Err(WorkerFailure::Failed(why)),
                    _ => {}
                }
            };
            while self.its_clock.exchanges() < worker_clock::FIRST_EXCHANGES {
                let (sent, sample) =
                    retried(|| exchange(&self.link, own_clock)).await.map_err(WorkerFailure::Lost)?;
                self.its_clock.add(sent, sample, &self.sources, note);
            }
            Ok(warnings)
        };
        tokio::select! {
            biased;
            why = gone => Err(WorkerFailure::Lost(why)),
            prepared = preparing => prepared,
        }
    }

    /// Checks the worker's version, because a different version might not understand the orders, or might measure
    /// differently.
    async fn check_version(&self) -> Result<(), WorkerFailure> {
        let tool: Tool = retried(|| self.link.json(VERSION_PATH)).await.map_err(WorkerFailure::Lost)?;
        if tool == Tool::this() {
            return Ok(());
        }
        let (Tool { name, version }, own) = (tool, Tool::this().version);
        Err(WorkerFailure::Failed(format!(
            "it runs {name} {version}, but this is {own}: set the matching image with --image"
        )))
    }

    /// Starts the load. If the worker does not accept the order within `limit`, [`Self::follow`] repeats it, so that one
    /// worker does not hold up the others.
    pub(super) async fn start(&mut self, order: WorkerOrder, limit: Duration) {
        match timeout(limit, self.order(&order)).await {
            Ok(Ok(())) => {}
            Ok(Err(why)) => self.end = Some(Err(why)),
            Err(_) => self.unstarted = Some(order),
        }
    }

    /// Sends an order, and repeats it until the worker accepts it; the worker recognises repetitions by the order's
    /// number.
    async fn order(&mut self, order: &WorkerOrder) -> Result<(), String> {
        give(&self.link, &mut self.next_order, order).await
    }

    /// Follows the worker until its load has ended, and then stays in contact until all loads have ended.
    pub(super) async fn follow(&mut self, number: usize, following: &FollowerState, note: &impl Note) {
        let Self { member, end, sources, link, unstarted, next_order, reports, its_clock, progress, heard } =
            self;
        let (clock, link, sources, gone) = (following.clock, &*link, &*sources, member.gone.clone());
        let to_the_end = async {
            let ended = match end.take() {
                Some(ended) => ended,
                None => tokio::select! {
                    biased;
                    ended = follow_reports(reports, sources, note, |said| {
                        *heard = Some(clock.now());
                        *progress = said.clone();
                        following.report(number, said);
                    }) => ended,
                    why = gone => Err(why),
                    why = pass_on(following, link, next_order, unstarted.take()) => Err(why),
                },
            };
            if let Err(why) = &ended {
                let lost = LostWorker::new(member, sources, why);
                let message = format!("{lost}. Its part of the load is no longer sent");
                note(None, clock.now(), EventKind::Warning { message });
            }
            *end = Some(ended);
            following.all_ended.wait().await;
        };
        tokio::select! {
            () = to_the_end => {}
            never = follow_clock(link, clock, sources, its_clock, note) => match never {},
        }
    }

    /// Returns the end of the worker's load; for a lost worker, according to its last report.
    pub(super) fn ended(&self, clock: Clock) -> LoadEnd {
        match &self.end {
            Some(Ok(ended)) => *ended,
            _ => {
                let heard = self.heard.unwrap_or_else(|| clock.now());
                let at = heard.shifted_ns(self.its_clock.offset_ns());
                LoadEnd { at, scheduled: self.progress.scheduled, ports: None }
            }
        }
    }

    pub(super) async fn dismiss(&self) {
        let gone = self.member.gone.clone();
        tokio::select! {
            _ = gone => {}
            _ = retried(|| self.link.post(ACKNOWLEDGED_PATH, Bytes::new())) => {}
        }
    }
}

/// Receives reports until the load has ended.
async fn follow_reports(
    reports: &mut Reports,
    sources: &[String],
    note: &impl Note,
    mut get_on: impl FnMut(Progress),
) -> Result<LoadEnd, String> {
    loop {
        match reports.next().await? {
            WorkerReport::Progress(progress) => get_on(progress),
            WorkerReport::Machine { t_ns, sample } => {
                note(sources.first().map(String::as_str), t_ns, EventKind::Machine(sample));
            }
            WorkerReport::Event(event) => note(Some(&event.source), event.at, event.kind),
            WorkerReport::Ended(end) => return Ok(end),
            WorkerReport::Failed { why } => return Err(why),
            WorkerReport::Ready { .. } | WorkerReport::Clock { .. } => {}
        }
    }
}

/// Repeats the order to start, and forwards the orders to stop and to abort. Returns the reason if the load cannot be
/// started.
async fn pass_on(
    following: &FollowerState,
    link: &WorkerLink,
    next_order: &mut u64,
    unstarted: Option<WorkerOrder>,
) -> String {
    if let Some(order) = unstarted
        && let Err(why) = give(link, next_order, &order).await
    {
        return why;
    }
    let asked: [(&CancellationToken, WorkerOrder); 2] =
        [(&following.control.stop, WorkerOrder::Stop), (&following.control.abort, WorkerOrder::Abort)];
    for (token, order) in asked {
        token.cancelled().await;
        // If the order was lost, the worker's reports will show it.
        let _ = give(link, next_order, &order).await;
    }
    std::future::pending().await
}

async fn give(link: &WorkerLink, next_order: &mut u64, order: &WorkerOrder) -> Result<(), String> {
    let path = format!("{ORDERS_PATH}?n={next_order}");
    let text = serde_json::to_vec(order).map_err(|error| error.to_string())?;
    let text = Bytes::from(text);
    retried(|| link.post(&path, text.clone())).await?;
    *next_order += 1;
    Ok(())
}

/// Compares clocks at intervals.
async fn follow_clock(
    link: &WorkerLink,
    own_clock: Clock,
    sources: &[String],
    its_clock: &mut WorkerClock,
    note: &impl Note,
) -> Infallible {
    let mut due = interval(worker_clock::INTERVAL);
    due.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        due.tick().await;
        if let Ok((sent, sample)) = exchange(link, own_clock).await {
            its_clock.add(sent, sample, sources, note);
        }
    }
}

async fn exchange(link: &WorkerLink, clock: Clock) -> Result<(Stamp, ClockOffset), WorkerLinkError> {
    let sent = clock.now();
    let answer: ClockAnswer = link.json(CLOCK_PATH).await?;
    Ok((sent, ClockOffset::of_exchange(sent, answer.now_ns, clock.now())))
}

/// Repeats a request until it succeeds or has been failing for too long. Does not repeat a request that the worker
/// itself refuses.
async fn retried<T, F>(mut ask: impl FnMut() -> F) -> Result<T, String>
where
    F: Future<Output = Result<T, WorkerLinkError>>,
{
    let began = Instant::now();
    loop {
        match ask().await {
            Ok(answer) => return Ok(answer),
            Err(error @ WorkerLinkError::Refused { status, .. }) if is_final(status) => {
                return Err(error.to_string());
            }
            Err(error) if began.elapsed() > UNREACHABLE => {
                return Err(format!("unreachable for {UNREACHABLE:?}: {error}"));
            }
            Err(_) => sleep(RETRY).await,
        }
    }
}

/// Returns true if the worker itself refused the request, in which case it would refuse again.
fn is_final(status: http::StatusCode) -> bool {
    [http::StatusCode::BAD_REQUEST, http::StatusCode::CONFLICT].contains(&status)
}

/// Reports from a worker. Each is returned exactly once, even if connections break.
struct Reports {
    link: WorkerLink,
    /// Number of the next report to read.
    next: u64,
    lines: Option<BoxStream<'static, std::io::Result<String>>>,
    /// Time the worker was last reached.
    heard: Instant,
    /// Number of consecutive streams that ended without a report.
    empty: u32,
}

impl Reports {
    /// Waits for the next report. Returns an error if the worker cannot be reached or has nothing more to report. This
    /// method is cancel safe.
    async fn next(&mut self) -> Result<WorkerReport, String> {
        loop {
            let why = match &mut self.lines {
                None => match self.link.lines(&format!("{REPORTS_PATH}?from={}", self.next)).await {
                    Ok(lines) => {
                        self.heard = Instant::now();
                        self.lines = Some(lines.lines().boxed());
                        continue;
                    }
                    Err(error) => error.to_string(),
                },
                Some(lines) => match timeout(SILENCE_LIMIT, lines.next()).await {
                    Ok(Some(Ok(line))) => {
                        (self.heard, self.empty) = (Instant::now(), 0);
                        match serde_json::from_str::<Numbered>(&line) {
                            Ok(Numbered { n, report }) if n >= self.next => {
                                self.next = n + 1;
                                return Ok(report);
                            }
                            Ok(_) => continue,
                            // The connection was cut off in the middle of a line.
                            Err(error) => format!("failed to parse its report {line:?}: {error}"),
                        }
                    }
                    Ok(Some(Err(error))) => error.to_string(),
                    Ok(None) if self.empty >= EMPTY => return Err("it stopped reporting".to_owned()),
                    Ok(None) => {
                        self.empty += 1;
                        "its reports ended early".to_owned()
                    }
                    Err(_) => WorkerLinkError::Silent.to_string(),
                },
            };
            self.lines = None;
            if self.heard.elapsed() > UNREACHABLE {
                return Err(why);
            }
            sleep(RETRY).await;
        }
    }
}
