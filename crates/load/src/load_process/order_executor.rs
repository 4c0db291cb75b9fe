//! The load worker's process: carries out the orders defined in [`super::worker_protocol`] and sends reports.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncBufRead, AsyncBufReadExt, Lines};
use tokio::time::interval;

use super::worker_protocol::{LoadEnd, Prepare, WorkerOrder, WorkerReport};
use crate::error::{LoadError, in_words};
use crate::live_feed::LiveJournal;
use crate::load_plan::{Plan, PlanError};
use crate::machine;
use crate::prepared::Prepared;
use crate::running::{LoadSummary, RunningLoad};
use rolldrop_record::{Clock, RunDir, RunDirError};

/// Interval between progress reports.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(200);

/// Reason why the process could not send the load.
#[derive(Debug, thiserror::Error)]
enum WorkerError {
    #[error(transparent)]
    Plan(#[from] PlanError),
    #[error(transparent)]
    Load(#[from] LoadError),
    #[error(transparent)]
    RunDir(#[from] RunDirError),
    #[error("failed to read an order")]
    Orders(#[from] io::Error),
    #[error("failed to parse an order")]
    Order(#[from] serde_json::Error),
    #[error("received {0} out of turn")]
    OutOfTurn(&'static str),
    #[error("failed to send a report")]
    Report(#[source] io::Error),
}

/// Carries out orders until the load has ended or no more orders can arrive. The rows go to the run directory that
/// `run_dir` returns when the load starts, and the batches of each second go to the journal, if there is one. `say`
/// writes a report.
pub async fn serve(
    run_dir: impl FnOnce() -> Result<RunDir, RunDirError>,
    journal: Option<Arc<LiveJournal>>,
    clock: Clock,
    orders: impl AsyncBufRead + Unpin,
    say: impl FnMut(&WorkerReport) -> io::Result<()>,
) {
    let mut worker = OrderExecutor { clock, orders: orders.lines(), say };
    if let Err(error) = worker.run(run_dir, journal).await {
        // If sending reports has failed, this one does not arrive either.
        let _ = worker.say(&WorkerReport::Failed { why: in_words(&error) });
    }
}

struct OrderExecutor<R, S> {
    clock: Clock,
    orders: Lines<R>,
    say: S,
}

impl<R, S> OrderExecutor<R, S>
where
    R: AsyncBufRead + Unpin,
    S: FnMut(&WorkerReport) -> io::Result<()>,
{
    async fn run(
        &mut self,
        run_dir: impl FnOnce() -> Result<RunDir, RunDirError>,
        journal: Option<Arc<LiveJournal>>,
    ) -> Result<(), WorkerError> {
        let Some(mut next) = self.next_order().await? else { return Ok(()) };
        let (prepared, zero) = loop {
            let WorkerOrder::Prepare(order) = next else { return Err(WorkerError::OutOfTurn("an order")) };
            let Some(prepared) = self.prepare(*order).await? else { return Ok(()) };
            match self.await_start().await? {
                Some(WorkerOrder::Start { zero_ns }) => break (prepared, zero_ns),
                // Another load is prepared in its place.
                Some(order) => next = order,
                None => return Ok(()),
            }
        };
        let prepared = match journal {
            Some(journal) => prepared.with_journal(journal),
            None => prepared,
        };
        let running = prepared.start_at(zero, self.clock, Some(&run_dir()?))?;
        let LoadSummary { ended, scheduled, ports, .. } = self.follow(running).await?;
        self.say(&WorkerReport::Ended(LoadEnd { at: ended, scheduled, ports }))
    }

    /// Prepares a load. Returns `None` if the load is no longer wanted.
    async fn prepare(&mut self, order: Prepare) -> Result<Option<Prepared>, WorkerError> {
        let (prepared, mut warnings) = tokio::select! {
            prepared = ready(order, self.clock) => prepared?,
            order = self.next_order() => match order? {
                Some(WorkerOrder::Stop | WorkerOrder::Abort) | None => return Ok(None),
                Some(_) => return Err(WorkerError::OutOfTurn("an order")),
            },
        };
        warnings.extend(prepared.warnings());
        self.say(&WorkerReport::Ready { sources: prepared.sources(), warnings })?;
        Ok(Some(prepared))
    }

    /// Waits for the order to start, or to prepare another load. Returns `None` if no load is wanted.
    async fn await_start(&mut self) -> Result<Option<WorkerOrder>, WorkerError> {
        loop {
            match self.next_order().await? {
                Some(WorkerOrder::Clock { n }) => self.tell_time(n)?,
                Some(WorkerOrder::Stop | WorkerOrder::Abort) => return Ok(None),
                order => return Ok(order),
            }
        }
    }

    /// Follows the load until it has ended, even if no one reads the reports, because its rows are kept regardless.
    async fn follow(&mut self, mut running: RunningLoad) -> Result<LoadSummary, WorkerError> {
        let control = running.control().clone();
        let mut events = running.take_events();
        let mut machine = machine::MachineSampler::begin(self.clock);
        let mut progress = interval(PROGRESS_INTERVAL);
        let mut is_heard = true;
        loop {
            let said = tokio::select! {
                biased;
                // The event channel closes before the load ends.
                Some(event) = events.recv(), if is_heard => self.say(&WorkerReport::Event(event)),
                summary = running.join() => {
                    let summary = summary?;
                    // Events that arrived together with the end.
                    while let (true, Ok(event)) = (is_heard, events.try_recv()) {
                        is_heard = self.say(&WorkerReport::Event(event)).is_ok();
                    }
                    // The final progress, for the display.
                    if is_heard {
                        let _ = self.say(&WorkerReport::Progress(control.progress()));
                    }
                    return Ok(summary);
                }
                (t_ns, sample) = machine.next(), if is_heard => self.say(&WorkerReport::Machine { t_ns, sample }),
                _ = progress.tick(), if is_heard => self.say(&WorkerReport::Progress(control.progress())),
                order = self.next_order(), if is_heard => match order {
                    Ok(Some(WorkerOrder::Clock { n })) => self.tell_time(n),
                    Ok(Some(WorkerOrder::Stop)) => { control.stop(); Ok(()) }
                    Ok(Some(WorkerOrder::Abort)) => { control.abort(); Ok(()) }
                    Ok(Some(WorkerOrder::Prepare(_) | WorkerOrder::Start { .. })) => Err(WorkerError::OutOfTurn("a second start")),
                    Ok(None) => { is_heard = false; control.abort(); Ok(()) }
                    Err(error) => Err(error),
                },
            };
            if let Err(error) = said {
                tracing::debug!(%error, "aborting the load: no one is reading its reports");
                is_heard = false;
                control.abort();
            }
        }
    }

    fn tell_time(&mut self, n: u64) -> Result<(), WorkerError> {
        let now_ns = self.clock.now();
        self.say(&WorkerReport::Clock { n, now_ns })
    }

    fn say(&mut self, report: &WorkerReport) -> Result<(), WorkerError> {
        (self.say)(report).map_err(WorkerError::Report)
    }

    /// Waits for the next order; returns `None` if there will be none. This method is cancel safe.
    async fn next_order(&mut self) -> Result<Option<WorkerOrder>, WorkerError> {
        let line = self.orders.next_line().await?;
        Ok(line.map(|line| serde_json::from_str(&line)).transpose()?)
    }
}

/// Prepares a load and waits until every target has responded. Returns the load with its warnings.
async fn ready(order: Prepare, clock: Clock) -> Result<(Prepared, Vec<String>), WorkerError> {
    let Prepare { settings, run, first_answer_limit, share, before } = order;
    let plan = Plan::new(settings)?.of_run(run);
    let plan = match share {
        Some(share) => plan.part(share)?,
        None => plan,
    };
    let mut prepared = Prepared::new(plan).await?.behind(before).with_evidence(clock)?;
    prepared.first_answers(first_answer_limit, clock).await?;
    let left_out = prepared.choose_families(clock).await;
    Ok((prepared, left_out))
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::Mutex;

    use tokio::io::{AsyncReadExt, AsyncWriteExt, BufReader, DuplexStream, duplex};
    use tokio::net::TcpListener;
    use tokio::sync::Notify;
    use tokio_util::task::AbortOnDropHandle;

    use super::*;
    use crate::{Load, Pace};
    use rolldrop_record::parts::read_table;
    use rolldrop_record::{Outcome, RequestRow, RunId, Stamp};

    /// Responds to every request without an id and to no other, so that the requests of the load stay in flight.
    async fn answering_the_first() -> (String, AbortOnDropHandle<()>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/", listener.local_addr().unwrap());
        let serving = async move {
            let mut held = Vec::new();
            while let Ok((mut stream, _)) = listener.accept().await {
                let mut request = [0; 1024];
                let length = stream.read(&mut request).await.unwrap_or(0);
                if !String::from_utf8_lossy(&request[..length]).contains("rolldrop-id") {
                    let _ = stream.write_all(b"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n").await;
                } else {
                    held.push(stream);
                }
            }
        };
        (url, AbortOnDropHandle::new(tokio::spawn(serving)))
    }

    async fn order(to: &mut DuplexStream, order: &WorkerOrder) {
        to.write_all(format!("{}\n", serde_json::to_string(order).unwrap()).as_bytes()).await.unwrap();
    }

    /// A worker running in this test: the channel for its orders, its reports, and its task.
    struct Served {
        orders: DuplexStream,
        said: Arc<Mutex<Vec<WorkerReport>>>,
        more: Arc<Notify>,
        end: AbortOnDropHandle<()>,
    }

    impl Served {
        fn begin(run_dir: &Path) -> Self {
            let (orders, theirs) = duplex(4096);
            let (said, more) = (Arc::new(Mutex::new(Vec::new())), Arc::new(Notify::new()));
            let (run_dir, log, tell) = (run_dir.to_owned(), Arc::clone(&said), Arc::clone(&more));
            let end = tokio::spawn(async move {
                let say = |report: &WorkerReport| {
                    log.lock().unwrap().push(report.clone());
                    tell.notify_one();
                    Ok(())
                };
                serve(|| RunDir::open(&run_dir), None, Clock::start(), BufReader::new(theirs), say).await;
            });
            Self { orders, said, more, end: AbortOnDropHandle::new(end) }
        }

        async fn until(&self, wanted: impl Fn(&WorkerReport) -> bool) {
            let heard = async {
                while !self.said.lock().unwrap().iter().any(&wanted) {
                    self.more.notified().await;
                }
            };
            let heard = tokio::time::timeout(Duration::from_secs(30), heard).await;
            assert!(heard.is_ok(), "{:?}", self.said.lock().unwrap());
        }
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn worker_keeps_rows_when_orders_end() {
        let (url, _server) = answering_the_first().await;
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("run.json"), "{}").unwrap();
        let mut worker = Served::begin(dir.path());
        let settings = Load { pace: Pace::constant(200.0, Duration::from_secs(3600)), ..Load::new(url) };
        let (run, first_answer_limit) = (RunId::random(), Duration::from_secs(30));
        let prepare = Prepare { settings, run, first_answer_limit, share: None, before: None };
        order(&mut worker.orders, &WorkerOrder::Prepare(Box::new(prepare))).await;
        worker
            .until(|report| matches!(report, WorkerReport::Ready { sources, .. } if sources == &["load-0"]))
            .await;
        order(&mut worker.orders, &WorkerOrder::Clock { n: 5 }).await;
        worker.until(|report| matches!(report, WorkerReport::Clock { n: 5, .. })).await;
        let zero_ns = Clock::start().now();
        order(&mut worker.orders, &WorkerOrder::Start { zero_ns }).await;
        worker.until(|report| matches!(report, WorkerReport::Progress(p) if p.in_flight >= 5)).await;
        drop(worker.orders);
        worker.end.await.unwrap();

        let rows = read_table::<RequestRow>(dir.path()).unwrap();
        assert_eq!(rows.iter().filter(|row| row.seq == 0).map(|row| row.scheduled).next(), Some(zero_ns));
        assert!(rows.iter().filter(|row| row.outcome == Outcome::Cancelled).count() >= 5);
        let said = worker.said.lock().unwrap();
        let last = said.last().unwrap();
        assert!(matches!(last, WorkerReport::Ended(end) if end.scheduled == rows.len() as u64), "{last:?}");
    }

    #[tokio::test]
    async fn worker_reports_failure_reason() {
        let dir = tempfile::tempdir().unwrap();
        let say = async |wanted: WorkerOrder| {
            let mut worker = Served::begin(dir.path());
            order(&mut worker.orders, &wanted).await;
            worker.end.await.unwrap();
            worker.said.lock().unwrap().clone()
        };
        let (url, limit) = ("http://127.0.0.1:1/".to_owned(), Duration::from_millis(1));
        let settings = Load::new(url.clone());
        let (run, first_answer_limit) = (RunId::random(), limit);
        let prepare = Prepare { settings, run, first_answer_limit, share: None, before: None };
        let said = say(WorkerOrder::Prepare(Box::new(prepare))).await;
        let [WorkerReport::Failed { why: reason }] = said.as_slice() else { panic!("{said:?}") };
        assert!(reason.starts_with(&format!("{url} did not answer within 1ms: ")), "{reason}");
        let said = say(WorkerOrder::Start { zero_ns: Stamp::default() }).await;
        assert!(
            matches!(said.as_slice(), [WorkerReport::Failed { why }] if why.contains("out of turn")),
            "{said:?}"
        );
    }
}
