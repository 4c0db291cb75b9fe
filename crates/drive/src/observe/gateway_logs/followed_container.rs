//! Follows the log of one container in a pod, through interrupted streams, rotations and restarts of the container.

#[cfg(test)]
mod tests;

use std::hash::{BuildHasher, RandomState};
use std::pin::Pin;
use std::time::Duration;

use futures::{AsyncBufRead, AsyncBufReadExt};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::{ListParams, LogParams};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use super::continuity::{Continuity, LineDecision, LineMark, LogStart};
use super::log_lines::{LineRate, LineSplitter, RawLine, stamp_of};
use super::{LogDeliveryKind, LogOutlet, LogStop};
use crate::api::{Pauses, page, retry_after};
use crate::error::CoordinatorError;
use rolldrop_kubernetes::guard::distrust;
use rolldrop_kubernetes::guard::object_names::in_path;
use rolldrop_kubernetes::pods::ListedPod;
use rolldrop_record::Stamp;
use rolldrop_sidecar::observed::statuses;

/// Time without new bytes after which a log is opened again: the kubelet may have lost track of it in a rotation, or the
/// connection may be dead.
const FIRST_SILENCE: Duration = Duration::from_secs(5);
/// Maximum that [`FIRST_SILENCE`] grows to. It doubles whenever the log has no new line.
const LONGEST_SILENCE: Duration = Duration::from_secs(60);
/// Time without bytes after which a restarted container's previous log is read.
const QUIET_START: Duration = Duration::from_secs(1);
/// Time limit for an API call, and for the next bytes of a log that is not followed.
const CALL: Duration = Duration::from_secs(30);

/// State of a container, as the watch of its pod shows it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct SeenContainer {
    pub(super) restarts: i32,
    /// Start of the current run; the epoch if that is unknown, and `None` before the first run.
    started: Option<Stamp>,
    is_running: bool,
    /// True once the pod no longer exists.
    pub(super) is_gone: bool,
}

impl SeenContainer {
    pub(super) fn of(pod: &Pod, container: &str) -> Self {
        let found = statuses(pod).find(|status| status.name == container);
        let Some(found) = found else { return Self::default() };
        let (state, restarts) = (found.state.clone().unwrap_or_default(), found.restart_count);
        let is_running = state.running.is_some();
        let has_started = is_running || state.terminated.is_some() || restarts > 0;
        let started = state.running.and_then(|run| run.started_at);
        let started = started.or(state.terminated.and_then(|run| run.started_at));
        let started = started.and_then(|at| stamp_of(at.0));
        let started = started.or(has_started.then_some(Stamp::default()));
        Self { restarts, started, is_running, is_gone: false }
    }
}

/// Log of one container.
pub(super) struct FollowedContainer {
    pub(super) logs: Api<Pod>,
    pub(super) pods: Api<ListedPod>,
    pub(super) pod: String,
    pub(super) uid: String,
    pub(super) container: String,
    pub(super) seen: watch::Receiver<SeenContainer>,
    /// Number of restarts before the run that is read.
    pub(super) restarts: i32,
    pub(super) continuity: Continuity,
    pub(super) rate: LineRate,
    /// True from when the log could not be read until it is read again.
    pub(super) is_interrupted: bool,
    pub(super) outlet: LogOutlet,
    pub(super) hasher: RandomState,
}

/// Reason that a log was not read to its end.
enum LogBreak {
    Stop(LogStop),
    /// The API server does not let this program read the log. One that has just started may do so only for a while.
    Forbidden(String),
    /// The log could not be opened, or was interrupted. The server may say when to try again.
    Cut(Option<Duration>),
    /// Nothing arrived for a while.
    Silent,
    /// The container has no such log.
    Absent,
    /// The pod no longer exists.
    Gone,
    /// Lines from another log were delivered, and this log may contain them too.
    Overtaken,
}

impl From<LogStop> for LogBreak {
    fn from(stop: LogStop) -> Self {
        Self::Stop(stop)
    }
}

impl LogBreak {
    fn of(error: &kube::Error) -> Self {
        if let Some(why) = distrust(error) {
            return Self::Stop(LogStop::Because(why.to_string()));
        }
        match error {
            kube::Error::Api(status) if status.code == 403 => Self::Forbidden(status.message.clone()),
            kube::Error::Api(status) if status.code == 404 => Self::Gone,
            kube::Error::Api(status) if status.code == 400 => Self::Absent,
            error => {
                tracing::debug!(why = CoordinatorError::why(error), "failed to read a log");
                Self::Cut(retry_after(error))
            }
        }
    }
}

type LogStream = Pin<Box<dyn AsyncBufRead + Send>>;

impl FollowedContainer {
    /// Delivers the log's lines until the pod is gone.
    pub(super) async fn follow(mut self) {
        if let Err(stop) = self.until_gone().await {
            self.outlet.end(stop).await;
        }
    }

    async fn until_gone(&mut self) -> Result<(), LogStop> {
        let (mut pauses, mut silence) = (Pauses::default(), FIRST_SILENCE);
        // Number of restarts when the log was last read to its end.
        let mut complete = None;
        let mut was_open = false;
        loop {
            let seen = *self.seen.borrow_and_update();
            if seen.is_gone {
                break;
            }
            let Some(started) = seen.started else {
                // The watch ends only together with this task.
                self.seen.changed().await.map_err(|_| LogStop::Unheard)?;
                continue;
            };
            self.continuity.cover(started);
            let last = self.continuity.last();
            let ended = match self.open(false).await {
                Ok(log) => {
                    was_open = true;
                    let ended = self.read(log, seen, silence).await;
                    self.continuity.cover(self.outlet.now());
                    ended
                }
                Err(broken) => Err(broken),
            };
            let ended = match ended {
                Err(LogBreak::Forbidden(_)) if was_open => Err(LogBreak::Cut(None)),
                ended => ended,
            };
            if self.continuity.last() != last {
                (pauses, silence) = (Pauses::default(), FIRST_SILENCE);
            }
            if matches!(ended, Err(LogBreak::Cut(_))) {
                self.interrupt().await?;
            }
            match ended {
                // Without proof, the log contains nothing but the kubelet's message that the container is gone.
                Ok(()) if self.continuity.is_proven() || last.is_none() => complete = Some(seen.restarts),
                Err(LogBreak::Silent | LogBreak::Cut(_)) => complete = None,
                _ => {}
            }
            match ended {
                Err(LogBreak::Overtaken) => {}
                Err(LogBreak::Stop(stop)) => return Err(stop),
                Err(LogBreak::Forbidden(why)) => return Err(LogStop::Because(why)),
                Err(LogBreak::Silent) => silence = (2 * silence).min(LONGEST_SILENCE),
                Err(LogBreak::Gone) => self.await_change().await,
                Ok(()) | Err(LogBreak::Absent) if !seen.is_running => self.await_change().await,
                Err(LogBreak::Cut(Some(told))) => sleep(told.min(LONGEST_SILENCE)).await,
                Ok(()) | Err(LogBreak::Absent | LogBreak::Cut(None)) => sleep(pauses.next()).await,
            }
        }
        let seen = *self.seen.borrow();
        if seen.started.is_some() && complete != Some(seen.restarts) {
            let gap = self.continuity.gap_until(self.outlet.now());
            self.outlet.gap(gap, "the pod was deleted before its log was read to the end").await?;
        }
        self.resume().await
    }

    /// Waits until the watch shows a change, but not for long, because the watch may be interrupted.
    async fn await_change(&mut self) {
        let _ = timeout(LONGEST_SILENCE, self.seen.changed()).await;
    }

    /// Reads the current run's log to its end. If lines from the previous run are missing, reads that run's log first.
    async fn read(
        &mut self,
        mut log: LogStream,
        seen: SeenContainer,
        silence: Duration,
    ) -> Result<(), LogBreak> {
        let opened = self.outlet.now();
        self.continuity.open(opened);
        let mut lines = LineSplitter::default();
        loop {
            let may_be_new_run = seen.restarts > self.restarts && !self.continuity.is_proven();
            let limit = if may_be_new_run { QUIET_START } else { silence };
            let chunk = match read_chunk(&mut log, limit).await {
                Ok([]) | Err(LogBreak::Silent) if may_be_new_run => {
                    self.catch_up(opened).await?;
                    continue;
                }
                Ok([]) => return Ok(()),
                chunk => chunk?,
            };
            let (arrived, length, mut rest) = (self.outlet.now(), chunk.len(), chunk);
            while let Some(line) = lines.next(&mut rest) {
                let Some((written, line)) = line.stamped() else { continue };
                if !self.take(written, line, arrived).await? {
                    self.catch_up(written).await?;
                    self.take(written, line, arrived).await?;
                }
            }
            log.consume_unpin(length);
            if self.continuity.is_proven() {
                self.restarts = self.restarts.max(seen.restarts);
                self.resume().await?;
            }
        }
    }

    /// Reports, once, that the log cannot be read.
    async fn interrupt(&mut self) -> Result<(), LogStop> {
        if std::mem::replace(&mut self.is_interrupted, true) {
            return Ok(());
        }
        let (from, _) = self.continuity.gap_until(self.outlet.now());
        self.outlet.send(LogDeliveryKind::Interrupted { from }).await
    }

    /// Reports, once after an interruption, that it is over.
    async fn resume(&mut self) -> Result<(), LogStop> {
        match std::mem::take(&mut self.is_interrupted) {
            true => self.outlet.send(LogDeliveryKind::Resumed).await,
            false => Ok(()),
        }
    }

    /// Catches up from the last delivered line to `next`: delivers the rest of the previous run's log, or a gap. `next`
    /// is the time of a line that may not follow the last delivered one, or the time at which the log was opened.
    async fn catch_up(&mut self, next: Stamp) -> Result<(), LogBreak> {
        // The log may also belong to a new pod with the same name.
        let restarts = self.look().await?.restarts;
        let last = self.continuity.last();
        if last.is_none() && restarts < self.restarts + 2 && !self.continuity.is_late() {
            self.continuity.settle();
        }
        match self.read_previous().await {
            Ok(()) | Err(LogBreak::Absent) => {}
            Err(broken) => return Err(broken),
        }
        self.restarts = self.restarts.max(restarts);
        if self.continuity.last() != last {
            // While a container waits to be restarted, its log and its previous log are the same.
            return Err(LogBreak::Overtaken);
        }
        if !self.continuity.is_proven() {
            self.skip_to(next).await?;
        }
        Ok(())
    }

    /// Reads the log of the run before the current one to its end.
    async fn read_previous(&mut self) -> Result<(), LogBreak> {
        let mut log = self.open(true).await?;
        let mut lines = LineSplitter::default();
        loop {
            let chunk = read_chunk(&mut log, CALL).await?;
            let (arrived, length, mut rest) = (self.outlet.now(), chunk.len(), chunk);
            if length == 0 {
                return Ok(());
            }
            while let Some(line) = lines.next(&mut rest) {
                let Some((written, line)) = line.stamped() else { continue };
                if !self.take(written, line, arrived).await? {
                    self.skip_to(written).await?;
                    self.take(written, line, arrived).await?;
                }
            }
            log.consume_unpin(length);
        }
    }

    /// Delivers a gap up to the next line, and accepts that line.
    async fn skip_to(&mut self, next: Stamp) -> Result<(), LogStop> {
        let why = if self.continuity.is_set_back() {
            "the node's clock was set back"
        } else {
            "the last line that was read is no longer kept: the log was rotated, or the container restarted repeatedly"
        };
        self.outlet.gap(self.continuity.gap_before(next), why).await?;
        self.continuity.settle();
        Ok(())
    }

    /// Delivers a line unless it was delivered before. Returns false, and leaves the line, if nothing shows that it
    /// follows the last one.
    async fn take(&mut self, written: Stamp, line: RawLine<'_>, arrived: Stamp) -> Result<bool, LogStop> {
        let mark = LineMark { written, hash: self.hasher.hash_one(line.bytes) };
        let last = self.continuity.last().map_or(written, |last| last.written);
        match self.continuity.take(mark, arrived) {
            LineDecision::Known => return Ok(true),
            LineDecision::Unproven => return Ok(false),
            LineDecision::New => {}
            LineDecision::AfterSkip => {
                let why = "the log may have been rotated twice before it was read";
                self.outlet.gap((last, written), why).await?;
            }
        }
        self.rate.count(written).map_err(LogStop::Because)?;
        self.outlet.line(line, Some(written), arrived).await?;
        Ok(true)
    }

    async fn open(&self, previous: bool) -> Result<LogStream, LogBreak> {
        let mut params = LogParams {
            container: Some(self.container.clone()),
            follow: !previous,
            previous,
            timestamps: true,
            ..LogParams::default()
        };
        match self.continuity.start() {
            LogStart::Oldest => {}
            LogStart::Second(second) => params.since_time = Timestamp::from_second(second).ok(),
            LogStart::End => params.tail_lines = Some(0),
        }
        let name = in_path(&self.pod);
        match timeout(CALL, self.logs.log_stream(&name, &params)).await {
            Ok(Ok(log)) => Ok(Box::pin(log)),
            Ok(Err(error)) => Err(LogBreak::of(&error)),
            Err(_) => Err(LogBreak::Cut(None)),
        }
    }

    /// Asks the API server for the container's state, because the watch may lag.
    async fn look(&self) -> Result<SeenContainer, LogBreak> {
        let params = ListParams::default().fields(&format!("metadata.name={}", self.pod));
        let found = timeout(CALL, page(&self.pods, &params)).await.map_err(|_| LogBreak::Cut(None))?;
        let found = found.map_err(|error| LogBreak::of(&error))?;
        let pod = found.items.iter().find(|pod| pod.0.metadata.uid.as_ref() == Some(&self.uid));
        pod.map(|ListedPod(pod)| SeenContainer::of(pod, &self.container)).ok_or(LogBreak::Gone)
    }
}

/// Returns the next bytes of a log; none at its end.
async fn read_chunk(log: &mut LogStream, limit: Duration) -> Result<&[u8], LogBreak> {
    match timeout(limit, log.fill_buf()).await {
        Ok(Ok(chunk)) => Ok(chunk),
        Ok(Err(error)) => {
            tracing::debug!(%error, "a log was cut off");
            Err(LogBreak::Cut(None))
        }
        Err(_) => Err(LogBreak::Silent),
    }
}
